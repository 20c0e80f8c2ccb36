//! Passes the folder of llama.cpp's libraries on to dependent crates.

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The folder of the kernels. The other libraries are in the sibling folder `lib`.
    let kernels = std::env::var("DEP_LLAMA_BACKENDS_DIR").expect("llama-cpp-sys-2 tells where it has built kernels");
    let libraries = Path::new(&kernels).with_file_name("lib");
    println!("cargo::metadata=libraries={}", libraries.display());
}
