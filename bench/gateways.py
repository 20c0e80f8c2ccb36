#!/usr/bin/env python3
"""Measures the throughput, latency and CPU cost of gateways.

All gateways have the same instant runtime behind them, so that only the gateway is measured. In each round the peers
take turns, and no other peer runs during a turn. Loopback only. All processes are stopped afterwards, also after
Ctrl-C. The tables go to standard output and, with --results, to a file.

    python3 bench/gateways.py [--quick] [--only nginx,adriaticum] [--seconds 10] [--rounds 3]
                              [--binary PATH] [--results bench/RESULTS.md]
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import installing
import load
import machine
import report
from peers import COMPLETION_TEXT, CORES, Adriaticum, InstantRuntime, LimitedAdriaticum, LiteLLM, Nginx, Peer, Portkey
from processes import Failed, ProcessTree, free_port, wait_for_port

CONNECTIONS = (32, 1)
PEERS: dict[str, type[Peer]] = {peer.name: peer for peer in (Nginx, Adriaticum, LimitedAdriaticum, Portkey, LiteLLM)}
MIN_SECONDS = 3
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class Record:
    """The results of one peer."""

    peer: Peer
    version: str = ""
    loads: dict[int, list[load.Load]] = field(default_factory=lambda: {count: [] for count in CONNECTIONS})
    requests: int = 0  # warm-ups included
    remarks: list[str] = field(default_factory=list)
    after_load: str | None = None  # the peer's last remark
    failed: bool = False

    def row(self) -> report.Row:
        figures = {count: load.together(loads) for count, loads in self.loads.items() if loads}
        remarks = [*self.remarks, *([self.after_load] if self.after_load else [])]
        return report.Row(self.peer.name, self.version, self.peer.setup, figures, remarks)


def main() -> int:
    arguments = parse_arguments()
    clean_up_on_signals()
    bench_folder = installing.CACHE / "bench"
    bench_folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="run-", dir=bench_folder) as folder:
        facts = machine.describe(Path(folder), arguments.results)
        records = compare(arguments, Path(folder))
    measured = [record for record in records if any(record.loads.values())]
    if measured:
        text = report.render(facts, method(arguments), [record.row() for record in records])
        print(text)
    good = bool(measured) and not any(record.failed for record in records)
    if arguments.results and good:
        report.write(arguments.results, "gateways", text)
    elif arguments.results:
        say(f"{arguments.results} is left as it was")
    return 0 if good else 1


def parse_arguments() -> argparse.Namespace:
    target = Path(os.environ.get("CARGO_TARGET_DIR") or machine.REPOSITORY / "target")
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--binary", type=Path, default=target / "release/adriaticum", help="adriaticum's")
    parser.add_argument("--seconds", type=int, help="duration of each measurement (10)")
    parser.add_argument("--rounds", type=int, help="number of rounds, of which medians are reported (3)")
    parser.add_argument("--only", help=f"some of the peers, separated by commas: {','.join(PEERS)}")
    parser.add_argument("--results", type=Path, help="a Markdown file whose section on gateways is replaced")
    parser.add_argument("--quick", action="store_true", help="1 round of 3 seconds, nginx and adriaticum only")
    arguments = parser.parse_args()

    seconds, rounds, only = (3, 1, "nginx,adriaticum") if arguments.quick else (10, 3, ",".join(PEERS))
    arguments.binary = arguments.binary.resolve()
    arguments.seconds = arguments.seconds or seconds
    arguments.rounds = arguments.rounds or rounds
    arguments.only = [name.strip() for name in (arguments.only or only).split(",")]
    if unknown := set(arguments.only) - set(PEERS):
        parser.error(f"no such peer: {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    if not (1 <= arguments.seconds <= 120 and 1 <= arguments.rounds <= 20):
        parser.error("--seconds must be between 1 and 120, --rounds between 1 and 20")
    return arguments


def compare(arguments: argparse.Namespace, folder: Path) -> list[Record]:
    """Runs all rounds. A peer that fails is skipped in later ones."""
    installing.debian_tool("wrk")
    runtime = InstantRuntime(make_folder(folder, "runtime"), free_port(), 0)
    runtime.install()
    peers = [make_peer(name, arguments.binary, folder, runtime.port) for name in PEERS if name in arguments.only]
    records = [Record(peer) for peer in peers]
    ready = [record for record in records if prepare(record)]
    with started(runtime):
        for turn in range(arguments.rounds):
            for record in ready:
                if not record.failed:
                    say(f"round {turn + 1} of {arguments.rounds}: {record.peer.name}")
                    take_turn(record, runtime, arguments.seconds)
    return records


def make_peer(name: str, binary: Path, folder: Path, runtime_port: int) -> Peer:
    own, port = make_folder(folder, name), free_port()
    kind = PEERS[name]
    if issubclass(kind, Adriaticum):
        return kind(own, port, runtime_port, binary)
    return kind(own, port, runtime_port)


def make_folder(parent: Path, name: str) -> Path:
    folder = parent / name
    folder.mkdir()
    return folder


def prepare(record: Record) -> bool:
    """Installs the peer. One that cannot be installed is omitted, with the reason as a remark."""
    try:
        record.peer.install()
        record.version = record.peer.version()
        return True
    except (installing.Unavailable, Failed) as reason:
        remark(record, f"{record.peer.name} is omitted: {reason}")
        return False


def take_turn(record: Record, runtime: InstantRuntime, seconds: int) -> None:
    """Starts the peer, measures it at each number of connections, and stops it."""
    peer = record.peer
    seconds = max(min(MIN_SECONDS, seconds), round(seconds * peer.share_of_time))
    try:
        with started(peer) as tree:
            headers = peer.headers()
            wait_for_completion(peer, tree, headers)
            warm_up_seconds = peer.warm_up_seconds
            for count in CONNECTIONS:
                warm_up = load.apply(tree, peer.port, headers, count, warm_up_seconds)
                warm_up_seconds = 1
                served = runtime.served()
                measured = load.apply(tree, peer.port, headers, count, seconds)
                completions = measured.requests - measured.statuses
                if (passed_on := runtime.served() - served) < completions:
                    raise Failed(f"of {completions} completions only {passed_on} came from the runtime")
                record.loads[count].append(measured)
                record.requests += warm_up.requests + measured.requests
            record.after_load = peer.after_load(record.requests)
        if sentence := peer.after_stop(tree.exit_code):
            remark(record, sentence)
    except Failed as reason:
        record.failed = True
        remark(record, f"{peer.name} failed: {reason}")


@contextlib.contextmanager
def started(peer: Peer) -> Iterator[ProcessTree]:
    """Runs the peer; it listens when the block begins."""
    with ProcessTree(peer.command(), peer.folder, peer.environment()) as tree:
        wait_for_port(tree, peer.port, peer.start_seconds)
        yield tree


def wait_for_completion(peer: Peer, tree: ProcessTree, headers: dict[str, str]) -> None:
    """Waits until a request gets 200 with the runtime's own text."""
    body = load.REQUEST.read_bytes()
    headers = headers | {"Content-Type": "application/json"}
    deadline = time.monotonic() + peer.start_seconds
    said = "nothing"
    while time.monotonic() < deadline:
        tree.require_alive()
        try:
            connection = http.client.HTTPConnection("127.0.0.1", peer.port, timeout=load.RESPONSE_TIMEOUT_SECONDS)
            with contextlib.closing(connection):
                connection.request("POST", load.COMPLETIONS, body, headers)
                response = connection.getresponse()
                said = f"{response.status} {response.read().decode(errors='replace')}"
            if response.status == 200 and json.loads(said[4:])["choices"][0]["message"]["content"] == COMPLETION_TEXT:
                return
        except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
            said = f"{said} ({error!r})"
        time.sleep(0.2)
    raise Failed(f"{peer.name} returned no completion within {peer.start_seconds} s; its last response: {said[:500]}")


def method(arguments: argparse.Namespace) -> str:
    rounds = "One round" if arguments.rounds == 1 else f"Medians of {arguments.rounds} rounds"
    return (
        f"{rounds} of {arguments.seconds} s per measurement ({LiteLLM.name}: {LiteLLM.share_of_time:.0%} of that), by "
        f"`wrk` with one thread. Load, gateway and instant runtime ({InstantRuntime.setup}) share the {CORES} cores. "
        "CPU is the gateway's own; resident memory is the sum over its processes. In each measurement the runtime "
        "counted at least as many requests as the gateway served."
    )


def remark(record: Record, text: str) -> None:
    """One line for the report; the whole text to standard error."""
    record.remarks.append(text.partition("\n")[0].rstrip(":"))
    say(text)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def clean_up_on_signals() -> None:
    """Turns signals into an exception, so that every `with` block cleans up."""
    handled = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]

    def leave(number: int, _frame: object) -> NoReturn:
        for other in handled:
            signal.signal(other, signal.SIG_IGN)  # a second Ctrl-C must not interrupt the cleanup
        raise SystemExit(128 + number)

    for number in handled:
        signal.signal(number, leave)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (installing.Unavailable, Failed) as reason:
        sys.exit(f"error: {reason}")
