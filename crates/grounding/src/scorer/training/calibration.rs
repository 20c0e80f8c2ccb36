//! Maps sums to scores: a logistic regression over the sums of held-out rows (Platt scaling). A score is then the
//! probability that a request with such a sum needs facts; at the threshold it is one half.

#[derive(Debug, Clone, Copy)]
pub(super) struct Calibration {
    pub(super) threshold: f64,
    pub(super) slope: f64,
}

/// Newton's method converges in far fewer steps.
const STEPS: usize = 50;

impl Calibration {
    /// The maximum likelihood estimate for sums with labels.
    pub(super) fn fit(sums: &[(f64, bool)]) -> Self {
        let (mut slope, mut offset) = (1.0_f64, 0.0_f64);
        for _ in 0..STEPS {
            let (mut by_slope, mut by_offset) = (0.0, 0.0);
            let (mut slopes, mut both, mut offsets) = (1e-9, 0.0, 1e-9);
            for (sum, label) in sums {
                let share = 1.0 / (1.0 + libm::exp(-(slope * sum + offset)));
                let error = share - if *label { 1.0 } else { 0.0 };
                let weight = share * (1.0 - share);
                by_slope += error * sum;
                by_offset += error;
                slopes += weight * sum * sum;
                both += weight * sum;
                offsets += weight;
            }
            let determinant = slopes * offsets - both * both;
            slope -= (offsets * by_slope - both * by_offset) / determinant;
            offset -= (slopes * by_offset - both * by_slope) / determinant;
        }
        Self { threshold: -offset / slope, slope }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threshold_is_where_both_labels_are_equally_likely() {
        let sums: Vec<(f64, bool)> =
            (-40..=40).flat_map(|n| [(f64::from(n) / 10.0, n >= 10), (f64::from(n) / 10.0, n >= 2)]).collect();
        let calibration = Calibration::fit(&sums);
        assert!((calibration.threshold - 0.55).abs() < 0.05, "{calibration:?}");
        assert!(calibration.slope > 1.0, "{calibration:?}");
    }
}
