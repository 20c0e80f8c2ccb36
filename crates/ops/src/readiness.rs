//! Whether requests can be served, decided part by part. Pure.

use std::borrow::Cow;

use api::{Health, SearchOutage};
use runtimes::Availability;
use transport::Lifecycle;

pub(crate) struct Readiness {
    parts: Vec<Part>,
}

pub(crate) struct Part {
    pub(crate) name: &'static str,
    pub(crate) problem: Option<Cow<'static, str>>,
    /// Whether no request can be served without it.
    is_required: bool,
}

impl Readiness {
    /// `database` is whether it answered the last probe; `None` before the first. `decodes` is whether a runtime decodes
    /// tokens; `None` while a probe is running.
    pub(crate) fn new(health: &Health, database: Option<bool>, decodes: Option<bool>, lifecycle: Lifecycle) -> Self {
        let required =
            |name, problem: Option<&'static str>| Part { name, problem: problem.map(Cow::from), is_required: true };
        let mut parts =
            vec![required("ledger", ledger(health, database)), required("runtime", runtime(health, decodes))];
        if let Some(search) = &health.search {
            let consequence = match search.is_required {
                true => "requests get 503, because each of them needs facts",
                false => "requests that need facts get 503",
            };
            // Where Search is not required, requests that need no facts are served without it.
            let problem = search.outage.map(|outage| format!("{}: {consequence}.", describe(outage)).into());
            parts.push(Part { name: "search", problem, is_required: search.is_required });
        }
        parts.push(required("stopping", stopping(lifecycle)));
        Self { parts }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.parts.iter().all(|part| part.problem.is_none() || !part.is_required)
    }

    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }
}

fn describe(outage: SearchOutage) -> &'static str {
    match outage {
        SearchOutage::NoAnswer => "Search does not answer",
        SearchOutage::IndexGone => "The search index is gone",
        SearchOutage::IndexReplaced => "The search index is not the one that this installation had",
        SearchOutage::IndexUnreadable => "The search index cannot be read",
    }
}

fn ledger(health: &Health, database: Option<bool>) -> Option<&'static str> {
    match (health.is_ledger_healthy, database) {
        (_, Some(false)) => Some("The database does not answer: requests get 503."),
        (false, _) => Some("Usage cannot be recorded: requests get 503."),
        (true, _) => None,
    }
}

fn runtime(health: &Health, decodes: Option<bool>) -> Option<&'static str> {
    if let Some(problem) = no_runtime_available(health) {
        return Some(problem);
    }
    match decodes {
        Some(true) => None,
        Some(false) => Some("No runtime completes requests: they get 502."),
        None => Some("No runtime has completed a request yet; a probe is running."),
    }
}

/// Why no request would be sent to any runtime.
pub(crate) fn no_runtime_available(health: &Health) -> Option<&'static str> {
    match health.availability {
        Availability::Unconfigured => Some("There is no runtime and no model: requests get 503."),
        Availability::Unloadable => Some("The model could not be loaded: requests get 503. The log says why."),
        Availability::Starting => Some("The model is being loaded: requests get 503 until it is."),
        Availability::Unresponsive => {
            Some("The engine does not respond: requests get 503 until it does, or is restarted. The log says why.")
        }
        // Available is enough: whether a runtime is healthy shows only when a request is sent to it.
        Availability::Available if health.runtimes.iter().any(|member| member.available) => None,
        Availability::Available => Some("No runtime answers: requests get 502."),
    }
}

fn stopping(lifecycle: Lifecycle) -> Option<&'static str> {
    match lifecycle {
        Lifecycle::Serving => None,
        Lifecycle::Draining => Some("The service is about to stop; send new requests elsewhere."),
        Lifecycle::Stopping => Some("The service is stopping; it takes no new requests."),
    }
}

#[cfg(test)]
mod tests {
    use runtimes::MemberStatus;

    use super::*;
    use api::SearchStatus;

    fn member(available: bool) -> MemberStatus {
        MemberStatus {
            url: "http://a:1/v1".into(),
            healthy: false,
            available,
            in_flight: 0,
            model: None,
            device: None,
            completed: 0,
            failures: runtimes::FailureCounts::default(),
            retried: 0,
            moved: 0,
            unexpected: 0,
            latency: None,
            latency_per_token: None,
            share: 1.0,
            breaker: runtimes::BreakerState::Open,
            saturated_for: None,
            draining: false,
        }
    }

    #[test]
    fn ready_means_that_a_request_can_be_served() {
        use Availability::{Available, Starting, Unconfigured, Unloadable, Unresponsive};
        use Lifecycle::{Draining, Serving, Stopping};
        let decided = |ledger, availability, members: &[bool], search: Option<(bool, bool)>, decodes, lifecycle| {
            let health = Health {
                is_ledger_healthy: ledger,
                availability,
                runtimes: members.iter().map(|&available| member(available)).collect(),
                search: search.map(|(working, required)| SearchStatus {
                    address: "local".into(),
                    outage: (!working).then_some(SearchOutage::NoAnswer),
                    is_required: required,
                }),
            };
            let readiness = Readiness::new(&health, Some(true), decodes, lifecycle);
            let failing = readiness.parts().iter().filter(|part| part.problem.is_some()).map(|part| part.name);
            (readiness.is_ready(), failing.collect::<Vec<_>>().join(" "))
        };
        let all = |ledger, availability, members: &[bool], search: Option<bool>, lifecycle| {
            decided(ledger, availability, members, search.map(|working| (working, false)), Some(true), lifecycle)
        };
        for (found, ready, wrong) in [
            (decided(true, Available, &[true], Some((false, true)), Some(true), Serving), false, "search"),
            (decided(true, Available, &[true], Some((true, true)), Some(true), Serving), true, ""),
            (decided(true, Available, &[true], None, Some(false), Serving), false, "runtime"),
            (decided(true, Available, &[true], None, None, Serving), false, "runtime"),
            (all(true, Available, &[true], None, Serving), true, ""),
            (all(true, Available, &[false, true], Some(true), Serving), true, ""),
            (all(true, Available, &[true], Some(false), Serving), true, "search"),
            (all(true, Available, &[false, false], None, Serving), false, "runtime"),
            (all(true, Starting, &[true], None, Serving), false, "runtime"),
            (all(true, Unresponsive, &[true], None, Serving), false, "runtime"),
            (all(true, Unconfigured, &[], None, Serving), false, "runtime"),
            (all(true, Unloadable, &[true], None, Serving), false, "runtime"),
            (all(false, Available, &[true], None, Serving), false, "ledger"),
            (all(true, Available, &[true], None, Draining), false, "stopping"),
            (all(false, Unconfigured, &[], Some(false), Stopping), false, "ledger runtime search stopping"),
        ] {
            assert_eq!(found, (ready, wrong.to_owned()));
        }
        let health =
            Health { is_ledger_healthy: true, availability: Available, runtimes: vec![member(true)], search: None };
        for (database, ready) in [(None, true), (Some(true), true), (Some(false), false)] {
            let readiness = Readiness::new(&health, database, Some(true), Serving);
            assert_eq!(readiness.is_ready(), ready, "{database:?}");
        }
    }
}
