//! How far a transfer is: a bar on a terminal, a line now and then elsewhere; always on stderr.

use std::io::{IsTerminal, Write};

use indicatif::{DecimalBytes, ProgressBar, ProgressStyle};

/// A transfer under way. What it shows on a terminal is gone when it ends.
pub(super) struct Progress {
    what: String,
    total: u64,
    shown: Shown,
}

enum Shown {
    Bar(ProgressBar),
    /// The tenths of the whole that have been told.
    Tenths(u64),
}

impl Progress {
    /// A transfer of so many bytes, of which some may be there already.
    pub(super) fn new(what: &str, total: u64, there: u64) -> Self {
        if there > 0 {
            note(&format!("{what}: {} of {} are there already.", DecimalBytes(there), DecimalBytes(total)));
        }
        let shown = if std::io::stderr().is_terminal() {
            let template = "{msg} {wide_bar} {decimal_bytes} of {decimal_total_bytes}, {decimal_bytes_per_sec}, {eta}";
            let style = ProgressStyle::with_template(template).expect("the template is well-formed");
            let bar = ProgressBar::new(total).with_style(style).with_message(what.to_owned()).with_position(there);
            bar.reset_eta();
            Shown::Bar(bar)
        } else {
            Shown::Tenths(tenths(there, total))
        };
        Self { what: what.to_owned(), total, shown }
    }

    /// So many bytes are there now.
    pub(super) fn at(&mut self, bytes: u64) {
        match &mut self.shown {
            Shown::Bar(bar) => bar.set_position(bytes),
            Shown::Tenths(told) => {
                let now = tenths(bytes, self.total);
                if now > *told {
                    note(&format!(
                        "{}: {} %, {} of {}",
                        self.what,
                        now * 10,
                        DecimalBytes(bytes),
                        DecimalBytes(self.total)
                    ));
                }
                *told = now;
            }
        }
    }
}

/// Tells the person at the terminal something in passing.
pub(super) fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}"); // if nobody listens, the work goes on
}

fn tenths(bytes: u64, total: u64) -> u64 {
    bytes.saturating_mul(10).checked_div(total).unwrap_or(0)
}
