//! Compares verdicts with labels: precision, recall and F1, in total, by language and by category.

use std::collections::BTreeMap;
use std::fmt;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConfusionMatrix {
    true_positives: u32,
    false_positives: u32,
    false_negatives: u32,
    true_negatives: u32,
}

impl ConfusionMatrix {
    pub fn add(&mut self, label: bool, verdict: bool) {
        *match (label, verdict) {
            (true, true) => &mut self.true_positives,
            (false, true) => &mut self.false_positives,
            (true, false) => &mut self.false_negatives,
            (false, false) => &mut self.true_negatives,
        } += 1;
    }

    pub fn precision(&self) -> f64 {
        ratio(self.true_positives, self.true_positives + self.false_positives)
    }

    pub fn recall(&self) -> f64 {
        ratio(self.true_positives, self.true_positives + self.false_negatives)
    }

    pub fn f1(&self) -> f64 {
        ratio(2 * self.true_positives, 2 * self.true_positives + self.false_positives + self.false_negatives)
    }

    pub fn accuracy(&self) -> f64 {
        ratio(self.true_positives + self.true_negatives, self.count())
    }

    pub fn count(&self) -> u32 {
        self.true_positives + self.false_positives + self.false_negatives + self.true_negatives
    }

    fn has_positives(&self) -> bool {
        self.true_positives + self.false_negatives > 0
    }
}

fn ratio(part: u32, whole: u32) -> f64 {
    f64::from(part) / f64::from(whole.max(1))
}

/// Displays as a table.
#[derive(Debug, Clone, Default)]
pub struct Evaluation {
    total: ConfusionMatrix,
    languages: BTreeMap<String, ConfusionMatrix>,
    categories: BTreeMap<String, ConfusionMatrix>,
}

impl Evaluation {
    /// A category's `/hard` or `/pair` counts as a separate category.
    pub fn add(&mut self, language: &str, category: &str, label: bool, verdict: bool) {
        self.total.add(label, verdict);
        self.languages.entry(language.to_owned()).or_default().add(label, verdict);
        let (topic, kind) = category.split_once('/').unwrap_or((category, "plain"));
        for name in [topic.to_owned(), format!("({kind})")] {
            self.categories.entry(name).or_default().add(label, verdict);
        }
    }

    pub fn total(&self) -> ConfusionMatrix {
        self.total
    }
}

impl fmt::Display for Evaluation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<24}  {:>8}  {:>9}  {:>6}  {:>6}  {:>8}", "", "requests", "precision", "recall", "F1", "right")?;
        let mut row = |name: &str, matrix: &ConfusionMatrix| {
            write!(f, "{name:<24}  {:>8}", matrix.count())?;
            match matrix.has_positives() {
                true => write!(f, "  {:>9.3}  {:>6.3}  {:>6.3}", matrix.precision(), matrix.recall(), matrix.f1())?,
                // Without positives, precision and recall are undefined.
                false => write!(f, "  {:>9}  {:>6}  {:>6}", "–", "–", "–")?,
            }
            writeln!(f, "  {:>7.1}%", matrix.accuracy() * 100.0)
        };
        for (name, matrix) in self.languages.iter().chain(&self.categories) {
            row(name, matrix)?;
        }
        row("all", &self.total)
    }
}
