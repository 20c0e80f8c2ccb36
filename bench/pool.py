"""Runs the simulation of load balancing over a fleet, and writes its tables."""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

import report

SIMULATE = ["cargo", "run", "--release", "--locked", "--quiet", "-p", "simulator", "--"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, help="a Markdown file whose section on the pool is replaced")
    parser.add_argument("--quick", action="store_true", help="without the large fleet")
    options = parser.parse_args()
    command = [*SIMULATE, *(["--quick"] if options.quick else [])]
    tables = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    print(tables, end="")
    if options.results:
        report.write(options.results, "pool", tables)


if __name__ == "__main__":
    main()
