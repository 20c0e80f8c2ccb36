//! A process is killed while it adds to the index. In a separate binary, because a child process briefly inherits the
//! locks of all threads, and tests of other writers would find them held.

use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use grounding::index::{AddOptions, Index, Indexer};

type TestResult = Result<(), Box<dyn Error>>;

/// The process that the other test starts and kills.
#[test]
#[ignore = "not a test: the other test starts it as a process and kills it"]
fn add_until_killed() -> TestResult {
    let (Some(index), Some(documents)) = (std::env::var_os("INDEX"), std::env::var_os("DOCUMENTS")) else {
        return Ok(());
    };
    Indexer::new(index).add(Path::new(&documents), &AddOptions::default(), &mut |progress| {
        if progress.done * 2 > progress.total {
            // Stops in the middle.
            println!("half");
            loop {
                std::thread::park();
            }
        }
    })?;
    Ok(())
}

#[test]
fn a_killed_run_leaves_a_valid_index_and_no_lock() -> TestResult {
    let root = tempfile::tempdir()?;
    let (documents, folder) = (root.path().join("papers"), root.path().join("index"));
    fs::create_dir(&documents)?;
    fs::write(documents.join("a.txt"), "The anchor is heavy.")?;
    let indexer = Indexer::new(&folder);
    indexer.add(&documents, &AddOptions::default(), &mut |_| ())?;
    for n in 0..40 {
        fs::write(documents.join(format!("{n}.txt")), "The rudder is light.")?;
    }
    let mut child = Command::new(std::env::current_exe()?)
        .args(["--ignored", "--exact", "add_until_killed", "--nocapture"])
        .env("INDEX", &folder)
        .env("DOCUMENTS", &documents)
        .stdout(Stdio::piped())
        .spawn()?;
    let output = BufReader::new(child.stdout.take().ok_or("no output")?);
    let half = output.lines().map_while(Result::ok).any(|line| line.contains("half"));
    let busy = indexer.add(&documents, &AddOptions::default(), &mut |_| ());
    child.kill()?;
    child.wait()?;
    assert!(half, "it was killed in the middle");
    assert!(matches!(busy, Err(grounding::index::IndexError::Busy)), "{busy:?}");

    let index = Index::open(&folder)?.ok_or("the index is gone")?;
    assert_eq!(index.search("anchor", None, 5)?.len(), 1);
    let report = indexer.add(&documents, &AddOptions::default(), &mut |_| ())?;
    assert_eq!((report.added, report.unchanged), (40, 1));
    assert_eq!(index.search("rudder", None, 99)?.len(), 40);
    Ok(())
}
