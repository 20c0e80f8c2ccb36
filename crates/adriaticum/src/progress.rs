//! Progress of a long command on standard error: a bar on a terminal, otherwise a line for every tenth.

use std::io::IsTerminal;

use indicatif::{DecimalBytes, HumanCount, ProgressBar, ProgressStyle};

use crate::output::print_note;

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

/// The bar is cleared when this is dropped.
pub(crate) struct ProgressOutput {
    what: String,
    unit: Unit,
    total: u64,
    output: Output,
}

enum Output {
    Bar(ProgressBar),
    /// The number of tenths that have been printed.
    Lines(u64),
}

impl ProgressOutput {
    /// `start` of `total` units are done already.
    pub(crate) fn new(what: &str, unit: Unit, total: u64, start: u64) -> Self {
        if start > 0 {
            print_note(&format!("{what}: {} of {} are there already.", unit.show(start), unit.show(total)));
        }
        let output = if std::io::stderr().is_terminal() {
            let style = ProgressStyle::with_template(unit.template()).expect("the template is well-formed");
            let bar = ProgressBar::new(total).with_style(style).with_message(what.to_owned()).with_position(start);
            bar.reset_eta();
            Output::Bar(bar)
        } else {
            Output::Lines(tenths(start, total))
        };
        Self { what: what.to_owned(), unit, total, output }
    }

    pub(crate) fn set(&mut self, done: u64) {
        match &mut self.output {
            Output::Bar(bar) => bar.set_position(done),
            Output::Lines(printed) => {
                let now = tenths(done, self.total);
                if now > *printed {
                    let (done, total) = (self.unit.show(done), self.unit.show(self.total));
                    print_note(&format!("{}: {} %, {done} of {total}", self.what, now * 10));
                }
                *printed = now;
            }
        }
    }
}

fn tenths(done: u64, total: u64) -> u64 {
    done.saturating_mul(10).checked_div(total).unwrap_or(0)
}
