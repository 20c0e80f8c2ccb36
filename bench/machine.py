"""The conditions of the figures: this machine, its disk, and the measured commit."""

from __future__ import annotations

import datetime
import os
import platform
import statistics
import subprocess
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
FLUSHES = 100


def describe(data_folder: Path, results: Path | None) -> list[str]:
    """Lines for the head of the report. Called before the load starts."""
    now = datetime.datetime.now(datetime.UTC)
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    flush = _flush_ms(data_folder)
    return [
        f"{now:%Y-%m-%d %H:%M} UTC, commit {_commit(results)}",
        f"{_cpu_model()}, {cores} cores, {memory:.0f} GiB, Linux {platform.release().partition('-')[0]}",
        f"data on {_filesystem(data_folder)}, where a 4 KiB write and its fdatasync take {flush:.2f} ms (median)",
        f"load average before the start: {os.getloadavg()[0]:.2f}",
    ]


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit(results: Path | None) -> str:
    """The short hash, with + if the tree differs from it. The report's own file is ignored."""
    ours = [f":(exclude){results.resolve()}"] if results and results.resolve().is_relative_to(REPOSITORY) else []
    head = _git("rev-parse", "--short", "HEAD")
    return (head or "none") + ("+" if _git("status", "--porcelain", "--", str(REPOSITORY), *ours) else "")


def _git(*arguments: str) -> str:
    try:
        return subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def _filesystem(folder: Path) -> str:
    """The type of the mount that holds `folder`: the one with the longest matching path."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    holding = [(len(point), kind) for point, kind in mounts if folder.resolve().is_relative_to(point)]
    return max(holding)[1]


def _flush_ms(folder: Path) -> float:
    """The minimum cost of durability on this disk, in milliseconds."""
    path = folder / "flush"
    times = []
    with path.open("wb", buffering=0) as file:
        for _ in range(FLUSHES):
            start = time.monotonic()
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            times.append(time.monotonic() - start)
    path.unlink()
    return 1000 * statistics.median(times)
