//! nginx between a service and its runtimes.

use testbed::{Behaviour, FakeRuntime, all_at_once};

use crate::ADRIATICUM;
use crate::nginx::Nginx;

const CALLERS: [usize; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
const REQUESTS: usize = 40;

/// nginx closes connections after 20 requests, and responds with 502 if a runtime closes its connection.
#[test]
fn callers_get_their_own_answers_through_nginx() {
    let runtimes = [(), ()].map(|()| FakeRuntime::start(Behaviour::Echo));
    let nginx = Nginx::in_front_of_runtimes(&[runtimes[0].address(), runtimes[1].address()]);
    let service = ADRIATICUM.service().set("runtime.urls", &format!("http://{}/v1", nginx.address())).start();
    let key = service.key();
    let completed = |phase: &str| -> usize {
        let of_caller = all_at_once(&CALLERS, |caller| {
            let asked = (0..REQUESTS).map(|number| format!("{phase} {caller} {number}"));
            asked
                .filter(|text| match service.chat(&key, text) {
                    response if response.status == 200 => {
                        assert_eq!(response.completion().content, *text);
                        true
                    }
                    response => {
                        assert_eq!(response.error().code, "inference_error");
                        false
                    }
                })
                .count()
        });
        of_caller.into_iter().sum()
    };
    assert_eq!(completed("quiet"), CALLERS.len() * REQUESTS, "{}", nginx.errors());
    runtimes[0].set_behaviour(Behaviour::Close);
    let some = completed("one closes");
    assert!(some > CALLERS.len() * REQUESTS / 2, "{some}");
}
