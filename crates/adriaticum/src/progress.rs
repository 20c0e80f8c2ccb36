//! How far something long is: a bar on a terminal, a line now and then elsewhere; always on stderr.

use std::io::{IsTerminal, Write};

use indicatif::{DecimalBytes, HumanCount, ProgressBar, ProgressStyle};

/// What is counted.
#[derive(Clone, Copy)]
pub(crate) enum Unit {
    Bytes,
    Files,
    Rows,
}

impl Unit {
    fn template(self) -> &'static str {
        match self {
            Self::Bytes => "{msg} {wide_bar} {decimal_bytes} of {decimal_total_bytes}, {decimal_bytes_per_sec}, {eta}",
            Self::Files => "{msg} {wide_bar} {human_pos} of {human_len} files, {eta}",
            Self::Rows => "{msg} {wide_bar} {human_pos} of {human_len} rows, {eta}",
        }
    }

    fn show(self, count: u64) -> String {
        match self {
            Self::Bytes => DecimalBytes(count).to_string(),
            Self::Files if count == 1 => "1 file".into(),
            Self::Files => format!("{} files", HumanCount(count)),
            Self::Rows if count == 1 => "1 row".into(),
            Self::Rows => format!("{} rows", HumanCount(count)),
        }
    }
}

/// Something under way. What it shows on a terminal is gone when it ends.
pub(crate) struct Progress {
    what: String,
    unit: Unit,
    total: u64,
    shown: Shown,
}

enum Shown {
    Bar(ProgressBar),
    /// The tenths of the whole that have been told.
    Tenths(u64),
}

impl Progress {
    /// So much to do, of which some may be done already.
    pub(crate) fn new(what: &str, unit: Unit, total: u64, there: u64) -> Self {
        if there > 0 {
            note(&format!("{what}: {} of {} are there already.", unit.show(there), unit.show(total)));
        }
        let shown = if std::io::stderr().is_terminal() {
            let style = ProgressStyle::with_template(unit.template()).expect("the template is well-formed");
            let bar = ProgressBar::new(total).with_style(style).with_message(what.to_owned()).with_position(there);
            bar.reset_eta();
            Shown::Bar(bar)
        } else {
            Shown::Tenths(tenths(there, total))
        };
        Self { what: what.to_owned(), unit, total, shown }
    }

    /// So much is done now.
    pub(crate) fn at(&mut self, done: u64) {
        match &mut self.shown {
            Shown::Bar(bar) => bar.set_position(done),
            Shown::Tenths(told) => {
                let now = tenths(done, self.total);
                if now > *told {
                    let (done, total) = (self.unit.show(done), self.unit.show(self.total));
                    note(&format!("{}: {} %, {done} of {total}", self.what, now * 10));
                }
                *told = now;
            }
        }
    }
}

/// Tells the person at the terminal something in passing.
pub(crate) fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}"); // if nobody listens, the work goes on
}

fn tenths(done: u64, total: u64) -> u64 {
    done.saturating_mul(10).checked_div(total).unwrap_or(0)
}
