#!/usr/bin/env python3
"""Compares the engine's answers on a GPU with those on the CPU. Both get the same questions at temperature 0; reports how
many answers differ, and from which word on. Loopback only; both services are stopped afterwards.

    python3 bench/agreement.py --model PATH [--binary PATH] [--questions 100]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

import chats
import installing
import machine
import prompts
from contenders import Embedded
from engine import responding
from gateways import clean_up_on_signals, make_folder, say
from processes import Failed

MAX_TOKENS = 64


def main() -> int:
    target = Path(os.environ.get("CARGO_TARGET_DIR") or machine.REPOSITORY / "target")
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--binary", type=Path, default=target / "release/adriaticum")
    parser.add_argument("--model", type=Path, required=True, help="a GGUF file")
    parser.add_argument("--questions", type=int, default=100)
    arguments = parser.parse_args()
    clean_up_on_signals()
    scenario = prompts.Scenario("short", "", 1, arguments.questions, 0, MAX_TOKENS)
    [(_, asked)] = prompts.make(1, False, (scenario,))
    chats.TEMPERATURE = 0
    with tempfile.TemporaryDirectory(prefix="agreement-") as folder:
        answers = {}
        for gpu in ("off", "auto"):
            own = make_folder(Path(folder), gpu)
            answers[gpu] = ask_all(Embedded(own, 0, 0, arguments.binary.resolve(), arguments.model.resolve(), gpu), asked)
    report(answers["off"], answers["auto"])
    return 0


def ask_all(contender: Embedded, asked: list[prompts.Chat]) -> list[str]:
    """Sequentially, because batching changes the rounding."""
    contender.install()
    with responding(contender, 1) as (_tree, server, _seconds):
        return [chats.ask(server, chat).text for chat in asked]


def report(cpu: list[str], gpu: list[str]) -> None:
    differing = [common_words(one, other) for one, other in zip(cpu, gpu, strict=True) if one != other]
    say(f"{len(differing)} of {len(cpu)} answers of at most {MAX_TOKENS} tokens differ")
    if differing:
        first, median = min(differing), statistics.median(differing)
        say(f"after {first} equal words at least, {median:.0f} in the median, {max(differing)} at most")


def common_words(one: str, other: str) -> int:
    """How many words at the beginning are equal."""
    pairs = enumerate(zip(one.split(), other.split()))
    return next((at for at, (left, right) in pairs if left != right), min(len(one.split()), len(other.split())))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (installing.Unavailable, Failed) as reason:
        sys.exit(f"error: {reason}")
