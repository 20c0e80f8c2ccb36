//! Hashing passwords on few threads. Argon2 needs much memory and time by design. Its working memory is kept, so the
//! number of threads bounds both. Visitors take turns: of each network, only one job at a time waits for a thread.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use argon2::Block;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

const THREADS: usize = 2;

/// Working memory of Argon2. Allocated by a job if there is none and kept: the allocator would not return it anyway.
pub(crate) type Memory = Vec<Block>;

pub(crate) struct HashPool {
    /// The turn of each network with jobs.
    turns: Mutex<HashMap<IpAddr, Arc<Semaphore>>>,
    threads: Arc<Semaphore>,
    /// At most one for each thread.
    memories: Arc<Mutex<Vec<Memory>>>,
}

impl HashPool {
    pub(crate) fn new() -> Self {
        Self { turns: Mutex::default(), threads: Arc::new(Semaphore::new(THREADS)), memories: Arc::default() }
    }

    /// Runs work when it is the network's turn; `None` if it panicked. Work is skipped if its caller has disconnected.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        network: IpAddr,
        work: impl FnOnce(&mut Memory) -> T + Send + 'static,
    ) -> Option<T> {
        let turns = self.turn(network);
        let turn = turns.acquire().await.ok()?;
        let thread = self.threads.clone().acquire_owned().await.ok()?;
        drop(turn);
        let memories = self.memories.clone();
        let job = tokio::task::spawn_blocking(move || {
            let _thread = thread; // also if the caller disconnects meanwhile
            let mut memory = memories.lock().pop().unwrap_or_default();
            let result = work(&mut memory);
            memories.lock().push(memory);
            result
        });
        job.await.inspect_err(|error| tracing::error!(%error, "hashing a password failed")).ok()
    }

    /// Networks without jobs are forgotten.
    fn turn(&self, network: IpAddr) -> Arc<Semaphore> {
        let mut turns = self.turns.lock();
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        turns.entry(network).or_insert_with(|| Arc::new(Semaphore::new(1))).clone()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::future::join_all;

    use super::*;

    fn network(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    #[tokio::test]
    async fn a_visitor_with_one_job_does_not_wait_for_all_of_anothers() {
        let pool = HashPool::new();
        let served = Arc::new(Mutex::new(Vec::new()));
        let job = |network| {
            let served = served.clone();
            move |_: &mut Memory| {
                served.lock().push(network);
                std::thread::sleep(Duration::from_millis(2));
            }
        };
        let networks = std::iter::repeat_n(network(1), 100).chain([network(2)]);
        join_all(networks.map(|network| pool.run(network, job(network)))).await;
        let served = served.lock();
        let position = served.iter().position(|served| *served == network(2)).unwrap();
        assert_eq!(served.len(), 101);
        assert!(position <= 3 * THREADS, "{position}");
    }

    /// In any order of arrival, every job is served, and each visitor's jobs keep their order.
    #[tokio::test]
    async fn a_visitors_jobs_keep_their_order() {
        let pool = HashPool { threads: Arc::new(Semaphore::new(1)), ..HashPool::new() };
        let served = Arc::new(Mutex::new(Vec::new()));
        let jobs = (0..60).map(|number| {
            let served = served.clone();
            pool.run(network(number % 7 % 3), move |_| served.lock().push(number))
        });
        join_all(jobs).await;
        for visitor in 0..3 {
            let of_visitor = |number: &u8| number % 7 % 3 == visitor;
            let numbers: Vec<u8> = served.lock().iter().copied().filter(of_visitor).collect();
            assert_eq!(numbers, (0..60).filter(of_visitor).collect::<Vec<_>>());
        }
    }

    #[tokio::test]
    async fn a_job_that_panics_or_is_given_up_frees_its_thread() {
        let pool = HashPool::new();
        for _ in 0..2 * THREADS {
            assert_eq!(pool.run(network(1), |_| panic!("on purpose")).await, None::<()>);
            let (release, released) = std::sync::mpsc::channel::<()>();
            let slow = pool.run(network(1), move |_| released.recv().is_ok());
            assert!(tokio::time::timeout(Duration::from_millis(2), slow).await.is_err());
            drop(release);
        }
        for _ in 0..2 * THREADS {
            pool.run(network(1), |memory| memory.resize(1, Block::new())).await.unwrap();
        }
        // The last of the jobs that were given up may still run.
        let all = tokio::time::timeout(Duration::from_secs(30), pool.threads.acquire_many(THREADS as u32)).await;
        assert!(all.is_ok(), "every thread is free again");
        assert!(pool.memories.lock().len() <= THREADS);
        assert_eq!(pool.turns.lock().len(), 1);
    }
}
