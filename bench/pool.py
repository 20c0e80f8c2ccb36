"""Runs the simulation of load balancing over a fleet, and writes its tables."""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from pathlib import Path

import report

SIMULATE = ["cargo", "test", "--release", "--locked", "--quiet", "-p", "runtimes", "--test", "simulation", "--"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, help="a Markdown file whose section on the pool is replaced")
    parser.add_argument("--quick", action="store_true", help="without the large fleet")
    options = parser.parse_args()
    with tempfile.NamedTemporaryFile("r") as results:
        environment = {**os.environ, "SIMULATION_RESULTS": results.name}
        if options.quick:
            environment["SIMULATION_QUICK"] = "1"
        subprocess.run([*SIMULATE, "--ignored", "tables"], check=True, stdout=subprocess.DEVNULL, env=environment)
        tables = results.read()
    print(tables, end="")
    if options.results:
        report.write(options.results, "pool", tables)


if __name__ == "__main__":
    main()
