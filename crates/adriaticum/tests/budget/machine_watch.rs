//! Whether a machine that others share stood still, which is nobody's attack: a thread that does next to nothing tells.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use testbed::Background;

const PAUSE: Duration = Duration::from_millis(5);

pub(crate) struct MachineWatch {
    longest_micros: Arc<AtomicU64>,
    _watching: Background,
}

impl MachineWatch {
    pub(crate) fn start() -> Self {
        let longest_micros = Arc::<AtomicU64>::default();
        let longest = longest_micros.clone();
        let watching = Background::start(move |is_over| {
            let mut file = tempfile::tempfile().unwrap();
            while !is_over.load(Ordering::Relaxed) {
                let began = Instant::now();
                thread::sleep(PAUSE);
                file.write_all(&[0; 512]).unwrap();
                file.sync_data().unwrap();
                longest.fetch_max(began.elapsed().as_micros() as u64, Ordering::Relaxed);
            }
        });
        Self { longest_micros, _watching: watching }
    }

    /// How long it took at most to pause for a moment and to write a little to the disk.
    pub(crate) fn longest_stall(&self) -> Duration {
        Duration::from_micros(self.longest_micros.load(Ordering::Relaxed))
    }
}
