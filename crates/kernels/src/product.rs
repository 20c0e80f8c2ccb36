//! Rows times weights.
//!
//! The library multiplies one row after the other, or a few at a time, and unpacks the weights for each. Here weights are
//! laid out once, when they are first used, so that a vector holds the same columns of 16 rows of the matrix; they are
//! unpacked once for all rows of a tile, and no sum is ever taken across a vector. A row's result does not depend on the
//! rows that are computed beside it.
//!
//! - `activations`: the rows, in 8 bits.
//! - `panels`: the weights, in 4, 6 or 8 bits.
//! - `sources`: from the forms of model files to these.
//! - `avx512`, `avx2`: the computation.

mod activations;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod panels;
mod sources;

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ptr::NonNull;
use std::slice;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use crate::hook::{Product, Team};
use crate::lanes::{self, Instructions};
use activations::{BLOCK, Block, TILE, place};
use panels::{Form, ROWS};
use sources::Source;

/// With so few rows, every thread converts all of them itself: that is quicker than to wait for the others.
const FEW_ROWS: usize = 4;
/// Panels that are multiplied with a tile before the next tile is. Together they fit a core's cache.
const GROUP: usize = 4;

/// A set of instructions.
///
/// Both functions are unsafe for the same reasons: the CPU must have the instructions, and pointers must point to what is
/// read or written.
trait Kernel {
    /// Converts a row whose blocks lie so far apart.
    unsafe fn convert(row: &[f32], to: *mut Block, distance: usize);
    /// Multiplies a panel with a tile, and writes 16 results for each row; there are so many floats from row to row.
    unsafe fn multiply(form: Form, panel: *const u8, blocks: usize, tile: (*const Block, usize), out: (*mut f32, usize));
}

/// A matrix of weights in our form.
pub(crate) struct Matrix {
    form: Form,
    blocks: usize,
    panels: usize,
    memory: Memory,
    is_complete: AtomicBool,
}

impl Matrix {
    fn panel_bytes(&self) -> usize {
        self.form.panel_bytes(self.blocks)
    }

    /// # Safety
    /// There must be such a panel.
    unsafe fn panel(&self, at: usize) -> *mut u8 {
        // SAFETY: the caller's.
        unsafe { self.memory.start.as_ptr().add(at * self.panel_bytes()) }
    }
}

/// Zeros that begin where a large page may begin.
struct Memory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it is only memory. Who writes where is up to its users.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    const LARGE_PAGE: usize = 2 << 20;

    fn new(bytes: usize) -> Self {
        let align = if bytes >= Self::LARGE_PAGE { Self::LARGE_PAGE } else { 64 };
        let layout = Layout::from_size_align(bytes.max(1), align).expect("matrices are smaller than memory");
        // SAFETY: the size is not 0.
        let Some(start) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        Self { start, layout }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

static MATRICES: Mutex<Vec<Box<Matrix>>> = Mutex::new(Vec::new());
static MODELS: AtomicUsize = AtomicUsize::new(0);

/// Whoever holds a model of the library holds one of these for longer: with the last one go all weights in our form.
#[derive(Debug)]
pub struct WeightsGuard(());

impl WeightsGuard {
    #[expect(clippy::new_without_default, reason = "it is counted")]
    pub fn new() -> Self {
        MODELS.fetch_add(1, Ordering::SeqCst);
        Self(())
    }
}

impl Drop for WeightsGuard {
    fn drop(&mut self) {
        let mut matrices = MATRICES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if MODELS.fetch_sub(1, Ordering::SeqCst) == 1 {
            matrices.clear();
        }
    }
}

/// Whether there are kernels for this CPU.
pub fn has_products() -> bool {
    lanes::instructions() != Instructions::Plain
}

/// See `hook::product_scratch`.
pub(crate) fn scratch_bytes(product: &Product) -> usize {
    let is_whole = product.columns > 0 && product.columns as usize % BLOCK == 0;
    match Source::from_library(product.kind) {
        Some(_) if is_whole && has_products() => {
            product.count.max(1) as usize * (product.columns as usize / BLOCK) * size_of::<Block>()
        }
        _ => 0,
    }
}

/// Computes this thread's part of a product.
///
/// # Safety
/// The product must be of our kind, and describe memory as the library lays it out.
pub(crate) unsafe fn compute(product: &Product) {
    // SAFETY: the CPU has the instructions, and the caller vouches for the memory.
    unsafe {
        match lanes::instructions() {
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 if avx512::is_supported() => compute_with::<avx512::Products>(product),
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 | Instructions::Avx2 => compute_with::<avx2::Products>(product),
            _ => unreachable!("`scratch_bytes` is 0"),
        }
    }
}

unsafe fn compute_with<K: Kernel>(product: &Product) {
    // SAFETY: the caller's.
    let matrix = unsafe { matrix(product) };
    let (team, count, blocks) = (&product.team, product.count as usize, matrix.blocks);
    let convert = |row: usize, to: *mut Block| {
        let (first, distance) = place(row, count, blocks);
        // SAFETY: the row is within the product, and there is room for all rows.
        unsafe {
            let from = product.rows.add(row * product.row).cast::<f32>();
            K::convert(slice::from_raw_parts(from, product.columns as usize), to.add(first), distance);
        }
    };
    if count <= FEW_ROWS {
        thread_local! {
            static ROWS_OF_THREAD: RefCell<Vec<Block>> = RefCell::default();
        }
        ROWS_OF_THREAD.with_borrow_mut(|rows| {
            rows.resize(rows.len().max(count * blocks), Block::default());
            (0..count).for_each(|row| convert(row, rows.as_mut_ptr()));
            let part = |thread: usize| matrix.panels * thread / team.threads();
            for panel in part(team.thread())..part(team.thread() + 1) {
                // SAFETY: the caller's; no other thread has this panel.
                unsafe { multiply::<K>(product, matrix, panel, 0, rows.as_ptr()) };
            }
        });
        return;
    }
    let rows = product.scratch.cast::<Block>();
    (team.thread()..count).step_by(team.threads()).for_each(|row| convert(row, rows));
    for panels in groups(team, matrix.panels) {
        for first in (0..count).step_by(TILE) {
            for panel in panels.clone() {
                // SAFETY: the caller's; all rows are converted, and no other thread has this panel.
                unsafe { multiply::<K>(product, matrix, panel, first, rows) };
            }
        }
    }
}

/// Waits for all threads; then some neighbouring numbers below `count` at a time, which no other thread gets.
fn groups(team: &Team, count: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let size = (count / (4 * team.threads())).clamp(1, GROUP);
    if team.thread() == 0 {
        team.start_counting();
    }
    team.barrier();
    let mut next = team.thread();
    std::iter::from_fn(move || {
        let start = next * size;
        next = if start < count { team.next_number() } else { next };
        (start < count).then(|| start..count.min(start + size))
    })
}

/// Multiplies a panel with the tile that begins with a row.
unsafe fn multiply<K: Kernel>(product: &Product, matrix: &Matrix, panel: usize, first: usize, rows: *const Block) {
    let count = TILE.min(product.count as usize - first);
    let columns = panel * ROWS..(product.outputs as usize).min((panel + 1) * ROWS);
    // SAFETY: the caller's; tile and panel are within the product.
    unsafe {
        let tile = (rows.add(first * matrix.blocks), count);
        let out = |row: usize| product.out.add((first + row) * product.out_row).cast::<f32>().add(columns.start);
        if columns.len() == ROWS {
            let distance = product.out_row / size_of::<f32>();
            K::multiply(matrix.form, matrix.panel(panel), matrix.blocks, tile, (out(0), distance));
            return;
        }
        let mut whole = [0.0_f32; TILE * ROWS];
        K::multiply(matrix.form, matrix.panel(panel), matrix.blocks, tile, (whole.as_mut_ptr(), ROWS));
        for row in 0..count {
            std::ptr::copy_nonoverlapping(whole.as_ptr().add(row * ROWS), out(row), columns.len());
        }
    }
}

/// The weights in our form. At first use all threads lay them out together.
unsafe fn matrix(product: &Product) -> &'static Matrix {
    // SAFETY: the pointer is the library's own, and nobody else uses it.
    let place = unsafe { AtomicPtr::from_ptr(product.laid_out) };
    // SAFETY: it lives as long as the model.
    let found = unsafe { place.load(Ordering::Acquire).as_ref() };
    if let Some(matrix) = found
        && matrix.is_complete.load(Ordering::Acquire)
    {
        return matrix;
    }
    let source = Source::from_library(product.kind).expect("`scratch_bytes` is 0 otherwise");
    let team = &product.team;
    if team.thread() == 0 {
        let (form, blocks) = (source.form(), product.columns as usize / BLOCK);
        let panels = (product.outputs as usize).div_ceil(ROWS);
        let memory = Memory::new(panels * form.panel_bytes(blocks));
        let matrix = Box::new(Matrix { form, blocks, panels, memory, is_complete: AtomicBool::new(false) });
        let mut matrices = MATRICES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        place.store((&raw const *matrix).cast_mut(), Ordering::Release);
        matrices.push(matrix);
    }
    team.barrier(); // `groups` has one, too, but the number of panels must be known
    // SAFETY: thread 0 has stored it, and it lives as long as the model.
    let matrix = unsafe { &*place.load(Ordering::Acquire) };
    let to_floats = |bytes: &[u8], floats: &mut [f32]| {
        let convert = product.to_floats.expect("the library can read every form that we take");
        // SAFETY: the bytes are a row of so many columns.
        unsafe { convert(bytes.as_ptr(), floats.as_mut_ptr(), floats.len() as i64) }
    };
    for panels in groups(team, matrix.panels) {
        for panel in panels {
            let rows = panel * ROWS..(product.outputs as usize).min((panel + 1) * ROWS);
            // SAFETY: rows and panel are within the matrices, and no other thread has this panel.
            unsafe {
                let row = |row| slice::from_raw_parts(product.weights.add(row * product.weights_row), product.weights_row);
                let rows: Vec<&[u8]> = rows.map(row).collect();
                let to = slice::from_raw_parts_mut(matrix.panel(panel), matrix.panel_bytes());
                sources::lay_out(source, &rows, matrix.blocks, to, &to_floats);
            }
        }
    }
    team.barrier();
    matrix.is_complete.store(true, Ordering::Release);
    matrix
}

#[cfg(test)]
mod tests;
