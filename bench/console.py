#!/usr/bin/env python3
"""Measures the console's pages over ten million recorded requests and ten thousand keys.

Fills a database with `crates/store/examples/fill.rs`, serves it, signs in as an administrator, and requests each page
repeatedly over one connection. Loopback only; everything is removed afterwards.

    python3 bench/console.py [--keys 10000] [--requests 10000000] [--runs 21] [--results bench/RESULTS.md]
"""

from __future__ import annotations

import argparse
import http.client
import http.cookies
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
from pathlib import Path

import installing
import machine
import report
from gateways import clean_up_on_signals, make_folder, say, started
from peers import Adriaticum, InstantRuntime
from processes import Failed, free_port, wait_for_port

FILL_SECONDS = 1800
START_SECONDS = 30
GOAL_MS = 50
GOAL_BYTES = 100_000
PAGES = (
    ("Overview", "/"),
    ("API Keys, the most used first", "/keys?sort=-requests"),
    ("API Keys, by name, page 100", "/keys?sort=name&page=100"),
    ("API Keys, searched", "/keys?find=key+77&sort=-created"),
    ("One API key", "/keys/{key}"),
    ("Limits", "/limits"),
    ("Team", "/team"),
    ("Playground", "/playground"),
    ("Usage, 24 hours by hour", "/usage?range=24h"),
    ("Usage, 7 days by hour", "/usage?range=7d&by=hour"),
    ("Usage, 30 days by day", "/usage?range=30d"),
    ("Usage, 7 days by key", "/usage?range=7d&group=key"),
    ("Usage, 30 days by key", "/usage?range=30d&group=key"),
    ("Usage, 30 days by person", "/usage?range=30d&group=person"),
    ("Usage, 30 days by project", "/usage?range=30d&group=project"),
    ("Usage, 20 days between two minutes", "/usage?range=custom&from={from_time}&to={to_time}&group=key"),
    ("Usage of one key, 30 days", "/usage?range=30d&key={key}"),
    ("Requests", "/requests"),
    ("Requests of one key", "/requests?key={key}"),
    ("Requests that failed", "/requests?status=502"),
    ("Requests with a status that no request has", "/requests?status=413"),
    ("Requests of a minute or longer, of which there are none", "/requests?slower=60000"),
    ("Audit log, searched without a match", "/audit?subject=nothing+like+this"),
)


class Browser:
    """A browser with cookies, over one connection."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.origin = f"http://localhost:{port}"
        self.cookies: dict[str, str] = {}

    def ask(self, method: str, path: str, form: dict[str, str] | None = None) -> tuple[int, str]:
        headers = {"Host": self.origin.removeprefix("http://"), "Origin": self.origin}
        if self.cookies:
            headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        if form is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        self.connection.request(method, path, urllib.parse.urlencode(form) if form else None, headers)
        response = self.connection.getresponse()
        for line in response.headers.get_all("Set-Cookie", []):
            for name, cookie in http.cookies.SimpleCookie(line).items():
                self.cookies[name] = cookie.value
        return response.status, response.read().decode()

    def join(self, link: str) -> None:
        """Creates an account from an invitation, which also signs in."""
        path = urllib.parse.urlsplit(link).path
        _status, page = self.ask("GET", path)
        token = re.search(r'name="token" value="([^"]+)"', page)
        if token is None:
            raise Failed(f"no form behind the invitation:\n{page}")
        person = {"name": "Bench", "email": "bench@example.com", "password": "a few good words", "again": "a few good words"}
        status, page = self.ask("POST", path, person | {"token": token[1]})
        if status != 303:
            raise Failed(f"the invitation was refused: {status}\n{page}")


def main() -> int:
    arguments = parse_arguments()
    clean_up_on_signals()
    bench_folder = installing.CACHE / "bench"
    bench_folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="console-", dir=bench_folder) as name:
        folder = Path(name)
        facts = machine.describe(folder, arguments.results)
        runtime = InstantRuntime(make_folder(folder, "runtime"), free_port(), 0)
        peer = Adriaticum(make_folder(folder, "adriaticum"), free_port(), runtime.port, arguments.binary)
        peer.install()
        fill(arguments, peer.folder / "data")
        with started(peer) as tree:
            wait_for_port(tree, peer.console_port, START_SECONDS)
            browser = Browser(peer.console_port)
            browser.join(peer.run("accounts", "invite", "bench", "--role", "admin"))
            key = busiest_key(browser)
            names = {"key": key, "from_time": minutes_ago(25 * 1440 + 17), "to_time": minutes_ago(5 * 1440 + 29)}
            times = {title: measure(browser, path.format(**names), arguments.runs) for title, path in PAGES}
    text = render(facts, arguments, times)
    print(text)
    if arguments.results:
        report.write(arguments.results, "console", text)
    missed = [title for title, (measured, size) in times.items()
              if statistics.median(measured) > GOAL_MS or size > GOAL_BYTES]
    for title in missed:
        say(f"beyond the goal: {title}")
    return 1 if missed else 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--requests", type=int, default=10_000_000)
    parser.add_argument("--runs", type=int, default=21)
    parser.add_argument("--database", type=Path, help="a filled database to copy, instead of filling one")
    parser.add_argument("--results", type=Path, help="a Markdown file whose section on the console is replaced")
    arguments = parser.parse_args()
    target = Path(os.environ.get("CARGO_TARGET_DIR") or machine.REPOSITORY / "target")
    arguments.binary = (target / "release/adriaticum").resolve()
    arguments.fill = (target / "release/examples/fill").resolve()
    return arguments


def fill(arguments: argparse.Namespace, data: Path) -> None:
    data.mkdir()
    database = data / "adriaticum.db"
    if arguments.database:
        shutil.copyfile(arguments.database, database)
        return
    say(f"filling {arguments.keys:,} keys and {arguments.requests:,} requests")
    keys = str(arguments.keys)
    subprocess.run(
        [arguments.fill, database, keys, str(arguments.requests), keys], check=True, timeout=FILL_SECONDS,
    )


def minutes_ago(minutes: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M", time.gmtime(time.time() - 60 * minutes))


def busiest_key(browser: Browser) -> str:
    _status, page = browser.ask("GET", "/keys?sort=-requests")
    found = re.search(r'href="/keys/(\w{12})"', page)
    if found is None:
        raise Failed(f"no key on the page:\n{page}")
    return found[1]


def measure(browser: Browser, path: str, runs: int) -> tuple[list[float], int]:
    """The duration of each run in milliseconds, and the size of the page."""
    times, size = [], 0
    for _ in range(runs):
        start = time.perf_counter()
        status, page = browser.ask("GET", path)
        times.append(1000 * (time.perf_counter() - start))
        if status != 200:
            raise Failed(f"{path}: {status}\n{page}")
        size = len(page.encode())
    say(f"{path}: {statistics.median(times):.1f} ms")
    return times, size


def render(facts: list[str], arguments: argparse.Namespace, times: dict[str, tuple[list[float], int]]) -> str:
    lines = [
        "## The console's pages", "", *(f"- {fact}" for fact in facts), "",
        f"{arguments.requests:,} recorded requests of 30 days and {arguments.keys:,} keys, all in use; an administrator, who sees"
        f" them all; {arguments.runs} runs each over one connection, from the request to the page's last byte. The goal is"
        f" {GOAL_MS} ms and {GOAL_BYTES // 1000} kB.", "",
        "| page | median | slowest | size |", "|---|--:|--:|--:|",
    ]
    for title, (measured, size) in times.items():
        lines.append(f"| {title} | {statistics.median(measured):.1f} ms | {max(measured):.1f} ms | {size / 1000:.0f} kB |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Failed, installing.Unavailable, subprocess.SubprocessError) as error:
        sys.exit(f"console: {error}")
