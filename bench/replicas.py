#!/usr/bin/env python3
"""Measures the capacity of one, two and three replicas over one PostgreSQL, and the cost of a request, with and without
limits on the key.

The replicas use the same instant runtime, and each gets its share of the connections. CPU time is measured separately
for the replicas, for PostgreSQL, and for the benchmark itself (load and runtime). On a machine with few cores the
total cannot grow with replicas; the cost of a request shows the capacity of more cores. It also measures PostgreSQL
alone: rows from several writers, and key lookups. Loopback only; everything is removed afterwards.

    python3 bench/replicas.py [--seconds 6] [--rounds 3] [--results bench/RESULTS.md]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import installing
import load
import machine
import report
from gateways import clean_up_on_signals, make_folder, say, started, wait_for_completion
from peers import Adriaticum, InstantRuntime, LimitedAdriaticum
from processes import CLOCK_TICKS, Failed, ProcessTree, free_port, wait_for_port

CONNECTIONS = 48
WRITERS = ((1, 1), (3, 1), (3, 1_000), (8, 1_000))
PROGRAMS = Path("/usr/lib/postgresql")


class Postgres:
    """A PostgreSQL server with its own data folder. It never runs as root, which PostgreSQL refuses."""

    def __init__(self, folder: Path):
        self.folder, self.port = folder, free_port()
        shutil.chown(folder, *self._user()) if os.geteuid() == 0 else None
        self._run("initdb", "-D", str(folder / "data"), "-U", "bench", "-A", "trust", "--no-locale", "-E", "UTF8")

    @contextlib.contextmanager
    def started(self) -> Iterator[ProcessTree]:
        options = ["-p", str(self.port), "-k", str(self.folder), "-c", "listen_addresses=127.0.0.1"]
        command = [*self._as_user(), self._program("postgres"), "-D", str(self.folder / "data"), *options]
        with ProcessTree(command, self.folder, dict(os.environ)) as tree:
            wait_for_port(tree, self.port, 20)
            yield tree

    def database(self, name: str) -> str:
        """Creates a database and returns its URL."""
        self._run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "bench", name)
        return f"postgres://bench@127.0.0.1:{self.port}/{name}?sslmode=disable"

    def cpu_seconds(self) -> float:
        """User and system time of the server and its children, exited ones included."""
        postmaster = int((self.folder / "data/postmaster.pid").read_text().split()[0])
        total = 0.0
        for entry in os.listdir("/proc"):
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                if int(entry) == postmaster:
                    total += sum(int(ticks) for ticks in fields[11:15])  # with exited children
                elif int(fields[1]) == postmaster:
                    total += int(fields[11]) + int(fields[12])
        return total / CLOCK_TICKS

    def version(self) -> str:
        return self._run("postgres", "--version").split()[2]

    def _run(self, program: str, *arguments: str) -> str:
        command = [*self._as_user(), self._program(program), *arguments]
        done = subprocess.run(command, cwd="/", capture_output=True, text=True)
        if done.returncode:
            raise Failed(f"{program} failed:\n{done.stderr}")
        return done.stdout

    @staticmethod
    def _user() -> tuple[str, str]:
        return "postgres", "postgres"

    def _as_user(self) -> list[str]:
        return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []

    @staticmethod
    def _program(name: str) -> str:
        found = sorted(PROGRAMS.glob(f"*/bin/{name}")) or [Path(path) for path in [shutil.which(name)] if path]
        if not found:
            raise installing.Unavailable("PostgreSQL is missing; install Debian's package postgresql")
        return str(found[-1])


class Replica(Adriaticum):
    """A replica over a PostgreSQL database."""

    database: str = ""

    def environment(self) -> dict[str, str]:
        return super().environment() | {"ADRIATICUM_DATABASE_URL": self.database}


class LimitedReplica(LimitedAdriaticum, Replica):
    """The same, with a key that has limits."""


SETUPS: dict[str, tuple[int, type[Replica]]] = {
    "PostgreSQL, 1 replica": (1, Replica),
    "PostgreSQL, 2 replicas": (2, Replica),
    "PostgreSQL, 3 replicas": (3, Replica),
    "PostgreSQL, 1 replica, a key with limits": (1, LimitedReplica),
    "PostgreSQL, 3 replicas, a key with limits": (3, LimitedReplica),
}


@dataclass
class Round:
    """The results of one round."""

    requests: int
    seconds: float
    p50_us: float
    p99_us: float
    errors: int
    ours: float  # CPU seconds
    postgres: float


@dataclass
class Record:
    name: str
    rounds: list[Round] = field(default_factory=list)


def main() -> int:
    arguments = parse_arguments()
    clean_up_on_signals()
    installing.debian_tool("wrk")
    with tempfile.TemporaryDirectory(prefix="replicas-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        facts = machine.describe(folder, arguments.results)
        postgres = Postgres(make_folder(folder, "postgres"))
        runtime = InstantRuntime(make_folder(folder, "runtime"), free_port(), 0)
        runtime.install()
        sqlite = Record("SQLite, 1 replica")
        records = [Record(name) for name in SETUPS]
        with started(runtime), postgres.started():
            facts.append(f"PostgreSQL {postgres.version()} as Debian configures it, on the same machine")
            for turn in range(arguments.rounds):
                say(f"round {turn + 1} of {arguments.rounds}")
                alone = make_folder(folder, f"sqlite-{turn}")
                peer = Adriaticum(alone, free_port(), runtime.port, arguments.binary)
                sqlite.rounds.append(measure([peer], postgres, arguments.seconds))
                for number, record in enumerate(records):
                    count, kind = SETUPS[record.name]
                    database = postgres.database(f"replicas_{number}_{turn}")
                    peers = [make_replica(kind, folder, runtime, database, arguments, f"{turn}-{number}-{at}")
                             for at in range(count)]
                    record.rounds.append(measure(peers, postgres, arguments.seconds))
            taken = {mix: take_in(postgres, arguments, *mix) for mix in [*WRITERS, (0, 1_000)]}
    text = render(facts, arguments, [sqlite, *records], taken)
    print(text)
    if arguments.results:
        report.write(arguments.results, "replicas", text)
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--results", type=Path, help="a Markdown file whose section on replicas is replaced")
    arguments = parser.parse_args()
    target = Path(os.environ.get("CARGO_TARGET_DIR") or machine.REPOSITORY / "target")
    arguments.binary = (target / "release/adriaticum").resolve()
    arguments.record = (target / "release/examples/record").resolve()
    return arguments


def make_replica(kind: type[Replica], folder: Path, runtime: InstantRuntime, database: str,
                 arguments: argparse.Namespace, name: str) -> Replica:
    peer = kind(make_folder(folder, name), free_port(), runtime.port, arguments.binary)
    peer.database = database
    return peer


def measure(peers: list[Adriaticum], postgres: Postgres, seconds: int) -> Round:
    """Measures all replicas at the same time, each with its share of the connections."""
    with contextlib.ExitStack() as stack:
        trees = [stack.enter_context(started(peer)) for peer in peers]
        headers = peers[0].headers()
        for peer, tree in zip(peers, trees):
            wait_for_completion(peer, tree, headers)
        share = CONNECTIONS // len(peers)

        def apply(time_of_it: int) -> list[load.Load]:
            with ThreadPoolExecutor(len(peers)) as pool:
                under_way = [pool.submit(load.apply, tree, peer.port, headers, share, time_of_it)
                             for peer, tree in zip(peers, trees)]
                return [each.result() for each in under_way]

        apply(1)
        before = postgres.cpu_seconds()
        loads = apply(seconds)
        spent = postgres.cpu_seconds() - before
    return Round(
        requests=sum(each.requests for each in loads), seconds=max(each.seconds for each in loads),
        p50_us=statistics.median(each.p50_us for each in loads), p99_us=max(each.p99_us for each in loads),
        errors=sum(each.statuses + each.sockets for each in loads),
        ours=sum(each.cpu_seconds for each in loads), postgres=spent,
    )


def take_in(postgres: Postgres, arguments: argparse.Namespace, writers: int, keys: int) -> tuple[int, float]:
    """Rows (without writers: key lookups) per second, and PostgreSQL's CPU time for each in microseconds."""
    say(f"{writers} writers, {keys:,} keys" if writers else "look-ups")
    figures = []
    for turn in range(arguments.rounds):
        database = postgres.database(f"record_{writers}_{keys}_{turn}")
        before = (postgres.cpu_seconds(), time.monotonic())
        command = [arguments.record, database, str(writers), str(keys), str(arguments.seconds)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise Failed(f"record failed; `make bench` builds it:\n{done.stderr}")
        said = json.loads(done.stdout)
        each = said["rows"] if writers else said["lookups"]
        spent = postgres.cpu_seconds() - before[0]
        figures.append((each, 1e6 * spent / max(each * arguments.seconds, 1)))
    return int(statistics.median(rate for rate, _ in figures)), statistics.median(cost for _, cost in figures)


def render(facts: list[str], arguments: argparse.Namespace, records: list[Record], taken: dict) -> str:
    lines = [
        "| over | requests/s | p50 | p99 | CPU per request: ours | PostgreSQL | busy cores | errors |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for record in records:
        rates = statistics.median(each.requests / each.seconds for each in record.rounds)
        cost = {who: statistics.median(1e6 * getattr(each, who) / max(each.requests, 1) for each in record.rounds)
                for who in ("ours", "postgres")}
        busy = statistics.median((each.ours + each.postgres) / each.seconds for each in record.rounds)
        cells = [
            record.name, report.rate(rates),
            report.duration(statistics.median(each.p50_us for each in record.rounds)),
            report.duration(statistics.median(each.p99_us for each in record.rounds)),
            report.duration(cost["ours"]), report.duration(cost["postgres"]), f"{busy:.2f}",
            str(sum(each.errors for each in record.rounds)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    rows = ["| PostgreSQL writes or reads | per second | CPU of the server for each |", "|---|--:|--:|"]
    for (writers, keys), (rate, cost) in taken.items():
        what = f"rows of {keys:,} key{'s' if keys > 1 else ''} from {writers} writer{'s' if writers > 1 else ''}"
        rows.append(f"| {what if writers else 'key lookups, over one connection'} | {rate:,} | {report.duration(cost)} |")
    method = (
        f"Medians of {arguments.rounds} rounds of {arguments.seconds} s, {CONNECTIONS} connections in all. Load and runtime "
        "take the rest of the machine."
    )
    parts = ["## Replicas over PostgreSQL", "\n".join(f"- {fact}" for fact in facts), method, "\n".join(lines), "\n".join(rows)]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (installing.Unavailable, Failed) as reason:
        sys.exit(f"error: {reason}")
