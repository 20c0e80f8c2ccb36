//! Divides attention between threads.
//!
//! Queries are cut into tiles. If there are many tiles, threads take one tile and head after another. If there are few, for
//! example because few sequences generate, each thread gets an equal part of all pieces, regardless of tile and head. Then
//! the results of several threads for a tile are combined in the end.

use std::ops::Range;

use crate::hook::{Number, Operation};
use crate::lanes::{Bf16, CacheElement, F16, F32, Vector};
use crate::tile::{Row, Tile};
use crate::visibility::View;

/// Numbers of the widest vector. The size of a head is a multiple of it.
const MAX_COUNT: usize = 16;
/// Rows of a tile with every kind of vector.
const MAX_GROUP: i64 = 48;
/// Bounds the memory of a thread.
const MAX_HEAD_SIZE: i64 = 1024;
/// A tile's tokens are the bits of a number.
const MAX_TILE_TOKENS: usize = 64;
/// With this number of units for each thread, all are busy nearly until the end.
const MANY_UNITS: usize = 3;

/// Whether our kernels support an operation.
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

/// The division of an operation into units. A unit is a tile with one of the heads of the cache.
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
unsafe fn compute_numbers<V: Vector, S: CacheElement>(operation: &Operation, buffers: &mut Buffers) {
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

/// Each thread takes the next unit when it is ready.
#[inline(always)]
unsafe fn compute_units<V: Vector, S: CacheElement>(
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

/// The scratch memory for the results of each thread's equal part of all pieces.
///
/// Parts are consecutive: a thread's units begin with the last unit of the previous thread, or the one after it. So the
/// sum of unit number and thread number is unique for each unit that a thread computes.
struct Parts {
    /// Numbers that a thread stores for a row: the largest product, the sum, and the weighted values.
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

    /// The memory for a thread's result for a row of a unit.
    ///
    /// # Safety
    /// The notes must fit into the scratch memory, and a part of the unit must belong to the thread.
    unsafe fn note(&self, operation: &Operation, thread: usize, unit: usize, row: usize) -> *mut f32 {
        debug_assert!(thread + unit < self.notes && row < self.unit_rows);
        // SAFETY: the caller's.
        unsafe { operation.scratch.add(((thread + unit) * self.unit_rows + row) * self.row_floats) }
    }
}

/// The costs of all units in order, and their division between threads.
struct Division<'a> {
    views: &'a [View],
    kv_heads: usize,
    threads: usize,
    total: usize,
}

impl Division<'_> {
    /// A thread's range of the costs.
    fn part(&self, thread: usize) -> Range<usize> {
        self.total * thread / self.threads..self.total * (thread + 1) / self.threads
    }

    /// All units with their ranges of the costs.
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
unsafe fn compute_parts<V: Vector, S: CacheElement>(
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
                    // SAFETY: the thread stored this row of the unit before the barrier.
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

/// Combines the threads' results for a row, and writes the final one.
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
