//! Detects stalls of a shared machine, which are no fault of the program: a nearly idle thread measures its own delays.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::Background;

const ATTEMPTS: usize = 3;
const PAUSE: Duration = Duration::from_millis(5);
const STOOD_STILL: Duration = Duration::from_millis(250);

/// Measures times with strict bounds. Bad times are measured again, three times in all, if the machine stalled meanwhile;
/// without a stall they are returned as the error.
pub fn measure<T>(is_good: impl Fn(&T) -> bool, mut once: impl FnMut() -> T) -> Result<T, T> {
    let mut attempts = 0;
    loop {
        let machine = MachineWatch::start();
        let measured = once();
        attempts += 1;
        if is_good(&measured) {
            return Ok(measured);
        }
        let stall = machine.longest_stall();
        if stall < STOOD_STILL || attempts == ATTEMPTS {
            return Err(measured);
        }
        println!("the machine stalled for {stall:?}");
    }
}

struct MachineWatch {
    longest_micros: Arc<AtomicU64>,
    _watching: Background,
}

impl MachineWatch {
    fn start() -> Self {
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

    /// The longest time that one pause and one small write to the disk took.
    fn longest_stall(&self) -> Duration {
        Duration::from_micros(self.longest_micros.load(Ordering::Relaxed))
    }
}
