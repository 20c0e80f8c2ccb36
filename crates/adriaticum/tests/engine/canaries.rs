//! One caller's text never shows up in another caller's completion.

use testbed::{Conversation, all_at_once, seeded_rng};

use crate::embedded::EmbeddedService;
use crate::run_alone;

const CALLERS: usize = 32;
const ROUNDS: usize = 2;

#[test]
fn no_completion_contains_another_callers_secret() {
    let _alone = run_alone();
    let service = EmbeddedService::shared();
    let mut rng = seeded_rng();
    let mut secret = || -> String { (0..10).map(|_| rng.lowercase()).collect() };
    let callers: Vec<_> = (0..CALLERS).map(|_| (service.key(), secret())).collect();
    let mut repeated = 0;
    for round in 0..ROUNDS {
        for temperature in [0.0, 1.0] {
            // All share a prefix; in the second round each caller's own prefix is cached, too.
            let responses = all_at_once(&callers, |(key, secret)| {
                let fact = format!("The password is {secret}.");
                let chat = Conversation::system(&*fact).then_user("What is the password?").then_assistant(&*fact);
                let chat = chat.then_user("Repeat it, please.");
                service.complete(key, &chat.temperature(temperature).max_tokens(14)).completion().content
            });
            for (at, response) in responses.iter().enumerate() {
                let response = response.to_lowercase();
                for (owner, (_, secret)) in callers.iter().enumerate() {
                    let leaked = response.contains(secret.as_str());
                    assert!(
                        !leaked || owner == at,
                        "round {round}: caller {at} got the secret of caller {owner}: {response}"
                    );
                    repeated += usize::from(leaked);
                }
            }
        }
    }
    assert!(repeated > CALLERS / 4, "the test is valid only if the model repeats secrets: {repeated}");
}
