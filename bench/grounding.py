#!/usr/bin/env python3
"""Measures the speed of the built-in index and the scorer.

Builds the examples of the crate `grounding` with cargo, runs `index_bench` (and `scorer_bench`, if it exists) several
times, and takes medians. The texts and questions are always the same; everything is removed afterwards. With the file
of the sentence encoder (`sentence-encoder.whl` in a data folder), one more run has vectors.

    python3 bench/grounding.py [--passages 100000] [--runs 3] [--encoder FILE] [--results bench/RESULTS.md]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import installing
import machine
import report
from gateways import clean_up_on_signals, say
from processes import Failed

BUILD_SECONDS = 3600
RUN_SECONDS = 1800
EXAMPLES = machine.REPOSITORY / "crates/grounding/examples"
PROFILE = "CARGO_PROFILE_RELEASE_"
# Above this load, other programs distort the figures.
BUSY = 0.5

Figures = dict[str, float]
Line = tuple[str, str, Callable[[float], str]]

INDEX: tuple[Line, ...] = (
    ("passages indexed in a second", "passages_per_second", lambda value: f"{value:,.0f}"),
    ("indexing all of them", "seconds", lambda value: f"{value:.2f} s"),
    ("adding the folder again, nothing changed", "seconds_unchanged", lambda value: f"{value:.2f} s"),
    ("a question, p50", "p50_ms", lambda value: f"{value:.2f} ms"),
    ("a question, p99", "p99_ms", lambda value: f"{value:.2f} ms"),
    ("a question, slowest", "max_ms", lambda value: f"{value:.2f} ms"),
    ("on disk", "bytes_on_disk", lambda value: f"{value / 1_000_000:.1f} MB"),
)
SCORER: tuple[Line, ...] = (
    ("a request, mean", "mean_us", lambda value: f"{value:.1f} µs"),
    ("a request, p50", "p50_us", lambda value: f"{value:.1f} µs"),
    ("a request, p99", "p99_us", lambda value: f"{value:.1f} µs"),
    ("the largest conversations there can be", "worst_case_us", lambda value: f"{value:,.1f} µs"),
)


def main() -> int:
    arguments = parse_arguments()
    clean_up_on_signals()
    bench_folder = installing.CACHE / "bench"
    bench_folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="grounding-", dir=bench_folder) as name:
        folder = Path(name)
        facts = machine.describe(folder, arguments.results) + circumstances()
        build()
        index = [run(arguments, folder, "index_bench", str(arguments.passages)) for _ in range(arguments.runs)]
        parameters = [str(arguments.passages), str(arguments.encoder)]
        encoded = [run(arguments, folder, "index_bench", *parameters)] if arguments.encoder else []
        scorer = []
        # Check the source: a program in the target folder may be from another branch.
        if (EXAMPLES / "scorer_bench.rs").exists():
            scorer = [run(arguments, folder, "scorer_bench") for _ in range(arguments.runs)]
    text = render(facts, arguments.runs, index, encoded, scorer)
    print(text)
    if arguments.results:
        report.write(arguments.results, "grounding", text)
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--encoder", type=Path, help="the sentence encoder's file")
    parser.add_argument("--results", type=Path, help="a Markdown file whose section on grounding is replaced")
    arguments = parser.parse_args()
    target = Path(os.environ.get("CARGO_TARGET_DIR") or machine.REPOSITORY / "target")
    arguments.examples = (target / "release/examples").resolve()
    return arguments


def circumstances() -> list[str]:
    """Conditions that distort the figures. Called before the build, which is itself a load."""
    found = []
    if os.getloadavg()[0] > BUSY:
        found.append("the machine was busy with other programs: an idle one is faster")
    if profile := sorted(name for name in os.environ if name.startswith(PROFILE)):
        values = ", ".join(f"{name.removeprefix(PROFILE).lower()} = {os.environ[name]}" for name in profile)
        found.append(f"not the release build as it is shipped, but one with {values}")
    return found


def build() -> None:
    command = ["build", "--release", "--locked", "-p", "grounding", "--examples"]
    say(f"cargo {' '.join(command)}")
    cargo = os.environ.get("CARGO") or "cargo"
    subprocess.run([cargo, *command], cwd=machine.REPOSITORY, check=True, timeout=BUILD_SECONDS)


def run(arguments: argparse.Namespace, folder: Path, example: str, *parameters: str) -> Figures:
    """The figures of one run, which prints them as one line of JSON."""
    command = [arguments.examples / example, *parameters]
    environment = os.environ | {"TMPDIR": str(folder)}
    done = subprocess.run(command, env=environment, check=True, timeout=RUN_SECONDS, stdout=subprocess.PIPE, text=True)
    say(f"{example}: {done.stdout.strip()}")
    try:
        return json.loads(done.stdout)
    except json.JSONDecodeError as error:
        raise Failed(f"{example} did not print JSON:\n{done.stdout}") from error


def render(
    facts: list[str], runs: int, index: list[Figures], encoded: list[Figures], scorer: list[Figures]
) -> str:
    first = index[0]
    parts = [
        "## Grounding",
        "\n".join(f"- {fact}" for fact in facts),
        f"Medians of {runs} runs, one after the other.",
        "### The built-in index",
        f"{first['passages']:,} passages of 70 to 190 words in Markdown files, words as frequent as in real texts;"
        f" {first['questions']:,} questions of two to ten words, one at a time, of which {first['answered']:,} find something."
        " Indexing uses every core, a question one.",
        table(INDEX, index),
    ]
    if encoded:
        parts += ["With the vectors of the sentence encoder, one run:", table(INDEX, encoded)]
    if scorer:
        parts += [
            "### The scorer",
            f"{scorer[0]['rows']:,} labelled requests in nine languages, on one thread.",
            table(SCORER, scorer),
        ]
    return "\n\n".join(parts) + "\n"


def table(lines: tuple[Line, ...], runs: list[Figures]) -> str:
    rows = ["| | median | least–most |", "|---|--:|--:|"]
    for title, name, written in lines:
        values = [run[name] for run in runs]
        rows.append(f"| {title} | {written(statistics.median(values))} | {written(min(values))}–{written(max(values))} |")
    return "\n".join(rows)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Failed, installing.Unavailable, OSError, subprocess.SubprocessError) as error:
        sys.exit(f"grounding: {error}")
