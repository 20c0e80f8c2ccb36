//! Processes that read documents misbehave: the file is skipped with the reason, and the next one is read. In a separate
//! binary, because a child process briefly inherits the locks of all threads.

use std::fs;
use std::time::{Duration, Instant};

use grounding::index::{AddOptions, AddReport, ChildProgram, Indexer};

type TestResult = Result<(), Box<dyn std::error::Error>>;

/// Adds pages and a text. A shell script replaces the program that reads them.
fn add(pages: usize, script: &str, timeout: Duration) -> Result<AddReport, Box<dyn std::error::Error>> {
    let root = tempfile::tempdir()?;
    let documents = root.path().join("papers");
    fs::create_dir(&documents)?;
    for n in 0..pages {
        fs::write(documents.join(format!("{n}.html")), "<p>The anchor is heavy.")?;
    }
    fs::write(documents.join("a.txt"), "The rudder is light.")?;
    let program = ChildProgram::new("/bin/sh", ["-c", script]).with_timeout(timeout);
    let indexer = Indexer::new(root.path().join("index")).with_child(program);
    Ok(indexer.add(&documents, &AddOptions::default(), &mut |_| ())?)
}

#[test]
fn the_file_of_a_misbehaving_process_is_skipped_with_the_reason() -> TestResult {
    let long = Duration::from_secs(60);
    let cases = [
        // It hangs before or after it has read.
        ("exec /bin/sleep 600", Duration::from_millis(300), "takes too long"),
        ("read line; exec /bin/sleep 600", Duration::from_millis(300), "takes too long"),
        ("kill -ABRT $$", long, "too much memory"),
        ("kill -SEGV $$", long, "damaged"),
        ("exit 0", long, "damaged"),
        // It sends invalid data, or endless data.
        ("exec /bin/cat", long, "damaged"),
        ("exec /usr/bin/yes", long, "damaged"),
        ("printf 'o\\377\\377\\377\\377'; exec /bin/sleep 600", long, "damaged"),
        ("printf 'o\\016\\000\\000\\000{\"Err\":\"late\"}'; exec /bin/cat >/dev/null", Duration::from_secs(2), "late"),
        // It writes more errors than fit into a pipe.
        (
            "/usr/bin/head -c 1000000 /dev/zero >&2; printf 'o\\016\\000\\000\\000{\"Err\":\"late\"}'; exec /bin/cat >/dev/null",
            Duration::from_secs(2),
            "late",
        ),
    ];
    for (script, timeout, reason) in cases {
        let began = Instant::now();
        let report = add(3, script, timeout)?;
        assert_eq!((report.added, report.skipped.len()), (1, 3), "{script}: {report:?}");
        // The last two scripts respond once.
        let first = report.skipped.iter().filter(|(_, skipped_for)| skipped_for.contains(reason)).count();
        assert!(first >= 1, "{script}: {report:?}");
        assert!(began.elapsed() < Duration::from_secs(50), "{script} took {:?}", began.elapsed());
    }
    Ok(())
}

/// The limit of its CPU time is permanent, and the rest must suffice for the next file.
#[test]
fn a_process_with_much_used_cpu_time_is_replaced() -> TestResult {
    let answer = "/bin/sleep 1.1; printf 'o\\016\\000\\000\\000{\"Err\":\"late\"}'";
    let script = format!("{answer}; {answer}; exec /bin/cat >/dev/null");
    let pages = 4 * std::thread::available_parallelism()?.get();
    let report = add(pages, &script, Duration::from_secs(2))?;
    assert!(report.skipped.len() == pages && report.skipped.iter().all(|(_, reason)| reason == "late"), "{report:?}");
    Ok(())
}

#[test]
fn without_the_program_every_page_is_skipped() -> TestResult {
    let root = tempfile::tempdir()?;
    fs::write(root.path().join("a.html"), "<p>The anchor is heavy.")?;
    let program = ChildProgram::new("/no/such/program", [""; 0]);
    let index = tempfile::tempdir()?;
    let indexer = Indexer::new(index.path().join("index")).with_child(program);
    let report = indexer.add(root.path(), &AddOptions::default(), &mut |_| ())?;
    assert!(report.skipped[0].1.contains("no process could be started"), "{report:?}");
    Ok(())
}
