//! Can requests be served? Decided purely, part by part, from what the parts say of themselves.

use api::Health;
use runtimes::Availability;
use transport::Lifecycle;

/// What every part has to say.
pub(crate) struct Readiness {
    parts: Vec<Part>,
}

/// One part, and what is wrong with it.
pub(crate) struct Part {
    pub(crate) name: &'static str,
    pub(crate) wrong: Option<&'static str>,
    /// Whether nothing can be served without it.
    needed: bool,
}

/// What is known about whether a runtime really decodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decodes {
    /// One was seen to.
    Yes,
    /// One was asked to, and none did.
    No,
    /// It is just being found out.
    NotYetKnown,
}

impl Readiness {
    pub(crate) fn of(health: &Health, decodes: Decodes, phase: Lifecycle) -> Self {
        let needed = |name, wrong| Part { name, wrong, needed: true };
        let mut parts = vec![needed("ledger", ledger(health)), needed("runtime", runtime(health, decodes))];
        if let Some(search) = &health.search {
            let wrong = match search.is_required {
                true => "Search does not answer: requests get 503, because each of them is to have facts.",
                false => "Search does not answer: requests that need facts get 503.",
            };
            // Where not everything is grounded, requests that need no facts are served without it.
            let wrong = (!search.is_healthy).then_some(wrong);
            parts.push(Part { name: "search", wrong, needed: search.is_required });
        }
        parts.push(needed("stopping", stopping(phase)));
        Self { parts }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.parts.iter().all(|part| part.wrong.is_none() || !part.needed)
    }

    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }
}

fn ledger(health: &Health) -> Option<&'static str> {
    (!health.is_ledger_healthy).then_some("Usage cannot be recorded: requests get 503.")
}

fn runtime(health: &Health, decodes: Decodes) -> Option<&'static str> {
    if let Some(wrong) = nobody_to_ask(health) {
        return Some(wrong);
    }
    match decodes {
        Decodes::Yes => None,
        Decodes::No => Some("No runtime completes anything: requests get 502."),
        Decodes::NotYetKnown => Some("No runtime has been seen to complete anything yet; one is being asked."),
    }
}

/// Why no request would be sent to any runtime.
pub(crate) fn nobody_to_ask(health: &Health) -> Option<&'static str> {
    match health.availability {
        Availability::Unconfigured => {
            Some("There is no runtime, and no model that can be used: requests get 503. The log may say why.")
        }
        Availability::Starting => Some("The model is being loaded: requests get 503 until it is."),
        // Not only those that have proved to work: what proves it is a request, which somebody has to send.
        Availability::Available if health.runtimes.iter().any(|member| member.available) => None,
        Availability::Available => Some("No runtime answers: requests get 502."),
    }
}

fn stopping(phase: Lifecycle) -> Option<&'static str> {
    match phase {
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
            completed: 0,
            failures: runtimes::FailureCounts::default(),
            retried: 0,
            latency: None,
            latency_per_token: None,
            share: 1.0,
            breaker: runtimes::BreakerState::Open,
            full_for: None,
            draining: false,
        }
    }

    #[test]
    fn it_is_ready_if_a_request_can_be_served() {
        use Availability::{Available, Starting, Unconfigured};
        use Lifecycle::{Draining, Serving, Stopping};
        let decided = |ledger, availability, members: &[bool], search: Option<(bool, bool)>, decodes, phase| {
            let health = Health {
                is_ledger_healthy: ledger,
                availability,
                runtimes: members.iter().map(|&available| member(available)).collect(),
                search: search.map(|(working, required)| SearchStatus {
                    address: "local".into(),
                    is_healthy: working,
                    is_required: required,
                }),
            };
            let readiness = Readiness::of(&health, decodes, phase);
            let wrong = readiness.parts().iter().filter(|part| part.wrong.is_some()).map(|part| part.name);
            (readiness.is_ready(), wrong.collect::<Vec<_>>().join(" "))
        };
        let all = |ledger, availability, members: &[bool], search: Option<bool>, phase| {
            decided(ledger, availability, members, search.map(|working| (working, false)), Decodes::Yes, phase)
        };
        for (found, ready, wrong) in [
            (decided(true, Available, &[true], Some((false, true)), Decodes::Yes, Serving), false, "search"),
            (decided(true, Available, &[true], Some((true, true)), Decodes::Yes, Serving), true, ""),
            (decided(true, Available, &[true], None, Decodes::No, Serving), false, "runtime"),
            (decided(true, Available, &[true], None, Decodes::NotYetKnown, Serving), false, "runtime"),
            (all(true, Available, &[true], None, Serving), true, ""),
            (all(true, Available, &[false, true], Some(true), Serving), true, ""),
            (all(true, Available, &[true], Some(false), Serving), true, "search"),
            (all(true, Available, &[false, false], None, Serving), false, "runtime"),
            (all(true, Starting, &[true], None, Serving), false, "runtime"),
            (all(true, Unconfigured, &[], None, Serving), false, "runtime"),
            (all(false, Available, &[true], None, Serving), false, "ledger"),
            (all(true, Available, &[true], None, Draining), false, "stopping"),
            (all(false, Unconfigured, &[], Some(false), Stopping), false, "ledger runtime search stopping"),
        ] {
            assert_eq!(found, (ready, wrong.to_owned()));
        }
    }
}
