//! Random choices that can be repeated.

pub use fastrand::Rng;

/// A generator with the seed in `TEST_SEED`, otherwise with a new one, which is printed so that a failed test shows it.
pub fn seeded_rng() -> Rng {
    let seed = match std::env::var("TEST_SEED") {
        Ok(seed) => seed.parse().expect("TEST_SEED is a number"),
        Err(_) => fastrand::u64(..),
    };
    println!("TEST_SEED={seed} repeats the random choices of this test");
    Rng::with_seed(seed)
}
