#!/usr/bin/env python3
"""Compares the speed of our service and its embedded model with the servers of llama.cpp and ik_llama.cpp.

In each repetition the contenders take turns: each is started, gets the same chats as the others, and is stopped before
the next one starts. Loopback only. All processes are stopped afterwards, also after Ctrl-C. The tables go to standard
output and, with --results, to a file.

    python3 bench/engine.py [--quick] [--repeat 5] [--only short,shared] [--contenders adriaticum,wheel]
                            [--model FILE|SHAPE] [--llama-source PATH] [--ik-source PATH] [--cpu cascadelake]
                            [--binary PATH] [--results bench/RESULTS.md]
    python3 bench/engine.py --gpu --llama-server PATH …    # on a machine with a GPU, with a server built for it
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import chats
import engine_report
import installing
import llama_build
import machine
import prompts
import report
import shapes
from contenders import GPU_OPTIONS, IK_OPTIONS, Contender, Embedded, LlamaCpp, Native, Steps, Wheel, bare_loop
from gateways import clean_up_on_signals, make_folder, say, started
from processes import Failed, ProcessTree, free_port

CONTENDERS = ("adriaticum", "llama", "ik", "wheel")
GPU_CONTENDERS = ("adriaticum", "gpu")
BARE_SEQUENCES = [1, 16, 64, 128]
FETCH_SECONDS = 1800
RETRY_BACKOFF_SECONDS = 0.02
BUSY_SECONDS = 300
ABOUT = (
    "Ours ÷ the best of the other servers, under the same load, medians; and our own figure. Models are named by "
    "`model = …`; those of a size (`0.5b`, `8b`) have its shape and random weights, in Q4_K_M. "
    "`python3 bench/engine.py --model FILE|SHAPE --llama-source … --ik-source … --results bench/RESULTS.md` adds a row."
)


@dataclass
class Record:
    """The results of one contender."""

    contender: Contender
    version: str
    details: str = ""
    first_starts: engine_report.FirstStarts | None = None
    starts: list[float] = field(default_factory=list)  # seconds to the first completion
    steps: dict[prompts.Scenario, Steps] = field(default_factory=dict)
    measurements: dict[prompts.Scenario, list[chats.Measurement]] = field(default_factory=dict)

    def row(self) -> engine_report.Row:
        setup = self.contender.setup + self.details
        is_ours = isinstance(self.contender, Embedded)
        return engine_report.Row(
            self.contender.name, self.version, setup, self.first_starts, self.starts, is_ours, self.measurements,
            self.steps,
        )


def main() -> int:
    arguments = parse_arguments()
    clean_up_on_signals()
    bench_folder = installing.CACHE / "bench"
    bench_folder.mkdir(parents=True, exist_ok=True)
    model = find_model(arguments, bench_folder / "engine")
    with tempfile.TemporaryDirectory(prefix="engine-", dir=bench_folder) as folder:
        facts = [*machine.describe(Path(folder), arguments.results), cpu_features(), describe_model(model)]
        if arguments.gpu:
            facts += [gpu_facts(), bare_facts(arguments.llama_server, model)]
        records = compare(arguments, model, Path(folder))
    title = "Engine on a GPU" if arguments.gpu else "Engine"
    rows = [record.row() for record in records]
    text = engine_report.render(title, facts, method(arguments), arguments.scenarios, rows)
    print(text)
    if arguments.results:
        name = "engine-gpu" if arguments.gpu else "engine"
        header = ["machine", "model", "when", *(scenario.title() for scenario in arguments.scenarios)]
        computes = gpu_facts() if arguments.gpu else cpu_features().partition(":")[0]
        cells = [f"{facts[1].partition(', Linux')[0]}; {computes}", model.name, f"{facts[0]}, {arguments.repeat} repetitions"]
        cells += engine_report.summary(arguments.scenarios, rows)
        report.write_row(arguments.results, name, f"## {title}\n\n{ABOUT}", header, cells)
    return 0


def parse_arguments() -> argparse.Namespace:
    target = Path(os.environ.get("CARGO_TARGET_DIR") or machine.REPOSITORY / "target")
    names = list(dict.fromkeys(scenario.name for scenario in prompts.SCENARIOS))
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--binary", type=Path, default=target / "release/adriaticum", help="adriaticum's")
    shapes_known = ", ".join(shapes.SHAPES)
    parser.add_argument("--model", help=f"a GGUF file, or a size with random weights: {shapes_known} (the default model)")
    parser.add_argument("--llama-source", type=Path, help="a checkout of llama.cpp, whose server is built and compared")
    parser.add_argument("--ik-source", type=Path, help="the same of ik_llama.cpp")
    parser.add_argument("--cpu", default="native", help="the CPU that it is built for, as GCC names it (native)")
    parser.add_argument("--repeat", type=int, help="number of repetitions, of which medians are reported (5)")
    parser.add_argument("--only", help=f"some of the scenarios, separated by commas: {','.join(names)}")
    parser.add_argument("--contenders", help=f"some of {','.join(CONTENDERS)}; the wheel unless there is a source")
    parser.add_argument("--results", type=Path, help="a Markdown file whose section on the engine is replaced")
    parser.add_argument("--gpu", action="store_true", help="with a GPU: more at a time, against --llama-server")
    parser.add_argument("--llama-server", type=Path, help="llama.cpp's server, built already; for --gpu with its kernels")
    parser.add_argument("--ik-server", type=Path, help="ik_llama.cpp's server, built already")
    parser.add_argument("--quick", action="store_true", help="1 repetition, with fewer chats")
    arguments = parser.parse_args()

    others = {
        "llama": arguments.llama_source or arguments.llama_server,
        "ik": arguments.ik_source or arguments.ik_server,
    }
    available = ["adriaticum", *(name for name, found in others.items() if found), "wheel"]
    if arguments.gpu:
        available = GPU_CONTENDERS
        if not (arguments.llama_server and arguments.llama_server.is_file()):
            parser.error("--gpu needs --llama-server, the path of a server that was built with kernels for the GPU")
    arguments.scenarios = prompts.GPU_SCENARIOS if arguments.gpu else prompts.SCENARIOS
    arguments.binary = arguments.binary.resolve()
    arguments.repeat = arguments.repeat or (1 if arguments.quick else 5)
    arguments.only = chosen(parser, "scenario", arguments.only, names)
    # With a server for this machine, the wheel says nothing.
    default = [name for name in available if name != "wheel" or len(available) == 2]
    arguments.contenders = chosen(parser, "contender", arguments.contenders or ",".join(default), available)
    if not 1 <= arguments.repeat <= 20:
        parser.error("--repeat must be between 1 and 20")
    if arguments.model and arguments.model not in shapes.SHAPES and not Path(arguments.model).is_file():
        parser.error(f"there is no file {arguments.model}, and no such size: {shapes_known}")
    return arguments


def chosen(parser: argparse.ArgumentParser, what: str, wanted: str | None, available: tuple | list) -> list[str]:
    names = [name.strip() for name in wanted.split(",")] if wanted else list(available)
    if unknown := set(names) - set(available):
        parser.error(f"no such {what}: {', '.join(sorted(unknown))}; there are {', '.join(available)}")
    return [name for name in available if name in names]


def find_model(arguments: argparse.Namespace, folder: Path) -> Path:
    """The file that is named, one of the size that is named, or the default model."""
    if not arguments.model:
        return fetch_model(arguments.binary, folder)
    if arguments.model not in shapes.SHAPES:
        return Path(arguments.model).resolve()
    path = folder / f"{arguments.model}.gguf"
    if not path.exists():
        shapes.write(arguments.model, fetch_model(arguments.binary, folder), path)
    return path


def fetch_model(binary: Path, folder: Path) -> Path:
    """The default model; downloaded by our own program on the first run."""
    model = folder / "model.gguf"
    if not model.exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [binary, "model", "fetch", "--data-dir", folder]
        try:
            subprocess.run(command, cwd=folder, check=True, timeout=FETCH_SECONDS, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.SubprocessError) as error:
            raise Failed(f"the model could not be fetched; --model takes one that is here:\n{error}") from error
    return model


def describe_model(model: Path) -> str:
    with model.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return f"model {model.name}, {model.stat().st_size:,} bytes, SHA-256 {digest[:16]}…"


def compare(arguments: argparse.Namespace, model: Path, folder: Path) -> list[Record]:
    """Runs all repetitions. The first failure ends them."""
    records = [prepare(make_contender(name, arguments, model, folder)) for name in arguments.contenders]
    for repetition in range(1, arguments.repeat + 1):
        scenarios = [
            (scenario, made) for scenario, made in prompts.make(repetition, arguments.quick, arguments.scenarios)
            if scenario.name in arguments.only
        ]
        for record in records:
            say(f"repetition {repetition} of {arguments.repeat}: {record.contender.name}")
            take_turn(record, repetition, scenarios)
    return records


def make_contender(name: str, arguments: argparse.Namespace, model: Path, folder: Path) -> Contender:
    own, port = make_folder(folder, name), 0  # each start sets another port
    match name:
        case "adriaticum":
            return Embedded(own, port, 0, arguments.binary, model)
        case "gpu":
            return Native(own, port, 0, model, arguments.llama_server, "llama.cpp (on the GPU)", GPU_OPTIONS)
        case "llama":
            program = arguments.llama_server or llama_build.server(arguments.llama_source, arguments.cpu)
            return Native(own, port, 0, model, program)
        case "ik":
            program = arguments.ik_server or llama_build.server(arguments.ik_source, arguments.cpu)
            return Native(own, port, 0, model, program, "ik_llama.cpp", IK_OPTIONS)
        case _:
            return Wheel(own, port, 0, model)


def prepare(contender: Contender) -> Record:
    """Installs the contender. Ours also tunes itself, so that all later starts are alike."""
    contender.install()
    record = Record(contender, contender.version())
    if isinstance(contender, Embedded):
        record.first_starts = first_starts(contender)
    return record


def first_starts(contender: Embedded) -> engine_report.FirstStarts:
    say(f"first starts: {contender.name}")

    def seconds() -> float:
        with responding(contender, 0) as (_tree, _server, seconds):
            return seconds

    with busy_process():
        busy = seconds()
    contender.forget_tuning()
    quiet = seconds()
    with busy_process():
        busy_tuned = seconds()
    return engine_report.FirstStarts(quiet, busy, busy_tuned)


def take_turn(record: Record, repetition: int, scenarios: list[tuple[prompts.Scenario, list[prompts.Chat]]]) -> None:
    """Starts the contender, measures it in each scenario, and stops it."""
    contender = record.contender
    with responding(contender, repetition) as (tree, server, seconds):
        record.starts.append(seconds)
        if isinstance(contender, LlamaCpp) and not record.details:
            record.details = f"; {contender.slots()} slots; CPU features: {contender.features()}"
        for scenario, made in scenarios:
            before = contender.steps() if isinstance(contender, Embedded) else None
            try:
                with busy_process() if scenario.beside_a_busy_process else contextlib.nullcontext():
                    measured = chats.measure(server, made, scenario.at_a_time)
                tree.require_alive()
            except Failed as reason:
                raise Failed(f"{contender.name}, {scenario.title()}: {reason}\n{tree.last_words()}") from reason
            say(
                f"  {scenario.title()}: {measured.requests_per_second():.2f} requests/s, "
                f"{measured.tokens_per_second():.0f} tokens/s in {measured.seconds:.1f} s"
            )
            record.measurements.setdefault(scenario, []).append(measured)
            if before:
                record.steps[scenario] = record.steps.get(scenario, Steps(0, 0)) + (contender.steps() - before)
    if sentence := contender.after_stop(tree.exit_code):
        raise Failed(sentence)


@contextlib.contextmanager
def busy_process() -> Iterator[None]:
    """A process that computes all the time, at normal priority. It also ends after `BUSY_SECONDS`."""
    loop = f"import time\nend = time.monotonic() + {BUSY_SECONDS}\nwhile time.monotonic() < end: pass"
    with subprocess.Popen([sys.executable, "-c", loop], stdin=subprocess.DEVNULL) as process:
        try:
            time.sleep(0.5)  # until it computes
            yield
            if process.poll() is not None:
                raise Failed("the busy process has ended too soon")
        finally:
            process.kill()


def cpu_features() -> str:
    """The CPU features by which kernels choose their instructions."""
    flags = re.search(r"^(?:flags|Features)\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    relevant = ("avx2", "avx512", "avx_vnni", "amx", "asimd", "sve", "i8mm", "bf16")
    found = [flag for flag in (flags[1].split() if flags else []) if flag.startswith(relevant)]
    amx = "with AMX" if any(flag.startswith("amx") for flag in found) else "without AMX"
    return f"CPU {amx}: {' '.join(found)}"


def gpu_facts() -> str:
    """The card and its driver."""
    question = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(question, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return "GPU: not NVIDIA's"
    return f"GPU: {said.strip()} (driver)"


def bare_facts(server: Path, model: Path) -> str:
    """The card's speed without a server."""
    program = server.with_name("llama-batched-bench")
    if not program.exists():
        return "llama.cpp's bare decoding loop: not measured, because llama-batched-bench is not beside the server"
    figures = bare_loop(program, model, BARE_SEQUENCES)
    rates = ", ".join(f"{tokens:,.0f} tokens/s for {count}" for count, tokens in figures.items())
    return f"llama.cpp's bare decoding loop (`llama-batched-bench`, 32 prompt tokens and 128 generated each): {rates}"


@contextlib.contextmanager
def responding(contender: Contender, repetition: int) -> Iterator[tuple[ProcessTree, chats.Server, float]]:
    """Yields the contender after its first completion, with the seconds since its start."""
    contender.port = free_port()  # llama.cpp's server cannot reuse its port immediately
    begin = time.monotonic()
    with started(contender) as tree:
        server = chats.Server(contender.port, contender.headers(), contender.known_fault)
        chat = prompts.first(repetition)
        while True:
            tree.require_alive()
            try:
                chats.ask(server, chat)
                break
            except Failed as reason:
                if time.monotonic() - begin > contender.start_seconds:
                    raise Failed(f"{contender.name} did not respond: {reason}\n{tree.last_words()}") from reason
            time.sleep(RETRY_BACKOFF_SECONDS)
        yield tree, server, time.monotonic() - begin


def method(arguments: argparse.Namespace) -> str:
    repetitions = "One repetition" if arguments.repeat == 1 else f"Medians of {arguments.repeat} repetitions"
    quick = ", with fewer chats than usual, and so at times fewer at a time" if arguments.quick else ""
    return (
        f"{repetitions}{quick}. In each, all contenders get the same chats, one contender after the other, freshly "
        f"started; the next repetition has others. Temperature {chats.TEMPERATURE}; llama.cpp's server cuts the "
        "candidates by its defaults, too (top-k, top-p, min-p), ours does not. Token counts are those of "
        "`usage`; every request got 200. The callers share the cores with the contender. The ratio to the best of the others "
        "is set in bold."
    )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (installing.Unavailable, Failed) as reason:
        sys.exit(f"error: {reason}")
