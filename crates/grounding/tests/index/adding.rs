//! Which files are indexed, and which are not.

use std::fs;
use std::path::Path;

use grounding::index::{AddOptions, IndexError, Progress};

use crate::{Fixture, TestResult, pdf};

#[test]
fn only_changed_files_are_read_again() -> TestResult {
    let fixture = Fixture::new()?;
    fixture.write("keep.txt", "The anchor is heavy.")?;
    fixture.write("edit.txt", "The rudder is wooden.")?;
    fixture.write("sub/drop.txt", "The mast is broken.")?;
    assert_eq!(fixture.add_counts()?, [3, 0, 0, 0, 0]);
    assert_eq!(fixture.add_counts()?, [0, 0, 3, 0, 0]);

    // The same size shortly afterwards: only the contents differ.
    fixture.write("edit.txt", "The keel is all iron.")?;
    fs::remove_file(fixture.documents().join("sub/drop.txt"))?;
    fixture.write("new.txt", "The winch is greased.")?;
    assert_eq!(fixture.add_counts()?, [1, 1, 1, 1, 0]);
    assert_eq!(fixture.found_urls("rudder")?, [""; 0]);
    assert_eq!(fixture.found_urls("mast")?, [""; 0]);
    assert_eq!(fixture.found_urls("keel")?, ["local:papers/edit.txt"]);
    assert_eq!(fixture.found_urls("winch")?, ["local:papers/new.txt"]);

    // Touched, with the same contents.
    fs::File::options().append(true).open(fixture.documents().join("keep.txt"))?.set_modified(std::time::UNIX_EPOCH)?;
    assert_eq!(fixture.add_counts()?, [0, 0, 3, 0, 0]);
    assert_eq!(fixture.found_urls("anchor")?, ["local:papers/keep.txt"]);
    Ok(())
}

#[test]
fn a_file_with_an_unchanged_modification_time_is_not_even_opened() -> TestResult {
    let fixture = Fixture::new()?;
    fixture.write("a.txt", "The anchor is heavy.")?;
    let settle = || {
        fs::File::options().append(true).open(fixture.documents().join("a.txt"))?.set_modified(std::time::UNIX_EPOCH)
    };
    settle()?;
    assert_eq!(fixture.add_counts()?, [1, 0, 0, 0, 0]);
    // An artificial case, which shows that the file is not read.
    fixture.write("a.txt", "The rudder is gone!!")?;
    settle()?;
    assert_eq!(fixture.add_counts()?, [0, 0, 1, 0, 0]);
    assert_eq!(fixture.found_urls("rudder")?, [""; 0]);
    Ok(())
}

#[test]
fn unreadable_files_are_skipped_with_a_reason() -> TestResult {
    let fixture = Fixture::new()?;
    fixture.write("good.txt", "The anchor is heavy.")?;
    fixture.write("binary.txt", b"\x7FELF\x02\x01\x01\0\0\0\0\0\0")?;
    fixture.write("empty.md", "\n\n")?;
    fixture.write("noise.pdf", b"%PDF-1.4\nnothing of the kind")?;
    let whole = pdf::document("T", "D:2022", &["The compressor weighs 90 kilograms."]);
    fixture.write("half.pdf", &whole[..whole.len() / 2])?;
    fixture.write("locked.pdf", pdf::locked())?;
    fixture.write("huge.txt", "")?;
    fs::File::options().write(true).open(fixture.documents().join("huge.txt"))?.set_len(65 * 1024 * 1024)?;
    let report = fixture.add()?;
    assert_eq!((report.added, report.passages), (1, 1));
    let mut reasons: Vec<_> = report
        .skipped
        .iter()
        .map(|(path, reason)| (path.file_name().unwrap_or_default().to_string_lossy().into_owned(), reason.as_str()))
        .collect();
    reasons.sort_unstable();
    let reason = |name: &str| reasons.iter().find(|(skipped, _)| skipped == name).map_or("", |(_, reason)| *reason);
    assert_eq!(reasons.len(), 6, "{reasons:?}");
    assert!(reason("binary.txt").contains("binary"), "{reasons:?}");
    assert!(reason("empty.md").contains("no text"), "{reasons:?}");
    assert!(reason("noise.pdf").contains("damaged"), "{reasons:?}");
    assert!(!reason("half.pdf").is_empty(), "{reasons:?}");
    assert!(reason("locked.pdf").contains("encrypted"), "{reasons:?}");
    assert!(reason("huge.txt").contains("64 MiB"), "{reasons:?}");

    // A file that is no longer readable is no longer found.
    fixture.write("good.txt", b"\0\0\0\0")?;
    assert_eq!(fixture.add_counts()?, [0, 0, 0, 1, 7]);
    assert_eq!(fixture.found_urls("anchor")?, [""; 0]);
    Ok(())
}

#[test]
fn damaged_pdfs_do_not_end_a_run() -> TestResult {
    let fixture = Fixture::new()?;
    let whole = pdf::document("Title", "D:20220304", &["The compressor weighs 90 kilograms.", "And more."]);
    let mut rng = fastrand::Rng::with_seed(1);
    for n in 0..200 {
        let mut damaged = whole.clone();
        for _ in 0..rng.usize(1..12) {
            let at = rng.usize(..damaged.len());
            damaged[at] = rng.u8(..);
        }
        fixture.write(&format!("{n}.pdf"), damaged)?;
    }
    fixture.write("good.txt", "The anchor is heavy.")?;
    let report = fixture.add()?;
    assert_eq!(report.added + report.skipped.len() as u64, 201);
    assert!(!report.skipped.is_empty() && report.added > 1, "{report:?}");
    assert_eq!(fixture.found_urls("anchor")?, ["local:papers/good.txt"]);
    Ok(())
}

#[test]
fn hidden_files_links_and_other_formats_are_skipped() -> TestResult {
    let fixture = Fixture::new()?;
    fixture.write("a.txt", "The anchor is heavy.")?;
    fixture.write(".hidden.txt", "The anchor is hidden.")?;
    fixture.write(".git/b.txt", "The anchor is stored.")?;
    fixture.write("c.rs", "// The anchor is code.")?;
    fixture.write("no_ending", "The anchor is nameless.")?;
    fs::write(fixture.root.path().join("outside.txt"), "The anchor is outside.")?;
    fs::create_dir(fixture.root.path().join("elsewhere"))?;
    fs::write(fixture.root.path().join("elsewhere/d.txt"), "The anchor is elsewhere.")?;
    std::os::unix::fs::symlink(fixture.root.path().join("outside.txt"), fixture.documents().join("link.txt"))?;
    std::os::unix::fs::symlink(fixture.root.path().join("elsewhere"), fixture.documents().join("folder"))?;
    assert_eq!(fixture.add_counts()?, [1, 0, 0, 0, 0]);
    assert_eq!(fixture.found_urls("anchor")?, ["local:papers/a.txt"]);
    Ok(())
}

#[test]
fn urls_do_not_contain_paths_on_this_machine() -> TestResult {
    let fixture = Fixture::new()?;
    fixture.write("Übersicht/a b#c?.txt", "The anchor is heavy.")?;
    fixture.add()?;
    assert_eq!(fixture.found_urls("anchor")?, ["local:papers/%C3%9Cbersicht/a%20b%23c%3F.txt"]);

    let report = fixture.add_with_prefix("https://docs.example/")?;
    assert_eq!(report.changed, 1, "its URL has changed");
    assert_eq!(fixture.found_urls("anchor")?, ["https://docs.example/%C3%9Cbersicht/a%20b%23c%3F.txt"]);
    assert_eq!(fixture.add_counts()?, [0, 0, 1, 0, 0], "the prefix is kept");
    assert_eq!(fixture.add_with_prefix("")?.changed, 1);
    assert!(fixture.found_urls("anchor")?[0].starts_with("local:papers/"));
    Ok(())
}

#[test]
fn folders_are_listed_and_removed() -> TestResult {
    let fixture = Fixture::new()?;
    let other = fixture.root.path().join("letters");
    fs::create_dir(&other)?;
    fs::write(other.join("l.txt"), "The anchor in a letter.")?;
    fixture.write("a.md", "# A\n\nThe anchor is heavy.\n\n# B\n\nThe rudder is light.")?;
    assert_eq!(fixture.indexer().list()?, []);
    assert_eq!(fixture.indexer().remove(&fixture.documents())?, None);
    assert!(!fixture.index_folder().exists(), "read access creates nothing");

    fixture.add()?;
    let options = AddOptions { url_prefix: Some("https://letters.example/".into()) };
    fixture.indexer().add(&other, &options, &mut |_| ())?;
    let listed = fixture.indexer().list()?;
    assert_eq!(listed.len(), 2);
    assert_eq!(listed[0].folder, fs::canonicalize(fixture.documents())?);
    assert_eq!((listed[0].documents, listed[0].passages, listed[0].bytes), (1, 2, 52));
    assert_eq!(listed[0].url_prefix, None);
    assert_eq!(listed[1].url_prefix, options.url_prefix);
    assert!(listed[0].indexed_at <= listed[1].indexed_at);

    assert_eq!(fixture.found_urls("anchor")?.len(), 2);
    fs::remove_dir_all(&other)?;
    assert_eq!(fixture.indexer().remove(&other)?.as_ref(), Some(&listed[1]), "even if the folder no longer exists");
    assert_eq!(fixture.indexer().list()?, listed[..1]);
    assert_eq!(fixture.found_urls("anchor")?, ["local:papers/a.md"]);
    assert!(!fixture.index()?.is_empty()?);
    fixture.indexer().remove(&fixture.documents())?;
    assert!(fixture.index()?.is_empty()?);
    assert_eq!(fixture.found_urls("anchor")?, [""; 0]);
    Ok(())
}

#[test]
fn folders_that_overlap_or_are_missing_are_refused() -> TestResult {
    let fixture = Fixture::new()?;
    fixture.write("sub/a.txt", "The anchor is heavy.")?;
    fixture.add()?;
    let add = |folder: &Path| fixture.indexer().add(folder, &AddOptions::default(), &mut |_| ());
    assert!(matches!(add(&fixture.documents().join("sub")), Err(IndexError::Overlaps { .. })));
    assert!(matches!(add(fixture.root.path()), Err(IndexError::Overlaps { .. })));
    assert!(matches!(add(&fixture.root.path().join("no")), Err(IndexError::NoSuchFolder { .. })));
    assert!(matches!(add(&fixture.documents().join("sub/a.txt")), Err(IndexError::NoSuchFolder { .. })));
    assert_eq!(fixture.found_urls("anchor")?.len(), 1);
    Ok(())
}

#[test]
fn progress_is_reported_up_to_the_end() -> TestResult {
    let fixture = Fixture::new()?;
    for n in 0..10 {
        fixture.write(&format!("{n}.txt"), "The anchor is heavy.")?;
    }
    let mut reports = Vec::new();
    fixture.indexer().add(&fixture.documents(), &AddOptions::default(), &mut |progress| reports.push(progress))?;
    assert!(reports.is_sorted_by_key(|progress| (progress.done, progress.passages)), "{reports:?}");
    assert_eq!(reports.last(), Some(&Progress { done: 10, total: 10, passages: 10 }));
    Ok(())
}
