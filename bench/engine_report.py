"""The engine's tables, as Markdown: one per scenario."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from chats import Measurement
from contenders import Steps
from prompts import Scenario


@dataclass
class FirstStarts:
    """Seconds from a start to the first completion."""

    tuning: float
    tuning_beside_a_busy_process: float
    tuned_beside_a_busy_process: float


@dataclass
class Row:
    name: str
    version: str
    setup: str
    first_starts: FirstStarts | None
    starts: list[float]
    is_ours: bool
    measurements: dict[Scenario, list[Measurement]]
    steps: dict[Scenario, Steps]


def render(title: str, facts: list[str], method: str, scenarios: tuple[Scenario, ...], rows: list[Row]) -> str:
    parts = [f"## {title}", "\n".join(f"- {fact}" for fact in facts), method]
    for scenario in scenarios:
        if measured := [row for row in rows if scenario in row.measurements]:
            parts += [f"### {scenario.title()}", _about(scenario), _table(scenario, measured)]
            parts += [_gaps(row.name, row.steps[scenario]) for row in measured if scenario in row.steps]
    parts += ["### Set-up", "\n".join(_setup(row) for row in rows)]
    if remarks := [remark for row in rows if (remark := _remark(row))]:
        parts += ["### Remarks", "\n".join(remarks)]
    return "\n\n".join(parts) + "\n"


def summary(scenarios: tuple[Scenario, ...], rows: list[Row]) -> list[str]:
    """For each scenario, ours ÷ the best of the others, and our own figure."""
    cells = []
    for scenario in scenarios:
        measured = [row for row in rows if scenario in row.measurements]
        ours = next((_compared(scenario, row) for row in measured if row.is_ours), None)
        others = {_compared(scenario, row): row.name for row in measured if not row.is_ours}
        if not (ours and others):
            cells.append("–")
            continue
        unit = "requests/s" if scenario.compares_requests else "tokens/s"
        cells.append(f"**{ours / max(others):.2f}** of {others[max(others)]}'s; {ours:,.1f} {unit}")
    return cells


def _about(scenario: Scenario) -> str:
    measure = "requests/s" if scenario.compares_requests else "tokens/s"
    return f"{scenario.about.capitalize()}, at most {scenario.max_tokens} tokens each; compared by {measure}."


def _table(scenario: Scenario, rows: list[Row]) -> str:
    lines = [
        "| contender | requests/s | tokens/s | slowest–quickest repetition | ours ÷ this | p50 | p95 | tokens per "
        "request, in + out |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    ours = next((_compared(scenario, row) for row in rows if row.is_ours), None)
    best = max((_compared(scenario, row) for row in rows if not row.is_ours), default=None)
    for row in rows:
        is_best = not row.is_ours and _compared(scenario, row) == best
        lines.append(f"| {' | '.join([row.name, *_cells(scenario, row, ours, is_best)])} |")
    return "\n".join(lines)


def _cells(scenario: Scenario, row: Row, ours: float | None, is_best: bool) -> list[str]:
    measurements = row.measurements[scenario]

    def median(measure: Callable[[Measurement], float]) -> float:
        return statistics.median(map(measure, measurements))

    tokens = sorted(measurement.tokens_per_second() for measurement in measurements)
    ratio = f"{ours / _compared(scenario, row):.2f}" if ours and not row.is_ours else ""
    ratio = f"**{ratio}**" if ratio and is_best else ratio
    return [
        f"{median(Measurement.requests_per_second):,.2f}",
        f"{median(Measurement.tokens_per_second):,.1f}",
        f"{tokens[0]:,.1f}–{tokens[-1]:,.1f}",
        ratio,
        f"{median(lambda measurement: measurement.latency(0.50)):,.2f} s",
        f"{median(lambda measurement: measurement.latency(0.95)):,.2f} s",
        f"{median(Measurement.mean_prompt_tokens):,.0f} + {median(Measurement.mean_completion_tokens):,.1f}",
    ]


def _compared(scenario: Scenario, row: Row) -> float:
    """The figure that this scenario compares."""
    measure = Measurement.requests_per_second if scenario.compares_requests else Measurement.tokens_per_second
    return statistics.median(map(measure, row.measurements[scenario]))


def _gaps(name: str, steps: Steps) -> str:
    share = 100 * steps.slow / steps.all if steps.all else 0
    return f"{name}: of {steps.all:,} steps in which a request generated, {steps.slow:,} took more than 0.25 s ({share:.1f} %)."


def _setup(row: Row) -> str:
    start = f"first completion {statistics.median(row.starts):.2f} s after its start"
    if first := row.first_starts:
        start += (
            f" ({first.tuned_beside_a_busy_process:.2f} s beside a busy process; when it has to tune itself first, "
            f"{first.tuning:.1f} s and {first.tuning_beside_a_busy_process:.1f} s)"
        )
    return f"- **{row.name}** {row.version}: {row.setup}; {start}"


def _remark(row: Row) -> str | None:
    """The number of retries after the contender's known fault."""
    completions = [each for measured in row.measurements.values() for one in measured for each in one.completions]
    faults = sum(each.faults for each in completions)
    if not faults:
        return None
    return (
        f"- {row.name} responded {faults:,} times with 500, in addition to {len(completions):,} completions: it cannot "
        "parse the model's output. Such a request was retried, and the time of both counts."
    )
