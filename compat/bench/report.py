"""Tables for people: the systems side by side, with ratios, goals and an earlier run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from compat.bench.figures import FIGURES, Figure, goals
from compat.bench.results import Results
from compat.bench.scenarios import Scenario
from compat.bench.systems import TITLES

_MET: Final[dict[bool | None, Text]] = {
    True: Text("yes", "green"),
    False: Text("no", "red"),
    None: Text(""),
}

_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
"""File systems that are on no disk."""

_WORDS: Final = frozenset({"title", "beside"})
"""The fields of a scenario that say nothing of its load."""

_CLOCK_STEP_MS: Final = 2.0
"""The least step of the wall clock that is reported. A step changes the firing errors of messages due meanwhile."""


def show(console: Console, results: Results, earlier: Results | None = None) -> None:
    """Print a run: the machine, its limits, then a table of each scenario."""
    console.print(head(results, earlier))
    for scenario in results.scenarios:
        systems = [name for name in TITLES if results.of(scenario.name, name)]
        if not systems:
            continue
        # Not as the table's own title, which would wrap at the table's width.
        console.print(Text(f"\n{scenario.title}", style="bold"))
        console.print(table(results, scenario, systems, earlier))
        for line in comparisons(results, scenario):
            console.print(line, markup=False)
        for line in failures(results, scenario):
            console.print(line, markup=False)
        for line in (*clock_steps(results, scenario), *other_load(scenario, earlier)):
            console.print(line, markup=False, style="yellow")


def head(results: Results, earlier: Results | None = None) -> RenderableType:
    """Return what a reader must know before the figures: versions, machine and its limits."""
    machine, limits = results.machine, results.limits
    lines = [
        f"{_moment(results.began)} · "
        + " · ".join(f"{name} {version}" for name, version in results.versions.items()),
        " · ".join(
            (
                f"{machine.cores} cores of {machine.cpu}",
                f"{machine.memory_bytes / 2**30:.0f} GiB",
                machine.system,
                machine.file_system,
            )
        ),
        (
            f"the disk alone: {limits.appends_per_second:,.0f} fdatasync per s of a growing file "
            f"(P50 {limits.append_p50_ms:.2f}, P99 {limits.append_p99_ms:.2f} ms), "
            f"{limits.overwrites_per_second:,.0f} of one that does not grow"
        ),
        f"the loopback alone: {limits.round_trips_per_second:,.0f} round trips per s",
    ]
    parts = [Text(line) for line in lines]
    if machine.load_average > machine.cores / 4:
        parts.append(
            Text(
                f"Others were using the machine (load average {machine.load_average:.1f} at the "
                "start): read the ratios rather than the figures.",
                style="yellow",
            )
        )
    if machine.file_system in _IN_MEMORY:
        line = f"The servers' data was in memory ({machine.file_system}): figures with sync flush mean nothing."
        parts.append(Text(line, style="yellow"))
    if earlier is not None:
        parts.append(Text(f"compared with the run of {_moment(earlier.began)}"))
    return Group(*parts)


def table(
    results: Results, scenario: Scenario, systems: Sequence[str], earlier: Results | None
) -> Table:
    """Return the table of one scenario: a row for each figure, a column for each of these systems."""
    both = {"tidegate", "rocketmq"} <= set(systems)
    shown = Table()
    shown.add_column("", no_wrap=True)
    for name in systems:
        shown.add_column(TITLES[name], justify="right")
        if earlier is not None:
            shown.add_column("before", justify="right", style="dim")
    if both:
        shown.add_column("ratio", justify="right")
    if "tidegate" in systems:
        shown.add_column("goal", justify="right")
        shown.add_column("")

    held_to = goals(scenario)
    for figure in FIGURES[scenario.kind]:
        values = {name: figure.over(results.of(scenario.name, name)) for name in TITLES}
        cells: list[str | Text] = [figure.label]
        for name in systems:
            cells.append(number(values[name], figure.digits))
            if earlier is not None:
                before = figure.over(earlier.of(scenario.name, name))
                cells.append(_change(figure, values[name], before))
        own, other = values["tidegate"], values["rocketmq"]
        if both:
            cells.append(ratio(own, other))
        if "tidegate" in systems:
            goal = held_to.get(figure.key)
            beside = figure.over(results.of(scenario.beside, "tidegate"))
            met = goal.is_met(figure, own, other, beside) if goal else None
            cells.append(goal.text(figure) if goal else "")
            cells.append(_MET[met])
        shown.add_row(*cells)
    return shown


def comparisons(results: Results, scenario: Scenario) -> list[str]:
    """Return a line for each figure that is compared with that of the scenario `Scenario.beside`."""
    lines = []
    held_to = goals(scenario)
    for figure in FIGURES[scenario.kind]:
        goal = held_to.get(figure.key)
        if goal is None or goal.beside is None:
            continue
        for name, title in TITLES.items():
            own = figure.over(results.of(scenario.name, name))
            beside = figure.over(results.of(scenario.beside, name))
            if times := ratio(own, beside):
                lines.append(f"{title}: {figure.label}: {times} times that of {scenario.beside}")
    return lines


def failures(results: Results, scenario: Scenario) -> list[str]:
    """Return a line for each reason for which sends failed."""
    found: dict[tuple[str, str], int] = {}
    for name in TITLES:
        for outcome in results.of(scenario.name, name):
            for text, count in outcome.failures.items():
                found[name, text] = found.get((name, text), 0) + count
    return [f"{TITLES[name]}: {count:,} sends: {text}" for (name, text), count in found.items()]


def clock_steps(results: Results, scenario: Scenario) -> list[str]:
    """Return a line for each system during whose run the wall clock was stepped."""
    largest = {
        name: max((o.clock_step_ms for o in results.of(scenario.name, name)), default=0.0)
        for name in TITLES
    }
    return [
        f"{TITLES[name]}: the wall clock was stepped by {step_ms:.0f} ms during the run, which firing errors hold"
        for name, step_ms in largest.items()
        if step_ms >= _CLOCK_STEP_MS
    ]


def other_load(scenario: Scenario, earlier: Results | None) -> list[str]:
    """Return a line if the scenario of this name was another load in the earlier run, as in a quick and a full one."""
    known = {one.name: one for one in earlier.scenarios} if earlier else {}
    before = known.get(scenario.name, scenario)
    different = [
        f"{name} {getattr(before, name)} (now {getattr(scenario, name)})"
        for name in scenario.__struct_fields__
        if name not in _WORDS and getattr(before, name) != getattr(scenario, name)
    ]
    return [f"before: another load, with {', '.join(different)}"] if different else []


def number(value: float | None, digits: int) -> str:
    """Return a figure with its digits after the point; a dash if there is none."""
    return "-" if value is None else f"{value:,.{digits}f}"


def ratio(own: float | None, other: float | None) -> str:
    """Return the own figure divided by the other; an empty text if one is missing or the other is zero."""
    if own is None or not other:
        return ""
    times = own / other
    if times < 0.1:
        return f"{times:.2g}"
    return f"{times:.2f}" if times < 10 else f"{times:,.0f}"


def _change(figure: Figure, value: float | None, before: float | None) -> str:
    if value is None or not before:
        return number(before, figure.digits)
    return f"{number(before, figure.digits)} ({(value - before) / before:+.0%})"


def _moment(began: str) -> str:
    return datetime.fromisoformat(began).strftime("%Y-%m-%d %H:%M")
