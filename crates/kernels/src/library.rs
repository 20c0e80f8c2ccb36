//! Functions of llama.cpp that its Rust bindings offer only as they are in C.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use llama_cpp_sys_2 as sys;

/// Which instructions the kernels were compiled for, in the library's own words.
pub fn system_info() -> String {
    // SAFETY: it returns a text that stays valid until the next call, which has to wait for nothing here.
    unsafe { CStr::from_ptr(sys::llama_print_system_info()) }.to_string_lossy().into_owned()
}

/// The library could not convert a model.
#[derive(Debug, PartialEq, Eq)]
pub struct NotConverted;

/// Writes a copy of a model whose weights have 8 bits (Q8_0).
pub fn convert_to_q8_0(model: &Path, copy: &Path, threads: usize) -> Result<(), NotConverted> {
    let text = |path: &Path| CString::new(path.as_os_str().as_bytes()).map_err(|_| NotConverted);
    let (model, copy) = (text(model)?, text(copy)?);
    // SAFETY: it only returns default values.
    let mut params = unsafe { sys::llama_model_quantize_default_params() };
    params.nthread = i32::try_from(threads).unwrap_or(1);
    params.ftype = sys::LLAMA_FTYPE_MOSTLY_Q8_0;
    params.allow_requantize = true;
    // SAFETY: both texts and the parameters live until it returns. It catches its own exceptions.
    match unsafe { sys::llama_model_quantize(model.as_ptr(), copy.as_ptr(), &params) } {
        0 => Ok(()),
        _ => Err(NotConverted),
    }
}
