"""Load on one gateway by wrk, and its measurements.

wrk uses one thread for every peer and both connection counts. On two otherwise idle cores it took about 7.2 µs of CPU
per request, against 8.3 µs with two threads, and nginx served some 9 % more requests beside it.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from processes import Failed, ProcessTree

HERE = Path(__file__).resolve().parent
REQUEST = HERE / "request.json"
COMPLETIONS = "/v1/chat/completions"
RESPONSE_TIMEOUT_SECONDS = 30  # wrk counts longer ones as errors
MEMORY_SAMPLE_SECONDS = 0.1


@dataclass(frozen=True)
class Load:
    """One run of wrk against a gateway."""

    requests: int
    seconds: float
    p50_us: float
    p99_us: float
    statuses: int  # responses with status 400 and above
    sockets: int  # failed connects, reads and writes, and timeouts
    resident_bytes: int  # peak of the sum over its processes
    cpu_seconds: float  # of the gateway's processes


@dataclass(frozen=True)
class Figures:
    """Over all rounds: medians, but the highest memory and the sum of errors."""

    per_second: float
    slowest_round: float
    quickest_round: float
    p50_us: float
    p99_us: float
    cpu_us: float
    resident_bytes: int
    statuses: int
    sockets: int


def apply(tree: ProcessTree, port: int, headers: dict[str, str], connections: int, seconds: int) -> Load:
    """Keeps `connections` requests in flight for `seconds`, one per connection."""
    command = [
        "wrk", "--threads", "1", "--connections", str(connections), "--duration", f"{seconds}s",
        "--timeout", f"{RESPONSE_TIMEOUT_SECONDS}s", "--script", str(HERE / "post.lua"),
        f"http://127.0.0.1:{port}{COMPLETIONS}", "--", str(REQUEST),
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    pids = tree.pids()
    resident = 0
    cpu_before = tree.cpu_seconds()
    deadline = time.monotonic() + seconds + RESPONSE_TIMEOUT_SECONDS
    wrk = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        while wrk.poll() is None:
            if time.monotonic() > deadline:
                raise Failed(f"wrk did not end {RESPONSE_TIMEOUT_SECONDS} s after its time")
            resident = max(resident, tree.resident_bytes(pids))
            time.sleep(MEMORY_SAMPLE_SECONDS)
    finally:
        wrk.kill()
        output = wrk.communicate()[0]
    cpu_seconds = tree.cpu_seconds() - cpu_before
    tree.require_alive()
    if wrk.returncode != 0:
        raise Failed(f"wrk failed:\n{output}")
    said = json.loads(output.strip().splitlines()[-1])
    return Load(
        requests=said["requests"], seconds=said["microseconds"] / 1e6, p50_us=said["p50"], p99_us=said["p99"],
        statuses=said["statuses"], sockets=said["sockets"], resident_bytes=resident, cpu_seconds=cpu_seconds,
    )


def together(loads: list[Load]) -> Figures:
    """Combines the loads of all rounds. There must be at least one."""
    rates = [load.requests / load.seconds for load in loads]
    return Figures(
        per_second=statistics.median(rates), slowest_round=min(rates), quickest_round=max(rates),
        p50_us=statistics.median(load.p50_us for load in loads),
        p99_us=statistics.median(load.p99_us for load in loads),
        cpu_us=statistics.median(1e6 * load.cpu_seconds / max(load.requests, 1) for load in loads),
        resident_bytes=max(load.resident_bytes for load in loads),
        statuses=sum(load.statuses for load in loads), sockets=sum(load.sockets for load in loads),
    )
