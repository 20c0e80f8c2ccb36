//! How well verdicts agree with labels: precision, recall and F1, in all, by language and by category.

use std::collections::BTreeMap;
use std::fmt;

/// Verdicts against labels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConfusionMatrix {
    right_yes: u32,
    wrong_yes: u32,
    wrong_no: u32,
    right_no: u32,
}

impl ConfusionMatrix {
    /// Counts one more.
    pub fn add(&mut self, label: bool, verdict: bool) {
        *match (label, verdict) {
            (true, true) => &mut self.right_yes,
            (false, true) => &mut self.wrong_yes,
            (true, false) => &mut self.wrong_no,
            (false, false) => &mut self.right_no,
        } += 1;
    }

    /// How many of those that were said to need facts do.
    pub fn precision(&self) -> f64 {
        share(self.right_yes, self.right_yes + self.wrong_yes)
    }

    /// How many of those that need facts were found.
    pub fn recall(&self) -> f64 {
        share(self.right_yes, self.right_yes + self.wrong_no)
    }

    /// The harmonic mean of both.
    pub fn f1(&self) -> f64 {
        share(2 * self.right_yes, 2 * self.right_yes + self.wrong_yes + self.wrong_no)
    }

    /// How many verdicts are right.
    pub fn accuracy(&self) -> f64 {
        share(self.right_yes + self.right_no, self.count())
    }

    /// How many were judged.
    pub fn count(&self) -> u32 {
        self.right_yes + self.wrong_yes + self.wrong_no + self.right_no
    }

    fn has_both(&self) -> bool {
        self.right_yes + self.wrong_no > 0
    }
}

fn share(part: u32, whole: u32) -> f64 {
    f64::from(part) / f64::from(whole.max(1))
}

/// Verdicts on labelled requests, by language and by category. Shown as a table.
#[derive(Debug, Clone, Default)]
pub struct Evaluation {
    all: ConfusionMatrix,
    languages: BTreeMap<String, ConfusionMatrix>,
    categories: BTreeMap<String, ConfusionMatrix>,
}

impl Evaluation {
    /// Counts one more. A category's `/hard` or `/pair` counts as a category of its own.
    pub fn add(&mut self, language: &str, category: &str, label: bool, verdict: bool) {
        self.all.add(label, verdict);
        self.languages.entry(language.to_owned()).or_default().add(label, verdict);
        let (topic, kind) = category.split_once('/').unwrap_or((category, "plain"));
        for name in [topic.to_owned(), format!("({kind})")] {
            self.categories.entry(name).or_default().add(label, verdict);
        }
    }

    /// All of them together.
    pub fn all(&self) -> ConfusionMatrix {
        self.all
    }
}

impl fmt::Display for Evaluation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<24}  {:>8}  {:>9}  {:>6}  {:>6}  {:>8}", "", "requests", "precision", "recall", "F1", "right")?;
        let mut row = |name: &str, tally: &ConfusionMatrix| {
            write!(f, "{name:<24}  {:>8}", tally.count())?;
            match tally.has_both() {
                true => write!(f, "  {:>9.3}  {:>6.3}  {:>6.3}", tally.precision(), tally.recall(), tally.f1())?,
                // Nothing in it needs facts: precision and recall would be of nothing.
                false => write!(f, "  {:>9}  {:>6}  {:>6}", "–", "–", "–")?,
            }
            writeln!(f, "  {:>7.1}%", tally.accuracy() * 100.0)
        };
        for (name, tally) in self.languages.iter().chain(&self.categories) {
            row(name, tally)?;
        }
        row("all", &self.all)
    }
}
