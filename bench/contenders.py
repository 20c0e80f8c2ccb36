"""The servers that the engine table compares: our whole service with its embedded model, and the servers of llama.cpp and
of ik_llama.cpp.

All use the same model file and listen on loopback only. The other servers are built for this machine (`llama_build`), with
16 slots, one for each caller. llama.cpp's is also measured from a wheel for any machine, with default settings.
"""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import installing
from peers import Adriaticum, Peer
from processes import Failed, free_port

START_SECONDS = 120
PROBE_SECONDS = 60


STEP_COUNTERS = ("generating_steps", "slow_generating_steps")


@dataclass(frozen=True)
class Steps:
    """The engine's steps in which at least one request generated."""

    all: int
    slow: int  # longer than 0.25 s; all generating requests wait for them

    def __sub__(self, before: Steps) -> Steps:
        return Steps(self.all - before.all, self.slow - before.slow)

    def __add__(self, other: Steps) -> Steps:
        return Steps(self.all + other.all, self.slow + other.slow)


@dataclass
class Embedded(Adriaticum):
    """The service as `serve` starts it: API, keys, ledger, and the engine as its child process."""

    model: Path
    gpu: str = "auto"

    setup = "the whole service: key looked up, a durable row before each response, the engine in a separate process"
    start_seconds = START_SECONDS
    known_fault: ClassVar[None] = None  # no fault is retried

    def environment(self) -> dict[str, str]:
        settings = super().environment() | {"ADRIATICUM_MODEL": str(self.model), "ADRIATICUM_ENGINE_GPU": self.gpu}
        del settings["ADRIATICUM_RUNTIME_URLS"]  # without it, the embedded runtime is used
        return settings

    def forget_tuning(self) -> None:
        (self.folder / "data/tuning.json").unlink()

    def steps(self) -> Steps:
        """Since its start. The server must be running."""
        text = self.metrics()
        counts = [re.search(rf"^adriaticum_engine_{name}_total{{[^}}]*}} (\d+)", text, re.MULTILINE) for name in STEP_COUNTERS]
        if not all(counts):
            raise Failed("the metrics do not have the engine's steps")
        return Steps(*(int(count[1]) for count in counts))


@dataclass
class LlamaCpp(Peer):
    """llama.cpp's server."""

    model: Path

    start_seconds = START_SECONDS
    # A small model sometimes generates bytes that are not UTF-8, which is a 500 (llama.cpp's issue 27543).
    known_fault: ClassVar[str] = "The model produced output that does not match the expected"

    def environment(self) -> dict[str, str]:
        # LLAMA_ARG_… variables would change its settings.
        return {name: value for name, value in super().environment().items() if not name.startswith("LLAMA_ARG_")}

    def features(self) -> str:
        """The CPU features that it reports to use."""
        raise NotImplementedError

    def slots(self) -> int:
        """The number of requests that it processes at a time. The server must be running."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/props", timeout=10) as response:
            return json.load(response)["total_slots"]


class Wheel(LlamaCpp):
    name = "llama.cpp (wheel)"
    setup = "the wheel `xllamacpp`, built for many CPUs; default settings of `llama-server`"

    def install(self) -> None:
        installing.xllamacpp_python()

    def version(self) -> str:
        return installing.XLLAMACPP_VERSION

    def command(self) -> list[str]:
        script = Path(__file__).with_name("wheel_server.py")
        return [str(installing.xllamacpp_python()), str(script), str(self.model), str(self.port)]

    def features(self) -> str:
        question = "import xllamacpp; print(xllamacpp.get_system_info())"
        return _features(_output([str(installing.xllamacpp_python()), "-c", question]))


SLOTS = ("-np", "16", "-c", "32768")


@dataclass
class Native(LlamaCpp):
    """Built on this machine."""

    program: Path
    title: str = "llama.cpp"
    options: tuple[str, ...] = SLOTS

    @property
    def name(self) -> str:
        return self.title

    @property
    def setup(self) -> str:
        return f"`llama-server {' '.join(self.options)}`, built on this machine"

    def install(self) -> None:
        if not self.program.exists():
            raise installing.Unavailable(f"there is no llama-server:\n{self.program}")

    def version(self) -> str:
        return _version(_output([str(self.program), "--version"]))

    def command(self) -> list[str]:
        return [
            str(self.program), "-m", str(self.model), "--host", "127.0.0.1", "--port", str(self.port), *self.options,
        ]

    def features(self) -> str:
        # It prints them only at this verbosity and when it loads a model; a missing file is enough.
        missing, port = str(self.folder / "no-model"), str(free_port())
        return _features(_output([str(self.program), "-m", missing, "--port", port, "--log-verbosity", "4"]))


# Rows of weights are interleaved when the model is loaded.
IK_OPTIONS = (*SLOTS, "-rtr")
# All layers are on the GPU.
GPU_OPTIONS = ("-np", "64", "-ngl", "99")


def bare_loop(program: Path, model: Path, sequences: list[int]) -> dict[int, float]:
    """Tokens/s of llama.cpp's bare decoding loop (`llama-batched-bench`), by the number of sequences."""
    arguments = ["-m", str(model), "-ngl", "99", "-c", "65536", "-b", "2048", "-npp", "32", "-ntg", "128"]
    arguments += ["-npl", ",".join(map(str, sequences)), "--output-format", "jsonl"]
    said = _output([str(program), *arguments])
    rows = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    if not rows:
        raise Failed(f"{program.name} printed no figures:\n{said[-2000:]}")
    return {row["pl"]: row["speed_tg"] for row in rows}


Contender = Embedded | LlamaCpp


def _output(command: list[str]) -> str:
    """The output of the program; its exit code is ignored."""
    try:
        return subprocess.run(
            command, timeout=PROBE_SECONDS, text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(f"{Path(command[0]).name} did not print its version:\n{error}") from error


def _features(said: str) -> str:
    """The enabled features in llama.cpp's system information, `CPU : SSE3 = 1 | AVX512 = 0 | …`."""
    line = re.search(r"\bCPU : (.* = .*)", said)
    return ", ".join(re.findall(r"(\w+) = 1\b", line[1])) if line else "unknown"


def _version(said: str) -> str:
    line = re.search(r"^version: (.*)", said, re.MULTILINE)
    return line[1] if line else "of unknown version"
