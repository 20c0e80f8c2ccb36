//! A process that adds to the index and is killed. In a file of its own: whoever starts a process shares the locks of
//! all threads with it for a moment, and the tests of writers beside this one would see them held.

use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use grounding::index::{AddOptions, Index, Indexer};

type Outcome = Result<(), Box<dyn Error>>;

/// Not a test of its own: what the other one starts as another process, to be killed.
#[test]
#[ignore = "started by another test"]
fn add_until_killed() -> Outcome {
    let (Some(index), Some(documents)) = (std::env::var_os("INDEX"), std::env::var_os("DOCUMENTS")) else {
        return Ok(());
    };
    Indexer::new(index).add(Path::new(&documents), &AddOptions::default(), &mut |progress| {
        if progress.done * 2 > progress.total {
            // Half of it is read, and nothing more will be.
            println!("half");
            loop {
                std::thread::park();
            }
        }
    })?;
    Ok(())
}

#[test]
fn a_killed_run_leaves_a_valid_index_and_no_lock() -> Outcome {
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
    assert_eq!(index.search("anchor", 5)?.len(), 1);
    let report = indexer.add(&documents, &AddOptions::default(), &mut |_| ())?;
    assert_eq!((report.added, report.unchanged), (40, 1));
    assert_eq!(index.search("rudder", 99)?.len(), 40);
    Ok(())
}
