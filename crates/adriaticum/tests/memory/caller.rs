//! The well-behaved caller: one request after the other, with its own key and address.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use testbed::{Connection, Request, Service, chat_body};

const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 9));
const MIN_REQUESTS: usize = 300;
const MIN_TIME: Duration = Duration::from_millis(1500);
/// Requests on one connection before a new one is opened.
const REQUESTS_PER_CONNECTION: usize = 10;
/// The maximum ratio of the 99th percentile to the one without attacks.
const MAX_RATIO: u32 = 3;
/// Attackers, service and caller share the test's machine: a 99th percentile below this is noise of the machine.
const NOISE: Duration = Duration::from_millis(500);

pub(crate) struct Caller<'a> {
    service: &'a Service,
    request: Vec<u8>,
}

impl<'a> Caller<'a> {
    pub(crate) fn new(service: &'a Service) -> Self {
        // A request that is not searched for.
        let body = chat_body("Write a short poem about the sea.");
        Self { service, request: Request::chat(&service.key(), body).bytes() }
    }

    pub(crate) fn measure(&mut self) -> Latencies {
        let (began, mut times, mut failed) = (Instant::now(), Vec::new(), 0);
        while times.len() < MIN_REQUESTS || began.elapsed() < MIN_TIME {
            let mut connection = Connection::connect_from(ADDRESS, self.service.address());
            for _ in 0..REQUESTS_PER_CONNECTION {
                let sent = Instant::now();
                let is_sent = connection.send_while_open(&self.request);
                let response = if is_sent { connection.try_response() } else { None };
                times.push(sent.elapsed());
                if response.is_none_or(|response| response.status != 200) {
                    failed += 1;
                    break;
                }
            }
        }
        times.sort_unstable();
        Latencies { times, failed }
    }
}

pub(crate) struct Latencies {
    times: Vec<Duration>,
    pub(crate) failed: usize,
}

impl Latencies {
    fn percentile(&self, percent: usize) -> Duration {
        self.times[(self.times.len() - 1) * percent / 100]
    }

    /// Whether the difference is within the tolerance.
    pub(crate) fn are_like(&self, quiet: &Self) -> bool {
        self.percentile(99) <= (MAX_RATIO * quiet.percentile(99)).max(NOISE)
    }
}

impl fmt::Display for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [median, high] = [50, 99].map(|percent| self.percentile(percent).as_secs_f64() * 1e3);
        write!(f, "p50 {median:5.1} ms, p99 {high:6.1} ms of {:5}", self.times.len())
    }
}
