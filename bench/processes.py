"""The processes that the benchmark starts: measures them, and stops them.

A program gets its own session. Its child processes stay in that session, so they can be found, measured and stopped
together. Everything is read from /proc.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from pathlib import Path

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
STOP_SECONDS = 15


class Failed(Exception):
    """A program failed; the message says which one, and shows the end of its output."""


class ProcessTree:
    """A running program with its child processes. As a context manager it stops all of them."""

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str]):
        self.name = Path(command[0]).name
        self.exit_code = 0  # of the leader, after it has stopped
        self._log = folder / f"{self.name}.log"
        try:
            with self._log.open("ab") as log:
                self._leader = subprocess.Popen(
                    command, cwd=folder, env=environment, start_new_session=True,
                    stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                )
        except OSError as error:
            raise Failed(f"{self.name} could not be started:\n{error}") from error

    def __enter__(self) -> ProcessTree:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Sends SIGTERM to the leader, then kills the remaining processes."""
        try:
            self._leader.terminate()
            self._leader.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        finally:
            while left := self.pids():
                for pid in left:
                    _signal(pid, signal.SIGKILL)
                self._leader.poll()
                time.sleep(0.02)
            self.exit_code = self._leader.wait()

    def pids(self) -> list[int]:
        """The running processes of the session."""
        candidates = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())
        return [pid for pid in candidates if (stat := _stat(pid)) and stat.session == self._leader.pid and stat.alive]

    def cpu_seconds(self) -> float:
        """User and system time of the running processes."""
        return sum(stat.cpu_ticks for pid in self.pids() if (stat := _stat(pid))) / CLOCK_TICKS

    def resident_bytes(self, pids: list[int]) -> int:
        """Resident memory, summed over `pids`; shared pages count for each."""
        return sum(_resident_pages(pid) for pid in pids) * PAGE_BYTES

    def require_alive(self) -> None:
        if (code := self._leader.poll()) is not None:
            raise Failed(f"{self.name} exited with {code}:\n{self.last_words()}")

    def last_words(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-20:])


def wait_for_port(tree: ProcessTree, port: int, seconds: float) -> None:
    """Waits until a process listens on the loopback port."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        tree.require_alive()
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise Failed(f"{tree.name} did not listen within {seconds:.0f} s:\n{tree.last_words()}")


def free_port() -> int:
    """A free loopback port, below the kernel's range for client ports."""
    for port in random.sample(range(20_000, 32_000), 200):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise Failed("no free port between 20000 and 32000")


class _Stat:
    """Fields of /proc/PID/stat from the state on, which is the third in proc(5)."""

    def __init__(self, text: str):
        fields = text.rpartition(")")[2].split()
        self.alive = fields[0] not in "ZX"
        self.session = int(fields[3])
        self.cpu_ticks = int(fields[11]) + int(fields[12])


def _stat(pid: int) -> _Stat | None:
    try:
        return _Stat(Path(f"/proc/{pid}/stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return None


def _resident_pages(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
