//! Hands on where llama.cpp's libraries were built.

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The folder of the kernels; the libraries around them are in the one beside it.
    let kernels = std::env::var("DEP_LLAMA_BACKENDS_DIR").expect("llama-cpp-sys-2 tells where it has built kernels");
    let libraries = Path::new(&kernels).with_file_name("lib");
    println!("cargo::metadata=libraries={}", libraries.display());
}
