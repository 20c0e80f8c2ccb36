//! Loads the library's kernels, and generates random numbers for them.
#![allow(unsafe_code, reason = "these are the library's functions")]

use llama_cpp_sys_2 as sys;

pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    pub(crate) fn number(&mut self) -> f32 {
        self.next() as f32 / (1_u64 << 30) as f32 - 1.0
    }
}

/// The kernels for this CPU.
pub(crate) fn cpu(threads: usize) -> sys::ggml_backend_t {
    kernels::load().expect("kernels");
    // SAFETY: the library of kernels exports the function with this signature, and its name ends with a null.
    unsafe {
        let backend = sys::ggml_backend_init_by_type(sys::GGML_BACKEND_DEVICE_TYPE_CPU, std::ptr::null());
        let registry = sys::ggml_backend_dev_backend_reg(sys::ggml_backend_get_device(backend));
        let set_threads = sys::ggml_backend_reg_get_proc_address(registry, c"ggml_backend_set_n_threads".as_ptr());
        assert!(!set_threads.is_null());
        let set_threads: unsafe extern "C" fn(sys::ggml_backend_t, i32) = std::mem::transmute(set_threads);
        set_threads(backend, threads as i32);
        backend
    }
}
