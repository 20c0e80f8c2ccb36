//! Concurrent readers and writers.

use grounding::index::{AddOptions, Index, IndexError};

use crate::{Fixture, TestResult};

#[test]
fn a_reader_sees_commits_of_a_writer() -> TestResult {
    let fixture = Fixture::new()?;
    assert!(Index::open(&fixture.index_folder())?.is_none());
    assert!(!fixture.index_folder().exists());
    fixture.write("a.txt", "The anchor is heavy.")?;
    fixture.add()?;
    let index = fixture.index()?;
    for n in 0..5 {
        assert_eq!(index.search("rudder", None, 9)?.len(), n);
        fixture.write(&format!("r{n}.txt"), "The rudder is light.")?;
        fixture.add()?;
    }
    fixture.indexer().remove(&fixture.documents())?;
    assert!(index.is_empty()?);
    Ok(())
}

#[test]
fn searches_work_during_writes() -> TestResult {
    let fixture = Fixture::new()?;
    fixture.write("a.txt", "The anchor is heavy.")?;
    fixture.add()?;
    let index = fixture.index()?;
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| -> TestResult {
        let searching: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    while !done.load(std::sync::atomic::Ordering::Relaxed) {
                        let found = index.search("anchor", None, 5)?;
                        assert!(!found.is_empty(), "an unchanged document is always found");
                    }
                    Ok::<_, IndexError>(())
                })
            })
            .collect();
        for n in 0..8 {
            fixture.write(&format!("r{n}.txt"), "The rudder is light.")?;
            fixture.add()?;
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        for thread in searching {
            thread.join().map_err(|_| "a search panicked")??;
        }
        Ok(())
    })
}

#[test]
fn the_second_of_two_writers_gets_an_error() -> TestResult {
    let fixture = Fixture::new()?;
    fixture.write("a.txt", "The anchor is heavy.")?;
    let mut second = None;
    fixture.indexer().add(&fixture.documents(), &AddOptions::default(), &mut |_| {
        second = Some((fixture.add(), fixture.indexer().remove(&fixture.documents()), fixture.indexer().list()));
    })?;
    let (add, remove, list) = second.ok_or("no progress")?;
    assert!(matches!(add, Err(IndexError::Busy)), "{add:?}");
    assert!(matches!(remove, Err(IndexError::Busy)), "{remove:?}");
    assert!(list.is_ok(), "read access is always possible");
    assert!(IndexError::Busy.to_string().contains("another `index` command is running"));
    assert_eq!(fixture.add_counts()?, [0, 0, 1, 0, 0], "the first writer is not affected");
    Ok(())
}
