//! Readers and writers at the same time.

use grounding::index::{AddOptions, Index, IndexError};

use crate::{Outcome, Place};

#[test]
fn a_reader_sees_what_another_commits() -> Outcome {
    let place = Place::new()?;
    assert!(Index::open(&place.index_folder())?.is_none());
    assert!(!place.index_folder().exists());
    place.write("a.txt", "The anchor is heavy.")?;
    place.add()?;
    let index = place.index()?;
    for n in 0..5 {
        assert_eq!(index.search("rudder", 9)?.len(), n);
        place.write(&format!("r{n}.txt"), "The rudder is light.")?;
        place.add()?;
    }
    place.indexer().remove(&place.documents())?;
    assert!(index.is_empty()?);
    Ok(())
}

#[test]
fn many_search_while_one_writes() -> Outcome {
    let place = Place::new()?;
    place.write("a.txt", "The anchor is heavy.")?;
    place.add()?;
    let index = place.index()?;
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| -> Outcome {
        let searching: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    while !done.load(std::sync::atomic::Ordering::Relaxed) {
                        let found = index.search("anchor", 5)?;
                        assert!(!found.is_empty(), "a document that is always there is always found");
                    }
                    Ok::<_, IndexError>(())
                })
            })
            .collect();
        for n in 0..8 {
            place.write(&format!("r{n}.txt"), "The rudder is light.")?;
            place.add()?;
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        for thread in searching {
            thread.join().map_err(|_| "a search panicked")??;
        }
        Ok(())
    })
}

#[test]
fn the_second_of_two_writers_is_told_so() -> Outcome {
    let place = Place::new()?;
    place.write("a.txt", "The anchor is heavy.")?;
    let mut second = None;
    place.indexer().add(&place.documents(), &AddOptions::default(), &mut |_| {
        second = Some((place.add(), place.indexer().remove(&place.documents()), place.indexer().list()));
    })?;
    let (add, remove, list) = second.ok_or("no progress")?;
    assert!(matches!(add, Err(IndexError::Busy)), "{add:?}");
    assert!(matches!(remove, Err(IndexError::Busy)), "{remove:?}");
    assert!(list.is_ok(), "looking is always possible");
    assert!(IndexError::Busy.to_string().contains("another `index` command is running"));
    assert_eq!(place.counts()?, [0, 0, 1, 0, 0], "and the first is not disturbed");
    Ok(())
}
