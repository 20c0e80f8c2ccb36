"""Renders the tables as Markdown, and writes them into the file of results."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from load import Figures

BASELINE = "nginx"


@dataclass
class Row:
    name: str
    version: str
    setup: str
    figures: dict[int, Figures]  # by connections; empty if not measured
    remarks: list[str] = field(default_factory=list)


def render(machine: list[str], method: str, rows: list[Row]) -> str:
    connections = sorted({count for row in rows for count in row.figures}, reverse=True)
    parts = ["## Gateways in front of an instant runtime", "\n".join(f"- {line}" for line in machine), method]
    for count in connections:
        noun = "connection" if count == 1 else "connections"
        parts += [f"### {count} {noun}", _table(rows, count)]
    parts += ["### Set-up", "\n".join(_setup(row) for row in rows if row.figures)]
    if remarks := [f"- {remark}" for row in rows for remark in row.remarks]:
        parts += ["### Remarks", "\n".join(remarks)]
    return "\n\n".join(parts) + "\n"


def write(results: Path, name: str, text: str) -> None:
    """Replaces the text between the markers of that name in `results`."""
    begin_mark, end_mark = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    section = f"{begin_mark}\n{text}{end_mark}\n"
    old = results.read_text() if results.exists() else "# Benchmark results\n\n"
    before, begin, rest = old.partition(begin_mark)
    _replaced, end, after = rest.partition(end_mark)
    if begin and end:
        new = before + section + after.removeprefix("\n")
    else:
        new = old.rstrip("\n") + "\n\n" + section
    results.write_text(new)


def write_row(results: Path, name: str, about: str, header: list[str], row: list[str]) -> None:
    """Adds a row to the table between the markers of that name, in place of one with the same first two cells."""
    old = results.read_text() if results.exists() else ""
    _before, _begin, rest = old.partition(f"<!-- {name}:begin -->")
    table = [line for line in rest.partition(f"<!-- {name}:end -->")[0].splitlines() if line.startswith("| ")]
    line = f"| {' | '.join(row)} |"
    kept = [other for other in table[1:] if other.split(" | ")[:2] != line.split(" | ")[:2]]
    columns = f"| {' | '.join(header)} |\n|{'---|' * len(header)}"
    write(results, name, "\n".join([about, "", columns, *sorted([*kept, line])]) + "\n")


def _setup(row: Row) -> str:
    return f"- **{row.name}** {row.version}: {row.setup}"


def _table(rows: list[Row], connections: int) -> str:
    yardstick = next((row.figures.get(connections) for row in rows if row.name == BASELINE), None)
    lines = [
        f"| gateway | requests/s | slowest–quickest round | ÷ {BASELINE} | p50 | p99 | p99 ÷ {BASELINE} "
        "| CPU per request | resident, peak | errors |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for row in rows:
        if figures := row.figures.get(connections):
            lines.append(f"| {' | '.join([row.name, *_cells(figures, yardstick)])} |")
    return "\n".join(lines)


def _cells(figures: Figures, yardstick: Figures | None) -> list[str]:
    return [
        rate(figures.per_second),
        f"{rate(figures.slowest_round)}–{rate(figures.quickest_round)}",
        ratio_of(figures.per_second, yardstick.per_second if yardstick else None),
        duration(figures.p50_us),
        duration(figures.p99_us),
        ratio_of(figures.p99_us, yardstick.p99_us if yardstick else None),
        duration(figures.cpu_us),
        f"{figures.resident_bytes / 2**20:,.1f} MiB",
        _errors(figures),
    ]


def rate(per_second: float) -> str:
    return f"{per_second:,.0f}"


def ratio_of(value: float, yardstick: float | None) -> str:
    if not yardstick:
        return "–"
    ratio = value / yardstick
    return f"{ratio:.4f}" if ratio < 0.1 else f"{ratio:,.2f}"


def duration(microseconds: float) -> str:
    return f"{microseconds:.1f} µs" if microseconds < 1000 else f"{microseconds / 1000:,.2f} ms"


def _errors(figures: Figures) -> str:
    kinds = {"status": figures.statuses, "socket": figures.sockets}
    return ", ".join(f"**{count:,} {kind}**" for kind, count in kinds.items() if count) or "none"
