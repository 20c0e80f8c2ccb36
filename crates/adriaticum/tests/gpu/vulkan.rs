//! Vulkan's kernels on Mesa's driver for CPUs: slow, but real.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;
use testbed::{Output, Request, Service};

use crate::{ADRIATICUM, BINARY, Copied};

const PROMPTS: [&str; 3] = ["What is the capital of France?", "Count from one to five.", "Name a colour."];
/// The maximum relative difference of perplexities. The CPU's matrix products round activations to 8 bits, the GPU's do
/// not.
const MAX_DIFFERENCE: f64 = 0.01;

impl Copied {
    /// With the library that `make test-gpu` has built.
    fn with_vulkan() -> Self {
        let copied = Self::new();
        let target = PathBuf::from(BINARY).parent().unwrap().parent().unwrap().to_owned();
        let built = target.join("test-gpu/kernels/libggml-vulkan.so");
        fs::copy(&built, copied.library("libggml-vulkan.so")).unwrap_or_else(|error| panic!("{built:?}: {error}"));
        copied
    }

    /// The driver for CPUs is used only if the environment names it.
    fn start(self) -> (Service, TempDir) {
        let mut command = self.installation.command(&["serve"]);
        command.stderr(fs::File::create(self.installation.folder().join("log")).unwrap());
        let service = Service::start_as(self.installation, command.env("GGML_VK_VISIBLE_DEVICES", "0"));
        ADRIATICUM.wait_for("the model being loaded", || service.log().contains("the engine answers").then_some(()));
        (service, self.folder)
    }
}

fn answers(service: &Service) -> Vec<String> {
    let key = service.key();
    let ask = |prompt: &&str| {
        let messages = serde_json::json!([{ "role": "user", "content": prompt }]);
        let body =
            serde_json::json!({ "model": "adriaticum", "messages": messages, "temperature": 0, "max_tokens": 24 });
        service.send(&Request::chat(&key, body.to_string())).completion().content
    };
    PROMPTS.iter().map(ask).collect()
}

/// Compares perplexities, because answers of a small model say little about its kernels: the choice of its first word about
/// France depends on 0.2 in the logarithm of a probability, and llama.cpp's own server chooses differently on CPUs with and
/// without AMX.
#[test]
#[ignore = "needs Vulkan's kernels; `make test-gpu` builds them"]
fn a_gpu_predicts_a_text_as_well_as_the_cpu() {
    let text = &include_str!("../../../../docs/runtimes.md")[..1_500]; // the driver takes minutes for it
    let perplexity = |gpu: &str| -> (f64, String) {
        let mut copied = Copied::with_vulkan();
        copied.installation.set("engine.gpu", gpu);
        let file = copied.path().join("text.md");
        fs::write(&file, text).unwrap();
        let mut command = copied.installation.command(&["engine", "perplexity", file.to_str().unwrap()]);
        let output = Output::from_command(command.env("GGML_VK_VISIBLE_DEVICES", "0"));
        (output.stdout.trim().parse().unwrap_or_else(|_| panic!("{output:?}")), output.stderr)
    };
    let ((gpu, stderr), (cpu, stderr_without)) = (perplexity("auto"), perplexity("off"));
    assert!(stderr.contains("31 of 31 layers on"), "{stderr}");
    assert!(!stderr_without.contains("layers on"), "{stderr_without}");
    assert!((gpu / cpu - 1.0).abs() < MAX_DIFFERENCE, "{gpu} on the GPU, {cpu} on the CPU");
}

#[test]
#[ignore = "needs Vulkan's kernels; `make test-gpu` builds them"]
fn a_gpu_answers_and_is_named() {
    let (service, _program) = Copied::with_vulkan().start();
    let said = answers(&service);
    assert!(said.iter().all(|answer| !answer.is_empty()), "{said:?}");
    let log = service.log();
    assert!(log.contains("31 of 31 layers on") && log.contains("Vulkan0"), "{log}");
    let (_, metrics) = service.get_ops("/metrics");
    let layers = metrics.lines().find(|line| line.starts_with("adriaticum_engine_gpu_layers{")).unwrap_or_default();
    assert!(layers.ends_with(" 31"), "{layers}");
}

#[test]
#[ignore = "needs Vulkan's kernels; `make test-gpu` builds them"]
fn a_part_of_the_model_can_be_on_the_gpu() {
    let mut copied = Copied::with_vulkan();
    copied.installation.set("engine.gpu", "4");
    let (service, _program) = copied.start();
    assert!(answers(&service).iter().all(|answer| !answer.is_empty()));
    assert!(service.log().contains("4 of 31 layers on"), "{}", service.log());
}

#[test]
#[ignore = "needs Vulkan's kernels; `make test-gpu` builds them"]
fn check_names_the_gpu() {
    let copied = Copied::with_vulkan();
    let mut command = copied.installation.command(&["check"]);
    let output = Output::from_command(command.env("GGML_VK_VISIBLE_DEVICES", "0"));
    assert!(output.stdout.contains("31 of 31 layers on"), "{output:?}");
    // Unless the environment names it, Mesa's driver for CPUs does not count as a GPU.
    let output = copied.installation.run(&["check"]);
    assert!(output.stdout.contains("completes and measures") && !output.stdout.contains("layers on"), "{output:?}");
}
