//! The memory that holds weights in our form, and how they are laid out in it.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::slice;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use rustix::mm::{Advice, madvise};

use super::activations::BLOCK;
use super::groups;
use super::panels::{Form, ROWS};
use super::sources::{self, WeightType};
use crate::hook::Product;

/// A matrix of weights in our form, or one for each expert.
pub(crate) struct Matrix {
    pub(super) form: Form,
    pub(super) blocks: usize,
    /// Panels of one expert.
    pub(super) panels: usize,
    memory: Memory,
    is_complete: AtomicBool,
}

impl Matrix {
    fn panel_bytes(&self) -> usize {
        self.form.panel_bytes(self.blocks)
    }

    /// Panels of all experts follow one another.
    ///
    /// # Safety
    /// The panel must exist.
    pub(super) unsafe fn panel(&self, at: usize) -> *mut u8 {
        // SAFETY: the caller's.
        unsafe { self.memory.start.as_ptr().add(at * self.panel_bytes()) }
    }
}

/// Zeroed memory, aligned to large pages if it is as large as one.
pub(super) struct Memory {
    pub(super) start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it is only memory. Its users prevent concurrent writes.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    const LARGE_PAGE: usize = 2 << 20;

    pub(super) fn new(bytes: usize) -> Self {
        let align = if bytes >= Self::LARGE_PAGE { Self::LARGE_PAGE } else { 64 };
        let layout = Layout::from_size_align(bytes.max(1), align).expect("matrices are smaller than memory");
        // SAFETY: the size is not 0.
        let Some(start) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        // SAFETY: the memory is ours, and its contents do not change. Without large pages it is only slower.
        let _ = unsafe {
            madvise(start.as_ptr().cast(), bytes / Self::LARGE_PAGE * Self::LARGE_PAGE, Advice::LinuxHugepage)
        };
        Self { start, layout }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

#[expect(clippy::vec_box, reason = "the library keeps their addresses")]
static MATRICES: Mutex<Vec<Box<Matrix>>> = Mutex::new(Vec::new());
static MODELS: AtomicUsize = AtomicUsize::new(0);

/// Must outlive a model of the library. Dropping the last guard frees all weights in our form.
#[derive(Debug)]
pub struct WeightsGuard(());

impl WeightsGuard {
    #[expect(clippy::new_without_default, reason = "it increments a counter")]
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

/// The weights in our form. On first use, all threads lay them out together.
///
/// # Safety
/// The product must be supported, and describe memory as the library lays it out.
pub(super) unsafe fn matrix(product: &Product) -> &'static Matrix {
    // SAFETY: the pointer is a field of the library's tensor, and it is used nowhere else.
    let place = unsafe { AtomicPtr::from_ptr(product.laid_out) };
    // SAFETY: it lives as long as the model.
    let found = unsafe { place.load(Ordering::Acquire).as_ref() };
    if let Some(matrix) = found
        && matrix.is_complete.load(Ordering::Acquire)
    {
        return matrix;
    }
    let source = WeightType::from_library(product.kind).expect("`scratch_bytes` is 0 otherwise");
    let team = &product.team;
    if team.thread() == 0 {
        let (form, blocks) = (source.form(), product.columns as usize / BLOCK);
        let panels = (product.outputs as usize).div_ceil(ROWS);
        let memory = Memory::new(product.experts as usize * panels * form.panel_bytes(blocks));
        let matrix = Box::new(Matrix { form, blocks, panels, memory, is_complete: AtomicBool::new(false) });
        let mut matrices = MATRICES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        place.store((&raw const *matrix).cast_mut(), Ordering::Release);
        matrices.push(matrix);
    }
    team.barrier(); // `groups` also waits, but needs the number of panels
    // SAFETY: thread 0 has stored it, and it lives as long as the model.
    let matrix = unsafe { &*place.load(Ordering::Acquire) };
    let to_floats = |bytes: &[u8], floats: &mut [f32]| {
        let convert = product.to_floats.expect("the library can read every supported form");
        // SAFETY: the bytes hold as many columns as there are floats.
        unsafe { convert(bytes.as_ptr(), floats.as_mut_ptr(), floats.len() as i64) }
    };
    for panels in groups(team, product.experts as usize * matrix.panels) {
        for panel in panels {
            let (expert, first) = (panel / matrix.panels, panel % matrix.panels * ROWS);
            let rows = first..(product.outputs as usize).min(first + ROWS);
            // SAFETY: rows and panel are within the matrices, and no other thread has this panel.
            unsafe {
                let start = product.weights.add(expert * product.weights_expert);
                let row = |row| slice::from_raw_parts(start.add(row * product.weights_row), product.weights_row);
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
