//! Damaged indexes.

use std::fs;
use std::path::Path;

use grounding::index::{Index, IndexError};

use crate::{Change, Fixture, TestResult};

#[test]
fn a_damaged_index_is_an_error_and_not_an_empty_index() -> TestResult {
    let damage: [(&str, Change); 5] = [
        ("the list is cut off", |folder| {
            let meta = fs::read(folder.join("meta.json"))?;
            fs::write(folder.join("meta.json"), &meta[..meta.len() / 2])
        }),
        ("the list is empty", |folder| fs::write(folder.join("meta.json"), "")),
        ("segments are gone", |folder| each_segment_file(folder, |path| fs::remove_file(path))),
        ("segments are cut off", |folder| {
            each_segment_file(folder, |path| fs::File::options().write(true).open(path)?.set_len(10))
        }),
        ("segments are noise", |folder| {
            each_segment_file(folder, |path| fs::write(path, vec![0xA5; fs::metadata(path)?.len() as usize]))
        }),
    ];
    for (what, damage) in damage {
        let fixture = Fixture::new()?;
        fixture.write("a.txt", "The anchor is heavy.")?;
        fixture.add()?;
        damage(&fixture.index_folder())?;
        let searched = Index::open(&fixture.index_folder()).and_then(|index| match index {
            Some(index) => index.search("anchor", None, 5).map(Some),
            None => Ok(None),
        });
        assert!(matches!(searched, Err(IndexError::Unreadable(_))), "{what}: {searched:?}");
        assert!(fixture.add().is_err(), "{what}");
    }
    Ok(())
}

fn each_segment_file(folder: &Path, change: Change) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending != "json" && ending != "lock") {
            change(&path)?;
        }
    }
    Ok(())
}

#[test]
fn an_index_that_is_deleted_while_it_is_open_is_an_error() -> TestResult {
    let fixture = Fixture::new()?;
    fixture.write("a.txt", "The anchor is heavy.")?;
    fixture.add()?;
    let index = fixture.index()?;
    fs::remove_dir_all(fixture.index_folder())?;
    assert!(matches!(index.search("anchor", None, 5), Err(IndexError::Gone)));
    Ok(())
}

#[test]
fn the_error_for_another_version_has_a_remedy() -> TestResult {
    let fixture = Fixture::new()?;
    fixture.write("a.txt", "The anchor is heavy.")?;
    fixture.add()?;
    let meta = fixture.index_folder().join("meta.json");
    fs::write(&meta, fs::read_to_string(&meta)?.replace("adriaticum index 5", "adriaticum index 4"))?;
    let opened = Index::open(&fixture.index_folder()).map(|index| index.is_some());
    assert!(matches!(opened, Err(IndexError::OtherVersion)), "{opened:?}");
    let added = fixture.add();
    assert!(matches!(added, Err(IndexError::OtherVersion)), "{added:?}");
    assert!(IndexError::OtherVersion.to_string().contains("add your folders again"));
    Ok(())
}
