//! Writes into the program where it finds llama.cpp's libraries: in the folder `lib` beside it; and, unless it is to be
//! moved to other machines, where they were built.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let built = std::env::var("DEP_ADRIATICUM_KERNELS_LIBRARIES").expect("the crate kernels tells");
    let folders = match std::env::var_os("CARGO_FEATURE_PORTABLE") {
        Some(_) => "$ORIGIN/lib".to_owned(),
        None => format!("$ORIGIN/lib:{built}"),
    };
    // The old kind of entry, which also holds for libraries that libraries need, kernels among them.
    println!("cargo::rustc-link-arg-bins=-Wl,--disable-new-dtags,-rpath,{folders}");
}
