//! The way from llama.cpp's kernels to ours.

use std::cell::RefCell;
use std::ffi::c_int;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::lanes::{self, Instructions};
use crate::loading;
use crate::work::{self, Buffers};

/// Which kernel computes attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attention {
    /// Ours, and the library's for operations of an uncommon kind.
    Own,
    Library,
}

/// How all computations of this process are done from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changes {
    pub attention: Attention,
    /// A context may have fewer by itself.
    pub max_threads: Option<usize>,
}

/// The library's kernels that are loaded do not have our hook.
#[derive(Debug, PartialEq, Eq)]
pub struct NoHook;

pub fn change(changes: Changes) -> Result<(), NoHook> {
    let attention = match changes.attention {
        Attention::Own => Some(compute as AttentionFunction),
        Attention::Library => None,
    };
    let max_threads = changes.max_threads.map_or(0, |max| i32::try_from(max).unwrap_or(i32::MAX));
    let function = change_function().ok_or(NoHook)?;
    // SAFETY: it copies the struct. The function in it stays valid: it is one of this program.
    unsafe { function(&RawChanges { attention, max_threads }) };
    Ok(())
}

type AttentionFunction = unsafe extern "C" fn(*const Operation) -> bool;
type ChangeFunction = unsafe extern "C" fn(*const RawChanges);

#[repr(C)]
struct RawChanges {
    attention: Option<AttentionFunction>,
    max_threads: i32,
}

/// From the library of kernels that was loaded for this CPU.
fn change_function() -> Option<ChangeFunction> {
    static FUNCTION: OnceLock<Option<ChangeFunction>> = OnceLock::new();
    *FUNCTION.get_or_init(|| {
        let library = loading::cpu_library().ok()?;
        // SAFETY: native/hook.c, which is a part of that library, declares it so.
        unsafe { library.get::<ChangeFunction>(b"adriaticum_change\0") }.ok().map(|change| *change)
    })
}

/// How numbers of the cache are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Number {
    F32,
    F16,
    Bf16,
}

/// The library's pool of threads.
#[repr(C)]
pub(crate) struct Pool {
    _opaque: [u8; 0],
}

/// One attention operation, as one of the threads that compute it together sees it. Declared once more in
/// native/hook.c. Strides are in bytes.
#[repr(C)]
pub(crate) struct Operation {
    pub(crate) q: *const u8,
    pub(crate) k: *const u8,
    pub(crate) v: *const u8,
    /// f16, added to the products; null if every query sees every cell.
    pub(crate) mask: *const u8,
    /// A number for each head, or null.
    pub(crate) sinks: *const f32,
    pub(crate) out: *mut u8,
    pub(crate) tokens: i64,
    pub(crate) heads: i64,
    pub(crate) kv_heads: i64,
    pub(crate) cells: i64,
    pub(crate) key_size: i64,
    pub(crate) value_size: i64,
    pub(crate) q_token: usize,
    pub(crate) q_head: usize,
    pub(crate) k_cell: usize,
    pub(crate) k_head: usize,
    pub(crate) v_cell: usize,
    pub(crate) v_head: usize,
    pub(crate) mask_token: usize,
    pub(crate) out_row: usize,
    pub(crate) scale: f32,
    number: i32,
    thread: i32,
    threads: i32,
    /// Common to all threads.
    pub(crate) scratch: *mut f32,
    pub(crate) scratch_floats: usize,
    pool: *mut Pool,
    barrier: unsafe extern "C" fn(*mut Pool),
    set_chunk: unsafe extern "C" fn(*mut Pool, c_int),
    add_chunk: unsafe extern "C" fn(*mut Pool, c_int) -> c_int,
}

impl Operation {
    pub(crate) fn number(&self) -> Option<Number> {
        match self.number {
            0 => Some(Number::F32),
            1 => Some(Number::F16),
            2 => Some(Number::Bf16),
            _ => None,
        }
    }

    pub(crate) fn thread(&self) -> usize {
        self.thread as usize
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads as usize
    }

    /// Query heads that read the same cells.
    pub(crate) fn group(&self) -> usize {
        (self.heads / self.kv_heads) as usize
    }

    /// Waits for all threads of this operation.
    pub(crate) fn barrier(&self) {
        // SAFETY: the pool lives as long as the operation, and all of its threads get here.
        unsafe { (self.barrier)(self.pool) }
    }

    /// Begins to hand out numbers from the number of threads on; all must have passed a barrier before they take one.
    pub(crate) fn start_counting(&self) {
        // SAFETY: the pool lives as long as the operation.
        unsafe { (self.set_chunk)(self.pool, self.threads) }
    }

    /// The next number that no other thread gets.
    pub(crate) fn next_number(&self) -> usize {
        // SAFETY: the pool lives as long as the operation.
        unsafe { (self.add_chunk)(self.pool, 1) as usize }
    }
}

/// Called by each thread for each attention operation. Returns false if the operation is not of our kind, and then does so
/// on all threads alike.
///
/// # Safety
/// The operation must describe memory as the library lays it out.
unsafe extern "C" fn compute(operation: *const Operation) -> bool {
    // SAFETY: the hook passes a pointer to its own variable.
    let operation = unsafe { &*operation };
    let Some(number) = operation.number() else { return false };
    if !work::is_supported(operation) {
        return false;
    }
    thread_local! {
        static BUFFERS: RefCell<Buffers> = RefCell::default();
    }
    BUFFERS.with_borrow_mut(|buffers| match lanes::instructions() {
        // SAFETY: the CPU has the instructions, and the caller vouches for the memory.
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx512 => unsafe { lanes::avx512::compute(operation, number, buffers) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx2 => unsafe { lanes::avx2::compute(operation, number, buffers) },
        // SAFETY: the caller vouches for the memory.
        _ => unsafe { work::compute::<lanes::plain::Lanes>(operation, number, buffers) },
    });
    true
}
