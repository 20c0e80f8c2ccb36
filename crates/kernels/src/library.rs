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

/// A form that weights can be converted to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightsForm {
    /// 8 bits, and a common factor of 16 bits for 32 weights each.
    Q8_0,
    /// Numbers of 16 bits with the range of 32.
    Bf16,
}

/// Writes a copy of a model whose weights have another form.
pub fn convert(model: &Path, copy: &Path, form: WeightsForm, threads: usize) -> Result<(), NotConverted> {
    let text = |path: &Path| CString::new(path.as_os_str().as_bytes()).map_err(|_| NotConverted);
    let (model, copy) = (text(model)?, text(copy)?);
    // SAFETY: it only returns default values.
    let mut params = unsafe { sys::llama_model_quantize_default_params() };
    params.nthread = i32::try_from(threads).unwrap_or(1);
    params.ftype = match form {
        WeightsForm::Q8_0 => sys::LLAMA_FTYPE_MOSTLY_Q8_0,
        WeightsForm::Bf16 => sys::LLAMA_FTYPE_MOSTLY_BF16,
    };
    params.allow_requantize = true;
    // SAFETY: both texts and the parameters live until it returns. It catches its own exceptions.
    match unsafe { sys::llama_model_quantize(model.as_ptr(), copy.as_ptr(), &params) } {
        0 => Ok(()),
        _ => Err(NotConverted),
    }
}
