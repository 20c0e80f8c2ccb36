//! Failures of the database under load, with two replicas.

use std::net::SocketAddr;
use std::time::Duration;

use testbed::{Behaviour, Cluster, FakeRuntime, Service, chat_body, wait_for_within};

use crate::ADRIATICUM;
use crate::load::Load;

/// Longer than two probes of the database, which take up to ten seconds each.
const PROBES: Duration = Duration::from_secs(60);

/// Two replicas over a cluster, in front of an echoing runtime.
struct ReplicaPair {
    cluster: Cluster,
    replicas: [Service; 2],
    runtime: FakeRuntime,
}

impl ReplicaPair {
    fn start() -> Self {
        let cluster = Cluster::start(&[]);
        let url = cluster.create_database();
        Self::over(cluster, &url)
    }

    fn over(cluster: Cluster, url: &str) -> Self {
        let runtime = FakeRuntime::start(Behaviour::Echo);
        let replicas = [(), ()].map(|()| ADRIATICUM.service_with(&[&runtime]).set("database_url", url).start());
        Self { cluster, replicas, runtime }
    }

    fn addresses(&self) -> [SocketAddr; 2] {
        [self.replicas[0].address(), self.replicas[1].address()]
    }

    fn load(&self, happens: impl FnOnce(&Load)) -> Load {
        Load::during(&self.addresses(), &self.replicas[0].key(), &chat_body("hello"), happens)
    }

    /// Afterwards both replicas complete requests, and nothing is lost or doubled.
    fn assert_well(&self, load: &Load) {
        let key = self.replicas[1].key();
        for replica in &self.replicas {
            ADRIATICUM.wait_for("service again", || (replica.chat(&key, "hello").status == 200).then_some(()));
        }
        load.assert_nothing_lost_or_doubled(&self.replicas[0]);
        assert_eq!(load.broken(), 0, "every request gets an answer");
        for (kind, count) in load.kinds() {
            let outcome = kind.0 == 200 || kind.1.as_deref() == Some("service_unavailable");
            assert!(outcome, "{count} of {kind:?}");
        }
        assert!(!self.cluster.log().contains("deadlock detected"), "{}", self.cluster.log());
    }
}

#[test]
fn a_database_that_is_stopped_and_started_again() {
    let pair = ReplicaPair::start();
    let load = pair.load(|load| {
        for mode in ["fast", "immediate"] {
            load.wait_for_completions(100);
            pair.cluster.stop(mode);
            // First, requests whose row could not be written; afterwards the runtime gets no request.
            load.wait_for_outcomes(20, |outcome| outcome.status == 503);
            let asked = pair.runtime.requests().len();
            load.wait_for_outcomes(50, |outcome| outcome.status == 503);
            assert_eq!(pair.runtime.requests().len(), asked, "no inference for requests that cannot be recorded");
            pair.cluster.start_again();
        }
        load.wait_for_completions(100);
    });
    pair.assert_well(&load);
}

#[test]
fn an_idle_replica_without_its_database_is_not_ready() {
    let pair = ReplicaPair::start();
    let is_ready = |ready: bool| {
        let (status, body) = pair.replicas[0].get_ops("/readyz");
        let says = body.contains("The database does not answer");
        (if ready { status == 200 } else { status == 503 && says }).then_some(())
    };
    wait_for_within(PROBES, "readiness", || is_ready(true));
    pair.cluster.stop("fast");
    wait_for_within(PROBES, "no readiness", || is_ready(false));
    pair.cluster.start_again();
    wait_for_within(PROBES, "readiness again", || is_ready(true));
}

#[test]
fn a_database_that_cuts_off_connections() {
    let pair = ReplicaPair::start();
    let load = pair.load(|load| {
        for _ in 0..10 {
            load.wait_for_completions(30);
            pair.cluster.sql(
                "postgres",
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'adriaticum'",
            );
        }
        load.wait_for_completions(30);
    });
    pair.assert_well(&load);
}

#[test]
fn a_database_that_fails_over_to_its_copy() {
    let cluster = Cluster::start(&[]);
    let copy = cluster.start_copy();
    let url = cluster.url_with(&copy, &cluster.create_database());
    let pair = ReplicaPair::over(cluster, &url);
    let load = pair.load(|load| {
        load.wait_for_completions(100);
        pair.cluster.stop("immediate");
        load.wait_for_outcomes(20, |outcome| outcome.status == 503);
        copy.promote();
        load.wait_for_completions(100);
    });
    pair.assert_well(&load);
}

/// A backend that is cancelled or ended while it waits for the standby leaves its rows visible but not replicated.
#[test]
fn a_request_is_acknowledged_only_once_the_standby_has_its_row() {
    let cluster = Cluster::start(&[]);
    let copy = cluster.start_copy();
    let url = cluster.url_with(&copy, &cluster.create_database());
    let pair = ReplicaPair::over(cluster, &url);
    let load = pair.load(|load| {
        for interrupt in ["pg_terminate_backend", "pg_cancel_backend"] {
            load.wait_for_completions(50);
            copy.stop("fast");
            for _ in 0..2 {
                pair.cluster.interrupt_commit(interrupt);
            }
            load.wait_for_outcomes(6, |_| true);
            if interrupt == "pg_terminate_backend" {
                copy.start_again();
            }
        }
        pair.cluster.stop("immediate");
        copy.start_again();
        copy.promote();
        load.wait_for_completions(100);
    });
    pair.assert_well(&load);
}

/// Also when the change is repeated: the key is already revoked then, but only the standby makes that durable.
#[test]
fn a_change_is_confirmed_only_once_the_standby_has_it() {
    let cluster = Cluster::start(&[]);
    let copy = cluster.start_copy();
    let mut installation = ADRIATICUM.install();
    installation.set("database_url", &cluster.create_database());
    let key = installation.key();
    let revoke = ["keys", "revoke", &key[6..18]];
    copy.stop("fast");
    for command in [&["keys", "create", "unsafe"][..], &revoke, &revoke] {
        let output = std::thread::scope(|scope| {
            let running = scope.spawn(|| installation.run(command));
            cluster.interrupt_commit("pg_cancel_backend");
            running.join().unwrap()
        });
        assert_eq!((output.code, output.stdout.as_str()), (Some(1), ""), "{command:?}: {output:?}");
        assert!(output.stderr.contains("standby"), "{command:?}: {output:?}");
    }
    copy.start_again();
    installation.run_ok(&revoke);
}

#[test]
fn a_pooler_that_shares_sessions_is_refused_at_the_start() {
    let cluster = Cluster::shared();
    let url = cluster.create_database();
    for (mode, code) in [("transaction", Some(1)), ("session", Some(0))] {
        let (pooler, mut installation) = (cluster.start_pooler(mode), ADRIATICUM.install());
        installation.set("database_url", &pooler.url(&url));
        let output = installation.run(&["keys", "create", "k"]);
        assert_eq!(output.code, code, "{mode}: {output:?}");
        assert_eq!(output.stderr.contains("session mode"), mode == "transaction", "{output:?}");
    }
}

/// A change reads what was committed before its turn, under any default isolation level of the server.
#[test]
fn a_server_with_another_default_isolation_keeps_limits() {
    let cluster = Cluster::start(&["default_transaction_isolation=serializable"]);
    let runtime = FakeRuntime::start(Behaviour::Echo);
    let url = cluster.create_database();
    let replicas = [(), ()].map(|()| ADRIATICUM.service_with(&[&runtime]).set("database_url", &url).start());
    let key = replicas[0].key();
    replicas[0].run_ok(&["limits", "set", "--key", &key[6..18], "requests-per-day", "30"]);
    let calls: Vec<_> = replicas.iter().flat_map(|replica| [replica; 4]).collect();
    let outcomes =
        testbed::all_at_once(&calls, |replica| (0..10).map(|_| replica.chat(&key, "hello").status).collect::<Vec<_>>());
    let count = |status| outcomes.iter().flatten().filter(|&&outcome| outcome == status).count();
    assert_eq!((count(200), count(403)), (30, 50), "{outcomes:?}");
}

#[test]
fn a_database_that_is_suspended_for_a_while() {
    let pair = ReplicaPair::start();
    let load = pair.load(|load| {
        load.wait_for_completions(50);
        pair.cluster.freeze(true);
        load.wait_for_outcomes(6, |outcome| outcome.status == 503);
        pair.cluster.freeze(false);
        load.wait_for_completions(50);
    });
    pair.assert_well(&load);
}
