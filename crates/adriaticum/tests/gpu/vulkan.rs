//! Vulkan's kernels on Mesa's driver for CPUs: slow, but real.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;
use testbed::{Output, Request, Service};

use crate::{ADRIATICUM, BINARY, Copied};

const PROMPTS: [&str; 3] = ["What is the capital of France?", "Count from one to five.", "Name a colour."];

impl Copied {
    /// With the library that `make test-gpu` has built.
    fn with_vulkan() -> Self {
        let copied = Self::new();
        let target = PathBuf::from(BINARY).parent().unwrap().parent().unwrap().to_owned();
        let built = target.join("test-gpu/kernels/libggml-vulkan.so");
        fs::copy(&built, copied.library("libggml-vulkan.so")).unwrap_or_else(|error| panic!("{built:?}: {error}"));
        copied
    }

    /// The driver for CPUs is used only if it is asked for.
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

#[test]
#[ignore = "needs Vulkan's kernels; `make test-gpu` builds them"]
fn a_gpu_answers_as_the_cpu_does() {
    let (on_gpu, _program) = Copied::with_vulkan().start();
    let (gpu, log) = (answers(&on_gpu), on_gpu.log());
    assert!(log.contains("31 of 31 layers on") && log.contains("Vulkan0"), "{log}");
    let (_, metrics) = on_gpu.get_ops("/metrics");
    let layers = metrics.lines().find(|line| line.starts_with("adriaticum_engine_gpu_layers{")).unwrap_or_default();
    assert!(layers.ends_with(" 31"), "{layers}");
    drop(on_gpu);

    let mut copied = Copied::with_vulkan();
    copied.installation.set("engine.gpu", "off");
    let (on_cpu, _program) = copied.start();
    let cpu = answers(&on_cpu);
    assert!(!on_cpu.log().contains("layers on"), "{}", on_cpu.log());
    // Rounding differs, so a word may, but not in the beginning.
    for (gpu, cpu) in gpu.iter().zip(&cpu) {
        assert_eq!(gpu.chars().take(12).collect::<String>(), cpu.chars().take(12).collect::<String>());
    }
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
    let output = Output::of(command.env("GGML_VK_VISIBLE_DEVICES", "0"));
    assert!(output.stdout.contains("31 of 31 layers on"), "{output:?}");
    // Without leave, Mesa's driver for CPUs is no GPU.
    let output = copied.installation.run(&["check"]);
    assert!(output.stdout.contains("completes and measures") && !output.stdout.contains("layers on"), "{output:?}");
}
