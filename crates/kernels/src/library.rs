//! Functions of llama.cpp that its Rust bindings offer only as raw C functions.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use llama_cpp_2::model::LlamaModel;
use llama_cpp_sys_2 as sys;

use crate::product;

/// The library's description of the instructions that the kernels were compiled for.
pub fn system_info() -> String {
    // SAFETY: it returns a text that stays valid until the next call, and it is copied before that.
    unsafe { CStr::from_ptr(sys::llama_print_system_info()) }.to_string_lossy().into_owned()
}

/// The library could not convert a model.
#[derive(Debug, PartialEq, Eq)]
pub struct NotConverted;

/// A form that weights can be converted to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightsForm {
    /// 8 bits, and a common factor of 16 bits for every 32 weights.
    Q8_0,
    /// 16 bits, with the range of 32-bit numbers.
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
    // SAFETY: both texts and the parameters live until it returns. It catches its C++ exceptions.
    match unsafe { sys::llama_model_quantize(model.as_ptr(), copy.as_ptr(), &params) } {
        0 => Ok(()),
        _ => Err(NotConverted),
    }
}

/// The properties of a model's architecture that decide how it can be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelKind {
    /// Whether completions are not generated token by token from left to right.
    pub is_diffusion: bool,
    pub has_encoder: bool,
    /// Whether some layers see only the last tokens.
    pub has_window: bool,
}

pub fn model_kind(model: &LlamaModel) -> ModelKind {
    const { assert!(size_of::<LlamaModel>() == size_of::<*const sys::llama_model>()) };
    // SAFETY: the wrapper is transparent: it consists of the pointer, which is valid as long as it lives. The functions
    // only read.
    unsafe {
        let model = *std::ptr::from_ref(model).cast::<*const sys::llama_model>();
        ModelKind {
            is_diffusion: sys::llama_model_is_diffusion(model),
            has_encoder: sys::llama_model_has_encoder(model),
            has_window: sys::llama_model_n_swa(model) > 0,
        }
    }
}

/// The names, types and shapes of the tensors in a model's file.
pub struct ModelFile {
    tensors: Vec<Tensor>,
}

struct Tensor {
    name: String,
    kind: sys::ggml_type,
    sides: [i64; 4],
}

impl ModelFile {
    /// Without tensors if the file cannot be read.
    pub fn read(model: &Path) -> Self {
        let Ok(path) = CString::new(model.as_os_str().as_bytes()) else { return Self { tensors: Vec::new() } };
        let (mut context, mut tensors) = (std::ptr::null_mut(), Vec::new());
        // SAFETY: the path lives until it returns; the tensors are of a context that is freed below, and have no data.
        unsafe {
            let params = sys::gguf_init_params { no_alloc: true, ctx: &mut context };
            let file = sys::gguf_init_from_file(path.as_ptr(), params);
            if file.is_null() {
                return Self { tensors };
            }
            let mut tensor = sys::ggml_get_first_tensor(context);
            while !tensor.is_null() {
                let name = CStr::from_ptr((*tensor).name.as_ptr()).to_string_lossy().into_owned();
                tensors.push(Tensor { name, kind: (*tensor).type_, sides: (*tensor).ne });
                tensor = sys::ggml_get_next_tensor(context, tensor);
            }
            sys::gguf_free(file);
            sys::ggml_free(context);
        }
        Self { tensors }
    }

    /// The number of key and value numbers of a cell in all layers. `None` if the tensors do not show it.
    pub fn numbers_per_cell(&self) -> Option<u64> {
        let numbers = |tensor: &Tensor| match tensor.name.split_once("attn_") {
            Some((_, "k.weight" | "v.weight" | "kv_a_mqa.weight")) => tensor.sides[1],
            // The query part is as large as the input of the output projection.
            Some((layer, "qkv.weight")) => {
                let output = format!("{layer}attn_output.weight");
                let output = self.tensors.iter().find(|tensor| tensor.name == output);
                tensor.sides[1] - output.map_or(0, |output| output.sides[0])
            }
            _ => 0,
        };
        u64::try_from(self.tensors.iter().map(numbers).sum::<i64>()).ok().filter(|numbers| *numbers > 0)
    }

    /// The size of the weights in our form, in bytes.
    pub fn laid_out_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| product::laid_out_bytes(tensor.kind as i32, tensor.sides)).sum()
    }
}
