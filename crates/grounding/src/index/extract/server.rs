//! The child process: reads documents from its standard input, one after another, under limits that it sets before it
//! reads the first byte.

use std::io::{self, Read, Write};
use std::thread;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::message::{read_file, write_outcome};
use super::{EXTRACT_TIMEOUT, STACK_BYTES, read_caught};

/// Heap and stacks. Not address space, of which an allocator may reserve more than it uses.
const MAX_MEMORY_BYTES: u64 = 768 << 20;

/// Reads documents until the input ends. A document that exceeds a limit ends the process.
pub fn serve() -> io::Result<()> {
    limit(Resource::Data, MAX_MEMORY_BYTES)?;
    // The parent has a timeout, and replaces a process that has been busy that long. This limit holds without the parent.
    limit(Resource::Cpu, 2 * EXTRACT_TIMEOUT.as_secs())?;
    limit(Resource::Core, 0)?;
    let reader = thread::Builder::new().name("document".into()).stack_size(STACK_BYTES);
    let reader = reader.spawn(|| answer(&mut io::stdin().lock(), &mut io::stdout().lock()))?;
    reader.join().unwrap_or(Err(io::ErrorKind::Other.into()))
}

fn answer(input: &mut impl Read, output: &mut impl Write) -> io::Result<()> {
    while let Some((format, bytes)) = read_file(input)? {
        write_outcome(output, &read_caught(format, &bytes))?;
    }
    Ok(())
}

/// Sets a permanent limit: the process cannot raise it. Never above the present limit.
fn limit(resource: Resource, value: u64) -> io::Result<()> {
    let value = getrlimit(resource).maximum.map_or(value, |maximum| maximum.min(value));
    Ok(setrlimit(resource, Rlimit { current: Some(value), maximum: Some(value) })?)
}
