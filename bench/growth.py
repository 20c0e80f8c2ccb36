#!/usr/bin/env python3
"""Measures whether a million keys, or ten million recorded requests, make requests or `usage` slower.

Fills databases with `crates/store/examples/fill.rs`, serves each in turn with the same instant runtime, and reports
the cost per request and the time that `adriaticum usage` takes. Loopback only; everything is removed afterwards.

    python3 bench/growth.py [--keys 1000000] [--requests 10000000] [--seconds 5] [--rounds 3]
                            [--results bench/RESULTS.md]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import installing
import load
import machine
import report
from gateways import clean_up_on_signals, make_folder, say, started, wait_for_completion
from peers import Adriaticum, InstantRuntime
from processes import Failed, free_port

CONNECTIONS = 32
USAGE_RUNS = 7
FILL_SECONDS = 1800


def main() -> int:
    arguments = parse_arguments()
    clean_up_on_signals()
    installing.debian_tool("wrk")
    bench_folder = installing.CACHE / "bench"
    bench_folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="growth-", dir=bench_folder) as name:
        folder = Path(name)
        facts = machine.describe(folder, arguments.results)
        runtime = InstantRuntime(make_folder(folder, "runtime"), free_port(), 0)
        runtime.install()
        sizes = [(1, 0), (arguments.keys, 0), (1_000, arguments.requests)]
        peers = {size: prepare(size, arguments, folder, runtime.port) for size in sizes}
        loads: dict[tuple[int, int], list[load.Load]] = {size: [] for size in sizes}
        usage = {size: time_usage(peer) for size, peer in peers.items()}
        with started(runtime):
            for turn in range(arguments.rounds):
                for size, peer in peers.items():
                    say(f"round {turn + 1} of {arguments.rounds}: {size[0]:,} keys, {size[1]:,} requests")
                    loads[size].append(measure(peer, arguments.seconds))
    text = render(facts, arguments, loads, usage)
    print(text)
    if arguments.results:
        report.write(arguments.results, "growth", text)
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--requests", type=int, default=10_000_000)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--results", type=Path, help="a Markdown file whose section on growth is replaced")
    arguments = parser.parse_args()
    target = Path(os.environ.get("CARGO_TARGET_DIR") or machine.REPOSITORY / "target")
    arguments.binary = (target / "release/adriaticum").resolve()
    arguments.fill = (target / "release/examples/fill").resolve()
    return arguments


def prepare(size: tuple[int, int], arguments: argparse.Namespace, folder: Path, runtime_port: int) -> Adriaticum:
    """Creates a data folder with a filled database."""
    keys, requests = size
    own = make_folder(folder, f"{keys}-{requests}")
    (own / "data").mkdir()
    say(f"filling {keys:,} keys and {requests:,} requests")
    command = [arguments.fill, own / "data/adriaticum.db", str(keys), str(requests)]
    try:
        subprocess.run(command, check=True, timeout=FILL_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        raise Failed(f"the database could not be filled; `make bench` builds the program that fills it:\n{error}") from error
    return Adriaticum(own, free_port(), runtime_port, arguments.binary)


def time_usage(peer: Adriaticum) -> float:
    """Median milliseconds of `adriaticum usage --since 30d`, with the start of the program."""
    command = [peer.binary, "usage", "--since", "30d", "--json"]
    times = []
    for _ in range(USAGE_RUNS):
        start = time.monotonic()
        subprocess.run(command, cwd=peer.folder, env=peer.environment(), check=True, stdout=subprocess.DEVNULL)
        times.append(1000 * (time.monotonic() - start))
    return statistics.median(times)


def measure(peer: Adriaticum, seconds: int) -> load.Load:
    with started(peer) as tree:
        headers = peer.headers()
        wait_for_completion(peer, tree, headers)
        load.apply(tree, peer.port, headers, CONNECTIONS, 1)
        return load.apply(tree, peer.port, headers, CONNECTIONS, seconds)


def render(
    facts: list[str],
    arguments: argparse.Namespace,
    loads: dict[tuple[int, int], list[load.Load]],
    usage: dict[tuple[int, int], float],
) -> str:
    lines = [
        "| keys | recorded requests before | requests/s | p50 | p99 | CPU per request | `usage --since 30d` |",
        "|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for (keys, requests), rounds in loads.items():
        figures = load.together(rounds)
        cells = [
            f"{keys:,}", f"{requests:,}", report.rate(figures.per_second), report.duration(figures.p50_us),
            report.duration(figures.p99_us), report.duration(figures.cpu_us), f"{usage[keys, requests]:.0f} ms",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    method = (
        f"Medians of {arguments.rounds} rounds of {arguments.seconds} s at {CONNECTIONS} connections with one of the "
        "keys. The recorded requests lie over 30 days and 1,000 keys."
    )
    parts = ["## Growth", "\n".join(f"- {fact}" for fact in facts), method, "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (installing.Unavailable, Failed) as reason:
        sys.exit(f"error: {reason}")
