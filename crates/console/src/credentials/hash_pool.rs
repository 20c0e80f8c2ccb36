//! The threads that hash passwords. Argon2 needs much memory and time by design. Each thread keeps its working memory,
//! so the number of threads bounds both. Visitors take turns.

use std::net::IpAddr;
use std::sync::Arc;

use argon2::Block;
use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use crate::credentials::SignInAttempt;
use crate::credentials::round_robin::RoundRobin;

const THREADS: usize = 2;

/// Working memory of Argon2. Allocated by a thread's first job and kept: the allocator would not return it anyway.
pub(crate) type Memory = Vec<Block>;

type Job = Box<dyn FnOnce(&mut Memory) + Send>;

pub(crate) struct HashPool(Arc<Queue>);

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    queue: RoundRobin<IpAddr, Job>,
    is_closed: bool,
}

impl HashPool {
    pub(crate) fn start() -> std::io::Result<Self> {
        let pool = Self(Arc::default());
        for number in 0..THREADS {
            let queue = pool.0.clone();
            std::thread::Builder::new().name(format!("password-{number}")).spawn(move || queue.run())?;
        }
        Ok(pool)
    }

    /// Runs work when it is the visitor's turn; `None` if it panicked. Work is skipped if its caller has disconnected.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        attempt: &SignInAttempt<'_>,
        work: impl FnOnce(&mut Memory) -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, result) = oneshot::channel();
        let job = move |memory: &mut Memory| {
            if !sender.is_closed() {
                let _ = sender.send(work(memory)); // fails if the caller has disconnected meanwhile
            }
        };
        self.0.state.lock().queue.push(attempt.network(), Box::new(job));
        self.0.changed.notify_one();
        result.await.ok()
    }
}

impl Drop for HashPool {
    fn drop(&mut self) {
        self.0.state.lock().is_closed = true;
        self.0.changed.notify_all();
    }
}

impl Queue {
    fn run(&self) {
        let mut memory = Memory::new();
        while let Some(job) = self.next() {
            let run = std::panic::AssertUnwindSafe(|| job(&mut memory));
            if std::panic::catch_unwind(run).is_err() {
                tracing::error!("hashing a password panicked");
            }
        }
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(job) = state.queue.pop() {
                return Some(job);
            }
            self.changed.wait(&mut state);
        }
    }
}
