//! An unusable library or card is reported in one sentence, and the CPU computes.

use std::fs;
use std::process::Command;

use testbed::Output;

use crate::Copied;

/// Compiles a library from C.
fn compile(source: &str, options: &[&str], copied: &Copied, output: &str) {
    let file = copied.path().join("source.c");
    fs::write(&file, source).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"]).arg(copied.path().join(output)).arg(file).args(options);
    let built = Output::from_command(cc.current_dir(copied.path()));
    assert_eq!(built.code, Some(0), "{built:?}");
}

/// Checks that the CPU answers, and returns standard error.
fn stderr_while_the_cpu_answers(copied: &Copied) -> String {
    copied.installation.use_cached_tuning();
    let output = copied.installation.run(&["check"]);
    let model = output.stdout.lines().find(|line| line.contains("model ")).unwrap_or_default();
    assert!(model.starts_with("ok") && !model.contains("layers on"), "{output:?}");
    output.stderr
}

#[test]
fn kernels_of_another_build_are_refused() {
    let copied = Copied::new();
    compile("const char * adriaticum_gpu_build(void) { return \"0.0.1-1\"; }", &[], &copied, "kernels/libggml-cuda.so");
    compile("int something_else;", &[], &copied, "kernels/libggml-vulkan.so");
    let stderr = stderr_while_the_cpu_answers(&copied);
    for (name, build) in [("libggml-cuda.so", "(0.0.1-1; this program has "), ("libggml-vulkan.so", "(unknown;")] {
        let sentence =
            format!("{} is not used: it belongs to another build of llama.cpp", copied.library(name).display());
        assert!(stderr.contains(&sentence) && stderr.contains(build), "{stderr}");
    }
}

#[test]
fn without_a_driver_the_cpu_computes() {
    let copied = Copied::new();
    compile("int driver;", &["-Wl,-soname,libnodriver.so.1"], &copied, "libnodriver.so");
    let source = "extern int driver; int * adriaticum_gpu_build(void) { return &driver; }";
    compile(source, &["-L.", "-lnodriver"], &copied, "kernels/libggml-cuda.so");
    fs::remove_file(copied.path().join("libnodriver.so")).unwrap();
    fs::write(copied.library("libggml-vulkan.so"), "no library at all").unwrap();
    let stderr = stderr_while_the_cpu_answers(&copied);
    assert!(stderr.contains("perhaps its driver is missing (libnodriver.so.1: cannot open"), "{stderr}");
    assert!(stderr.contains("libggml-vulkan.so is not used: it cannot be loaded"), "{stderr}");
}

#[test]
fn a_missing_card_is_reported() {
    let mut copied = Copied::new();
    copied.installation.set("engine.gpu", "CUDA0");
    let stderr = stderr_while_the_cpu_answers(&copied);
    assert!(stderr.contains("the CPU computes: engine.gpu is CUDA0, but there is no GPU"), "{stderr}");
}

#[test]
fn nothing_is_reported_without_a_gpu_or_with_gpus_off() {
    let mut copied = Copied::new();
    assert!(!stderr_while_the_cpu_answers(&copied).contains("GPU"));
    compile("const char * adriaticum_gpu_build(void) { return \"0.0.1-1\"; }", &[], &copied, "kernels/libggml-cuda.so");
    copied.installation.set("engine.gpu", "off");
    let stderr = stderr_while_the_cpu_answers(&copied);
    assert!(!stderr.contains("libggml-cuda"), "{stderr}");
}

#[test]
fn a_wrong_setting_is_refused() {
    let mut copied = Copied::new();
    copied.installation.set("engine.gpu", "-1");
    let output = copied.installation.run(&["config"]);
    assert!(output.code != Some(0) && output.stderr.contains("engine.gpu"), "{output:?}");
    assert!(output.stderr.contains("auto, off, a device such as CUDA0, or a number of layers"), "{output:?}");
}
