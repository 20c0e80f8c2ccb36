//! What goes into the index, and what does not.

use std::fs;
use std::path::Path;

use grounding::index::{AddOptions, IndexError, Progress};

use crate::{Outcome, Place, pdf};

#[test]
fn only_what_changed_is_read_again() -> Outcome {
    let place = Place::new()?;
    place.write("keep.txt", "The anchor is heavy.")?;
    place.write("edit.txt", "The rudder is wooden.")?;
    place.write("sub/drop.txt", "The mast is broken.")?;
    assert_eq!(place.counts()?, [3, 0, 0, 0, 0]);
    assert_eq!(place.counts()?, [0, 0, 3, 0, 0]);

    // As long as before, a moment later: only its contents tell.
    place.write("edit.txt", "The keel is all iron.")?;
    fs::remove_file(place.documents().join("sub/drop.txt"))?;
    place.write("new.txt", "The winch is greased.")?;
    assert_eq!(place.counts()?, [1, 1, 1, 1, 0]);
    assert_eq!(place.found("rudder")?, [""; 0]);
    assert_eq!(place.found("mast")?, [""; 0]);
    assert_eq!(place.found("keel")?, ["local:papers/edit.txt"]);
    assert_eq!(place.found("winch")?, ["local:papers/new.txt"]);

    // Only touched: it says what it said.
    fs::File::options().append(true).open(place.documents().join("keep.txt"))?.set_modified(std::time::UNIX_EPOCH)?;
    assert_eq!(place.counts()?, [0, 0, 3, 0, 0]);
    assert_eq!(place.found("anchor")?, ["local:papers/keep.txt"]);
    Ok(())
}

#[test]
fn a_file_that_has_settled_is_not_even_opened() -> Outcome {
    let place = Place::new()?;
    place.write("a.txt", "The anchor is heavy.")?;
    let settle =
        || fs::File::options().append(true).open(place.documents().join("a.txt"))?.set_modified(std::time::UNIX_EPOCH);
    settle()?;
    assert_eq!(place.counts()?, [1, 0, 0, 0, 0]);
    // Nobody does this, but it shows that the file is not read.
    place.write("a.txt", "The rudder is gone!!")?;
    settle()?;
    assert_eq!(place.counts()?, [0, 0, 1, 0, 0]);
    assert_eq!(place.found("rudder")?, [""; 0]);
    Ok(())
}

#[test]
fn what_cannot_be_read_is_skipped_with_a_reason() -> Outcome {
    let place = Place::new()?;
    place.write("good.txt", "The anchor is heavy.")?;
    place.write("binary.txt", b"\x7FELF\x02\x01\x01\0\0\0\0\0\0")?;
    place.write("empty.md", "\n\n")?;
    place.write("noise.pdf", b"%PDF-1.4\nnothing of the kind")?;
    let whole = pdf::document("T", "D:2022", &["The compressor weighs 90 kilograms."]);
    place.write("half.pdf", &whole[..whole.len() / 2])?;
    place.write("locked.pdf", pdf::locked())?;
    place.write("huge.txt", "")?;
    fs::File::options().write(true).open(place.documents().join("huge.txt"))?.set_len(65 * 1024 * 1024)?;
    let report = place.add()?;
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

    // What was readable once and is not any more is no longer found.
    place.write("good.txt", b"\0\0\0\0")?;
    assert_eq!(place.counts()?, [0, 0, 0, 1, 7]);
    assert_eq!(place.found("anchor")?, [""; 0]);
    Ok(())
}

#[test]
fn damage_of_any_kind_to_a_pdf_ends_nothing() -> Outcome {
    let place = Place::new()?;
    let whole = pdf::document("Title", "D:20220304", &["The compressor weighs 90 kilograms.", "And more."]);
    let mut rng = fastrand::Rng::with_seed(1);
    for n in 0..200 {
        let mut damaged = whole.clone();
        for _ in 0..rng.usize(1..12) {
            let at = rng.usize(..damaged.len());
            damaged[at] = rng.u8(..);
        }
        place.write(&format!("{n}.pdf"), damaged)?;
    }
    place.write("good.txt", "The anchor is heavy.")?;
    let report = place.add()?;
    assert_eq!(report.added + report.skipped.len() as u64, 201);
    assert!(!report.skipped.is_empty() && report.added > 1, "{report:?}");
    assert_eq!(place.found("anchor")?, ["local:papers/good.txt"]);
    Ok(())
}

#[test]
fn hidden_files_links_and_other_formats_are_passed_by() -> Outcome {
    let place = Place::new()?;
    place.write("a.txt", "The anchor is heavy.")?;
    place.write(".hidden.txt", "The anchor is hidden.")?;
    place.write(".git/b.txt", "The anchor is stored.")?;
    place.write("c.rs", "// The anchor is code.")?;
    place.write("no_ending", "The anchor is nameless.")?;
    fs::write(place.root.path().join("outside.txt"), "The anchor is outside.")?;
    fs::create_dir(place.root.path().join("elsewhere"))?;
    fs::write(place.root.path().join("elsewhere/d.txt"), "The anchor is elsewhere.")?;
    std::os::unix::fs::symlink(place.root.path().join("outside.txt"), place.documents().join("link.txt"))?;
    std::os::unix::fs::symlink(place.root.path().join("elsewhere"), place.documents().join("folder"))?;
    assert_eq!(place.counts()?, [1, 0, 0, 0, 0]);
    assert_eq!(place.found("anchor")?, ["local:papers/a.txt"]);
    Ok(())
}

#[test]
fn addresses_say_nothing_about_the_machine() -> Outcome {
    let place = Place::new()?;
    place.write("Übersicht/a b#c?.txt", "The anchor is heavy.")?;
    place.add()?;
    assert_eq!(place.found("anchor")?, ["local:papers/%C3%9Cbersicht/a%20b%23c%3F.txt"]);

    let report = place.add_with_prefix("https://docs.example/")?;
    assert_eq!(report.changed, 1, "it is found under another address");
    assert_eq!(place.found("anchor")?, ["https://docs.example/%C3%9Cbersicht/a%20b%23c%3F.txt"]);
    assert_eq!(place.counts()?, [0, 0, 1, 0, 0], "the prefix is kept");
    assert_eq!(place.add_with_prefix("")?.changed, 1);
    assert!(place.found("anchor")?[0].starts_with("local:papers/"));
    Ok(())
}

#[test]
fn folders_are_listed_and_removed() -> Outcome {
    let place = Place::new()?;
    let other = place.root.path().join("letters");
    fs::create_dir(&other)?;
    fs::write(other.join("l.txt"), "The anchor in a letter.")?;
    place.write("a.md", "# A\n\nThe anchor is heavy.\n\n# B\n\nThe rudder is light.")?;
    assert_eq!(place.indexer().list()?, []);
    assert_eq!(place.indexer().remove(&place.documents())?, None);
    assert!(!place.index_folder().exists(), "looking creates nothing");

    place.add()?;
    let options = AddOptions { url_prefix: Some("https://letters.example/".into()) };
    place.indexer().add(&other, &options, &mut |_| ())?;
    let listed = place.indexer().list()?;
    assert_eq!(listed.len(), 2);
    assert_eq!(listed[0].folder, fs::canonicalize(place.documents())?);
    assert_eq!((listed[0].documents, listed[0].passages, listed[0].bytes), (1, 2, 52));
    assert_eq!(listed[0].url_prefix, None);
    assert_eq!(listed[1].url_prefix, options.url_prefix);
    assert!(listed[0].indexed_at <= listed[1].indexed_at);

    assert_eq!(place.found("anchor")?.len(), 2);
    fs::remove_dir_all(&other)?;
    assert_eq!(place.indexer().remove(&other)?.as_ref(), Some(&listed[1]), "even when the folder is gone");
    assert_eq!(place.indexer().list()?, listed[..1]);
    assert_eq!(place.found("anchor")?, ["local:papers/a.md"]);
    assert!(!place.index()?.is_empty()?);
    place.indexer().remove(&place.documents())?;
    assert!(place.index()?.is_empty()?);
    assert_eq!(place.found("anchor")?, [""; 0]);
    Ok(())
}

#[test]
fn folders_that_overlap_or_are_missing_are_refused() -> Outcome {
    let place = Place::new()?;
    place.write("sub/a.txt", "The anchor is heavy.")?;
    place.add()?;
    let add = |folder: &Path| place.indexer().add(folder, &AddOptions::default(), &mut |_| ());
    assert!(matches!(add(&place.documents().join("sub")), Err(IndexError::Overlaps { .. })));
    assert!(matches!(add(place.root.path()), Err(IndexError::Overlaps { .. })));
    assert!(matches!(add(&place.root.path().join("no")), Err(IndexError::NoSuchFolder { .. })));
    assert!(matches!(add(&place.documents().join("sub/a.txt")), Err(IndexError::NoSuchFolder { .. })));
    assert_eq!(place.found("anchor")?.len(), 1);
    Ok(())
}

#[test]
fn progress_is_told_up_to_the_end() -> Outcome {
    let place = Place::new()?;
    for n in 0..10 {
        place.write(&format!("{n}.txt"), "The anchor is heavy.")?;
    }
    let mut told = Vec::new();
    place.indexer().add(&place.documents(), &AddOptions::default(), &mut |progress| told.push(progress))?;
    assert!(told.is_sorted_by_key(|progress| (progress.done, progress.passages)), "{told:?}");
    assert_eq!(told.last(), Some(&Progress { done: 10, total: 10, passages: 10 }));
    Ok(())
}
