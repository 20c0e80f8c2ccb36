//! Background threads of tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// A thread that runs until this is dropped: also when the test fails, which would otherwise wait for it forever.
pub struct Background {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    pub fn start(work: impl FnOnce(&AtomicBool) + Send + 'static) -> Self {
        let is_over = Arc::<AtomicBool>::default();
        let thread = thread::spawn({
            let is_over = is_over.clone();
            move || work(&is_over)
        });
        Self { is_over, thread: Some(thread) }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        if !thread::panicking() {
            ended.transpose().unwrap();
        }
    }
}

/// Sets a flag when it is dropped. For threads of a scope that run until then: a scope waits for them even if the test
/// fails.
pub struct EndOnDrop<'a>(pub &'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
