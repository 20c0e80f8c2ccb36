//! Rows of numbers times a matrix of weights, with the CPU's vectors. Weights are stored in the order in which a product
//! reads them: a few rows cost one pass over them, and many rows need no other layout.

use pulp::{Arch, Simd, WithSimd};

/// The vectors of a panel.
const VECTORS: usize = 2;
/// Rows whose sums are in registers together.
const TOGETHER: usize = 6;
/// Rows that pass through all panels before the next rows do, so that they stay in the cache.
const CACHED_ROWS: usize = 16 * TOGETHER;

pub(crate) struct Weights {
    inputs: usize,
    outputs: usize,
    /// Panels of `columns` columns; within a panel the numbers of each input are contiguous.
    panels: Vec<f32>,
    columns: usize,
}

impl Weights {
    /// From rows of `outputs` numbers, a row for each input.
    pub(crate) fn new(numbers: &[f32], outputs: usize) -> Self {
        let columns = Arch::new().dispatch(Columns);
        let inputs = numbers.len() / outputs;
        let mut panels = Vec::with_capacity(inputs * outputs.next_multiple_of(columns));
        for first in (0..outputs).step_by(columns) {
            for row in numbers.chunks_exact(outputs) {
                let end = panels.len() + columns;
                panels.extend_from_slice(&row[first..outputs.min(first + columns)]);
                panels.resize(end, 0.0);
            }
        }
        Self { inputs, outputs, panels, columns }
    }

    /// The products of rows, without a bias.
    pub(crate) fn products(&self, rows: &[f32]) -> Vec<f32> {
        let mut sums = vec![0.0; rows.len() / self.inputs * self.outputs];
        self.add_products(rows, &mut sums);
        sums
    }

    /// Adds the products of rows to `sums`, which has a row for each.
    pub(crate) fn add_products(&self, rows: &[f32], sums: &mut [f32]) {
        Arch::new().dispatch(Products { weights: self, rows, sums });
    }
}

/// The number of columns in a panel.
struct Columns;

impl WithSimd for Columns {
    type Output = usize;

    fn with_simd<S: Simd>(self, _simd: S) -> usize {
        VECTORS * S::F32_LANES
    }
}

struct Products<'a> {
    weights: &'a Weights,
    rows: &'a [f32],
    sums: &'a mut [f32],
}

impl WithSimd for Products<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Weights { inputs, outputs, panels, columns } = self.weights;
        let cached = self.rows.chunks(CACHED_ROWS * inputs).zip(self.sums.chunks_mut(CACHED_ROWS * outputs));
        for (rows, sums) in cached {
            for (first, panel) in (0..*outputs).step_by(*columns).zip(panels.chunks_exact(inputs * columns)) {
                let (panel, _) = S::as_simd_f32s(panel);
                let end = (first + columns).min(*outputs);
                for (rows, sums) in rows.chunks(TOGETHER * inputs).zip(sums.chunks_mut(TOGETHER * outputs)) {
                    let mut products = [[simd.splat_f32s(0.0); VECTORS]; TOGETHER];
                    if rows.len() == TOGETHER * inputs {
                        let row = |at: usize| &rows[at * inputs..][..*inputs];
                        products = multiply(simd, panel, std::array::from_fn(row));
                    } else {
                        for (row, product) in rows.chunks_exact(*inputs).zip(&mut products) {
                            [*product] = multiply(simd, panel, [row]);
                        }
                    }
                    for (sums, product) in sums.chunks_exact_mut(*outputs).zip(&products) {
                        let sums = &mut sums[first..end];
                        let product: &[f32] = pulp::bytemuck::cast_slice(product);
                        sums.iter_mut().zip(product).for_each(|(sum, product)| *sum += product);
                    }
                }
            }
        }
    }
}

/// The products of rows with the columns of a panel.
#[inline(always)]
fn multiply<S: Simd, const ROWS: usize>(
    simd: S,
    panel: &[S::f32s],
    rows: [&[f32]; ROWS],
) -> [[S::f32s; VECTORS]; ROWS] {
    let mut sums = [[simd.splat_f32s(0.0); VECTORS]; ROWS];
    for (input, weights) in panel.chunks_exact(VECTORS).enumerate() {
        for (row, sums) in rows.iter().zip(&mut sums) {
            let number = simd.splat_f32s(row[input]);
            for (sum, weights) in sums.iter_mut().zip(weights) {
                *sum = simd.mul_add_e_f32s(number, *weights, *sum);
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn products_are_those_of_the_definition(
            inputs in 1..40_usize,
            outputs in 1..80_usize,
            rows in 0..120_usize,
            seed in any::<u32>(),
        ) {
            let numbers = |count: usize, salt: u32| -> Vec<f32> {
                let number = |at: usize| (seed ^ salt).wrapping_add(at as u32).wrapping_mul(2_654_435_761) >> 20;
                (0..count).map(|at| number(at) as f32 / 2048.0 - 1.0).collect()
            };
            let (weights, rows) = (numbers(inputs * outputs, 1), numbers(rows * inputs, 2));
            let mut sums = numbers(rows.len() / inputs * outputs, 3);
            let expected: Vec<f32> = sums
                .iter()
                .enumerate()
                .map(|(at, sum)| {
                    let (row, output) = (at / outputs, at % outputs);
                    let terms = (0..inputs).map(|input| rows[row * inputs + input] * weights[input * outputs + output]);
                    sum + terms.sum::<f32>()
                })
                .collect();
            Weights::new(&weights, outputs).add_products(&rows, &mut sums);
            for (sum, expected) in sums.iter().zip(&expected) {
                prop_assert!((sum - expected).abs() < 1e-4, "{sum} {expected}");
            }
        }

        #[test]
        fn a_rows_products_do_not_depend_on_other_rows(at in 0..20_usize) {
            let numbers = |count: usize| (0..count).map(|at| (at as f32).sin()).collect::<Vec<_>>();
            let (weights, rows) = (Weights::new(&numbers(30 * 50), 50), numbers(20 * 30));
            let alone = weights.products(&rows[at * 30..][..30]);
            prop_assert_eq!(&weights.products(&rows)[at * 50..][..50], &alone[..]);
        }
    }
}
