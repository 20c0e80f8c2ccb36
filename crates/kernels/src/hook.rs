//! Installs our kernels in llama.cpp, which calls them through `native/hook.c`.

use std::cell::RefCell;
use std::ffi::c_int;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::lanes::{self, Instructions};
use crate::loading;
use crate::product::{self, Matrix};
use crate::work::{self, Buffers};

/// Which kernel computes attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attention {
    /// Ours, and the library's for unsupported operations.
    Own,
    Library,
}

/// Which kernels multiply with weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Products {
    /// Ours where there is one for the weights and the CPU, and the library's otherwise.
    Own,
    Library,
}

/// Settings of all further computations of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changes {
    pub attention: Attention,
    pub products: Products,
    /// An upper limit; a context may have fewer.
    pub max_threads: Option<usize>,
}

/// The loaded library of kernels does not have our hook.
#[derive(Debug, PartialEq, Eq)]
pub struct NoHook;

pub fn change(changes: Changes) -> Result<(), NoHook> {
    let attention = match changes.attention {
        Attention::Own => Some(compute as AttentionFunction),
        Attention::Library => None,
    };
    let max_threads = changes.max_threads.map_or(0, |max| i32::try_from(max).unwrap_or(i32::MAX));
    let (product, product_scratch) = match changes.products {
        Products::Own => (Some(multiply as ProductFunction), Some(product_scratch as ScratchFunction)),
        Products::Library => (None, None),
    };
    let function = change_function().ok_or(NoHook)?;
    // SAFETY: it copies the struct. The functions in it belong to this program, so they stay valid.
    unsafe { function(&RawChanges { attention, product, product_scratch, max_threads }) };
    Ok(())
}

type AttentionFunction = unsafe extern "C" fn(*const Operation) -> bool;
type ProductFunction = unsafe extern "C" fn(*const Product);
type ScratchFunction = unsafe extern "C" fn(*const Product) -> usize;
type ChangeFunction = unsafe extern "C" fn(*const RawChanges);

#[repr(C)]
struct RawChanges {
    attention: Option<AttentionFunction>,
    product: Option<ProductFunction>,
    product_scratch: Option<ScratchFunction>,
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

/// The number format of the cache.
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

/// The threads that compute an operation together, as one of them sees it. This struct and the operations below are also
/// declared in native/hook.c.
#[repr(C)]
pub(crate) struct Team {
    thread: i32,
    threads: i32,
    pool: *mut Pool,
    barrier: unsafe extern "C" fn(*mut Pool),
    set_chunk: unsafe extern "C" fn(*mut Pool, c_int),
    add_chunk: unsafe extern "C" fn(*mut Pool, c_int) -> c_int,
}

impl Team {
    pub(crate) fn thread(&self) -> usize {
        self.thread as usize
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads as usize
    }

    /// Waits for all threads.
    pub(crate) fn barrier(&self) {
        // SAFETY: the pool lives as long as the operation, and all of its threads reach the barrier.
        unsafe { (self.barrier)(self.pool) }
    }

    /// Starts a counter at the number of threads. All threads must pass a barrier before they take a number.
    pub(crate) fn start_counting(&self) {
        // SAFETY: the pool lives as long as the operation.
        unsafe { (self.set_chunk)(self.pool, self.threads) }
    }

    /// Takes the next number of the counter, which no other thread gets.
    pub(crate) fn next_number(&self) -> usize {
        // SAFETY: the pool lives as long as the operation.
        unsafe { (self.add_chunk)(self.pool, 1) as usize }
    }
}

/// One attention operation. Strides are in bytes.
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
    /// Common to all threads.
    pub(crate) scratch: *mut f32,
    pub(crate) scratch_floats: usize,
    pub(crate) team: Team,
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

    /// Query heads that read the same cells.
    pub(crate) fn group(&self) -> usize {
        (self.heads / self.kv_heads) as usize
    }
}

/// Rows times a matrix of weights; or each row times some of many matrices (experts). Strides are in bytes.
#[repr(C)]
pub(crate) struct Product {
    pub(crate) weights: *const u8,
    /// Holds the weights in our form, for as long as the library keeps its own.
    pub(crate) laid_out: *mut *mut Matrix,
    pub(crate) rows: *const u8,
    /// For each token, the numbers of its experts; null if there is one for all.
    pub(crate) chosen: *const u8,
    pub(crate) out: *mut u8,
    pub(crate) columns: i64,
    /// Rows of a matrix.
    pub(crate) outputs: i64,
    pub(crate) experts: i64,
    pub(crate) tokens: i64,
    /// Experts of a token.
    pub(crate) used: i64,
    /// One row for each expert of the token, or one for all.
    pub(crate) rows_of_token: i64,
    pub(crate) weights_row: usize,
    pub(crate) weights_expert: usize,
    pub(crate) row: usize,
    pub(crate) token: usize,
    pub(crate) chosen_token: usize,
    pub(crate) out_row: usize,
    pub(crate) out_token: usize,
    pub(crate) kind: i32,
    pub(crate) to_floats: Option<unsafe extern "C" fn(*const u8, *mut f32, i64)>,
    /// Common to all threads, of the size that `product_scratch` returned.
    pub(crate) scratch: *mut u8,
    pub(crate) team: Team,
}

/// The scratch memory that a product needs, in bytes; 0 if we do not support it.
///
/// # Safety
/// The product must describe memory as the library lays it out. Scratch memory and team are not used.
unsafe extern "C" fn product_scratch(product: *const Product) -> usize {
    // SAFETY: the hook passes a pointer to its own variable.
    product::scratch_bytes(unsafe { &*product })
}

/// Called by each thread for each supported product.
///
/// # Safety
/// The product must describe memory as the library lays it out.
unsafe extern "C" fn multiply(product: *const Product) {
    // SAFETY: the hook passes a pointer to its own variable; the caller vouches for the memory.
    unsafe { product::compute(&*product) }
}

/// Called by each thread for each attention operation. Returns false if the operation is not supported, on all threads
/// alike.
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
