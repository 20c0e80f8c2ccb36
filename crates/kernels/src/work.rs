//! Who computes what.
//!
//! Queries are cut into tiles. Where there are many, threads take one tile and head after the other. Where there are few,
//! as when few sequences generate, each thread gets an equal part of all pieces, whatever tile and head they belong to;
//! what several threads have found out about a tile is put together in the end.

use std::ops::Range;

use crate::hook::{Number, Operation};
use crate::lanes::{Bf16, F16, F32, Source, Vector};
use crate::tile::{Row, Tile};
use crate::visibility::View;

/// The widest vector's numbers. Heads consist of whole ones.
const MAX_COUNT: usize = 16;
/// Rows of a tile that every kind of vector has room for.
const MAX_GROUP: i64 = 48;
/// Bounds the memory of a thread.
const MAX_HEAD_SIZE: i64 = 1024;
/// A tile's tokens are the bits of a number.
const MAX_TILE_TOKENS: usize = 64;
/// With so many tiles for each thread, all are busy until the end or nearly so.
const MANY_UNITS: usize = 3;

/// Whether there is a kernel for such an operation.
pub(crate) fn is_supported(operation: &Operation) -> bool {
    let is_whole = |size: i64| size > 0 && size % MAX_COUNT as i64 == 0 && size <= MAX_HEAD_SIZE;
    let tokens = operation.tokens > 0 && operation.cells > 0 && operation.cells < i64::from(u32::MAX);
    tokens
        && operation.heads / operation.kv_heads <= MAX_GROUP
        && is_whole(operation.key_size)
        && is_whole(operation.value_size)
}

/// A thread's memory, kept from one operation to the next.
#[derive(Default)]
pub(crate) struct Buffers {
    tile: Tile,
    views: Vec<View>,
}

/// Computes this thread's part of an operation.
///
/// # Safety
/// The CPU must have the vector's instructions, and the operation must describe memory as the library lays it out.
#[inline(always)]
pub(crate) unsafe fn compute<V: Vector>(operation: &Operation, number: Number, buffers: &mut Buffers) {
    // SAFETY: the caller's.
    unsafe {
        match number {
            Number::F32 => compute_numbers::<V, F32>(operation, buffers),
            Number::F16 => compute_numbers::<V, F16>(operation, buffers),
            Number::Bf16 => compute_numbers::<V, Bf16>(operation, buffers),
        }
    }
}

/// How an operation is cut: a unit is a tile with one of the heads of the cache.
struct Units {
    tile_tokens: usize,
    tokens: usize,
    tiles: usize,
    kv_heads: usize,
}

impl Units {
    fn new<V: Vector>(operation: &Operation) -> Self {
        let (tokens, kv_heads) = (operation.tokens as usize, operation.kv_heads as usize);
        let tile_tokens = (V::ROWS / operation.group()).clamp(1, MAX_TILE_TOKENS);
        Self { tile_tokens, tokens, tiles: tokens.div_ceil(tile_tokens), kv_heads }
    }

    fn count(&self) -> usize {
        self.tiles * self.kv_heads
    }

    fn tile_and_head(&self, unit: usize) -> (usize, usize) {
        (unit / self.kv_heads, unit % self.kv_heads)
    }

    fn tokens_of(&self, tile: usize) -> Range<usize> {
        tile * self.tile_tokens..self.tokens.min((tile + 1) * self.tile_tokens)
    }
}

#[inline(always)]
unsafe fn compute_numbers<V: Vector, S: Source>(operation: &Operation, buffers: &mut Buffers) {
    let units = Units::new::<V>(operation);
    let parts = Parts::new(operation, &units);
    let are_many = operation.team.threads() == 1 || units.count() >= MANY_UNITS * operation.team.threads();
    // SAFETY: the caller's.
    unsafe {
        if are_many || !parts.fit(operation) {
            compute_units::<V, S>(operation, &units, buffers);
        } else {
            compute_parts::<V, S>(operation, &units, &parts, buffers);
        }
    }
}

/// One unit after the other, whichever thread is ready for it.
#[inline(always)]
unsafe fn compute_units<V: Vector, S: Source>(
    operation: &Operation,
    units: &Units,
    Buffers { tile, views }: &mut Buffers,
) {
    if operation.team.threads() > 1 {
        if operation.team.thread() == 0 {
            operation.team.start_counting();
        }
        operation.team.barrier();
    }
    views.resize_with(views.len().max(1), View::default);
    let (view, mut viewed) = (&mut views[0], None);
    let mut unit = operation.team.thread();
    while unit < units.count() {
        let (index, head) = units.tile_and_head(unit);
        // SAFETY: the caller's; tokens and heads are within the operation.
        unsafe {
            if viewed != Some(index) {
                view.read::<V>(operation, units.tokens_of(index));
                viewed = Some(index);
            }
            tile.begin::<V>(operation, units.tokens_of(index), head);
            tile.see::<V, S>(operation, view, 0..view.pieces.len());
            for row in 0..tile.rows() {
                write::<V>(operation, units.tokens_of(index).start, head, row, &[tile.row(row)]);
            }
        }
        unit = if operation.team.threads() > 1 { operation.team.next_number() } else { unit + 1 };
    }
}

/// An equal part of all pieces for each thread, and where it notes what it has found out.
///
/// Parts follow one another: the units of a thread's part begin with the last one of the part before or after that. So the
/// sum of a unit's and a thread's number is another one for each pair of them that belongs together.
struct Parts {
    /// Numbers that a thread notes about a row: the largest product, the sum, and the weighted values.
    row_floats: usize,
    /// Rows of a unit.
    unit_rows: usize,
    notes: usize,
}

impl Parts {
    fn new(operation: &Operation, units: &Units) -> Self {
        Self {
            row_floats: operation.value_size as usize + 2,
            unit_rows: units.tile_tokens.min(units.tokens) * operation.group(),
            notes: units.count() + operation.team.threads(),
        }
    }

    fn fit(&self, operation: &Operation) -> bool {
        self.notes * self.unit_rows * self.row_floats <= operation.scratch_floats
    }

    /// Where a thread notes what it has found out about a row of a unit.
    ///
    /// # Safety
    /// The notes must fit the scratch memory, and a part of the unit must be the thread's.
    unsafe fn note(&self, operation: &Operation, thread: usize, unit: usize, row: usize) -> *mut f32 {
        debug_assert!(thread + unit < self.notes && row < self.unit_rows);
        // SAFETY: the caller's.
        unsafe { operation.scratch.add(((thread + unit) * self.unit_rows + row) * self.row_floats) }
    }
}

/// The costs of all units, one after the other, and how they are divided.
struct Division<'a> {
    views: &'a [View],
    kv_heads: usize,
    threads: usize,
    total: usize,
}

impl Division<'_> {
    /// A thread's part of the costs.
    fn part(&self, thread: usize) -> Range<usize> {
        self.total * thread / self.threads..self.total * (thread + 1) / self.threads
    }

    /// All units with their costs.
    fn units(&self) -> impl Iterator<Item = (usize, Range<usize>)> {
        let costs = (0..self.views.len() * self.kv_heads).map(|unit| self.views[unit / self.kv_heads].cost());
        costs.enumerate().scan(0, |offset, (unit, cost)| {
            let start = *offset;
            *offset += cost;
            Some((unit, start..*offset))
        })
    }
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start.max(b.start) < a.end.min(b.end)
}

#[inline(always)]
unsafe fn compute_parts<V: Vector, S: Source>(
    operation: &Operation,
    units: &Units,
    parts: &Parts,
    Buffers { tile, views }: &mut Buffers,
) {
    views.resize_with(views.len().max(units.tiles), View::default);
    let views = &mut views[..units.tiles];
    for (index, view) in views.iter_mut().enumerate() {
        // SAFETY: the caller's; tokens are within the operation.
        unsafe { view.read::<V>(operation, units.tokens_of(index)) };
    }
    let total = views.iter().map(View::cost).sum::<usize>() * units.kv_heads;
    let division = Division { views, kv_heads: units.kv_heads, threads: operation.team.threads(), total };
    let part = division.part(operation.team.thread());
    let mine = division.units().filter(|(_, costs)| overlap(costs, &part));
    for (unit, costs) in mine {
        let (index, head) = units.tile_and_head(unit);
        let offsets = &division.views[index].offsets;
        // A piece belongs to the part where it begins.
        let at = |offset: usize| offsets.partition_point(|piece| costs.start + piece < offset).min(offsets.len() - 1);
        // SAFETY: the caller's; the notes fit, and this unit is among the thread's.
        unsafe {
            tile.begin::<V>(operation, units.tokens_of(index), head);
            tile.see::<V, S>(operation, &division.views[index], at(part.start)..at(part.end));
            for row in 0..tile.rows() {
                let Row { max, sum, weighted } = tile.row(row);
                let to = parts.note(operation, operation.team.thread(), unit, row);
                to.write(max);
                to.add(1).write(sum);
                std::ptr::copy_nonoverlapping(weighted.as_ptr(), to.add(2), weighted.len());
            }
        }
    }
    operation.team.barrier();

    let mut noted = Vec::with_capacity(operation.team.threads());
    for (unit, costs) in division.units() {
        let (index, head) = units.tile_and_head(unit);
        let tokens = units.tokens_of(index);
        for row in 0..tokens.len() * operation.group() {
            if (unit * parts.unit_rows + row) % operation.team.threads() != operation.team.thread() {
                continue;
            }
            noted.clear();
            for thread in 0..operation.team.threads() {
                if overlap(&costs, &division.part(thread)) {
                    // SAFETY: the thread has noted this row of the unit before the barrier.
                    noted.push(unsafe {
                        let from = parts.note(operation, thread, unit, row);
                        let weighted = std::slice::from_raw_parts(from.add(2), parts.row_floats - 2);
                        Row { max: *from, sum: *from.add(1), weighted }
                    });
                }
            }
            // SAFETY: the caller's; the row is within the unit.
            unsafe { write::<V>(operation, tokens.start, head, row, &noted) };
        }
    }
}

/// Puts together what was found out about a row, and writes the result.
#[inline(always)]
unsafe fn write<V: Vector>(operation: &Operation, first_token: usize, kv_head: usize, row: usize, noted: &[Row<'_>]) {
    let group = operation.group();
    let (token, head) = (first_token + row / group, kv_head * group + row % group);
    // SAFETY: there is a sink for each head, or none at all.
    let sink = (!operation.sinks.is_null()).then(|| unsafe { *operation.sinks.add(head) });
    let max = noted.iter().map(|row| row.max).chain(sink).fold(f32::NEG_INFINITY, f32::max);
    let sums = noted.iter().map(|row| row.sum * (row.max - max).exp());
    let sum: f32 = sums.chain(sink.map(|sink| (sink - max).exp())).sum();
    let inverse = if sum > 0.0 { 1.0 / sum } else { 0.0 };
    // SAFETY: the row is within the result, and has as many numbers as a value.
    unsafe {
        let row = token * operation.heads as usize + head;
        let out = operation.out.add(row * operation.out_row).cast::<f32>();
        for at in (0..operation.value_size as usize).step_by(V::COUNT) {
            let mut result = V::splat(0.0);
            for row in noted {
                let factor = V::splat((row.max - max).exp() * inverse);
                result = V::load(row.weighted.as_ptr().add(at)).mul_add(factor, result);
            }
            result.store(out.add(at));
        }
    }
}
