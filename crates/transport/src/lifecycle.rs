//! The service's lifecycle. One sender decides (`adriaticum::shutdown`); listeners and readiness watch it.

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lifecycle {
    Serving,
    /// Still serving, but clients and load balancers are asked to go elsewhere.
    Draining,
    /// Requests in flight are finished; no new ones are accepted.
    Stopping,
}
