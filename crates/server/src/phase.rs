//! How far the service has got on its way to the end. One sender decides; whoever serves, or tells of it, watches.

/// How far the service has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// It serves.
    Serving,
    /// It serves still, and asks everyone to go elsewhere.
    Draining,
    /// It finishes what is under way, and nothing new begins.
    Stopping,
}
