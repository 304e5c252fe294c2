"""The measurements and the goals, and how both are shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table


class Machine(msgspec.Struct, kw_only=True):
    """The machine of a measurement."""

    cpu: str
    cores: int
    load_average: float
    """Runnable processes in the minute before; over 0.5, other work was using the machine."""


class Measurement(msgspec.Struct, kw_only=True):
    """One run of one job."""

    job: str
    master: str
    number: int
    """How many of the unit, such as frames."""
    unit: str
    wall_s: float
    cpu_s: float
    """Processor time of the driver, the Java process and all Python workers, including ended ones."""
    peak_bytes: int
    """The most memory that they used together: heap and stacks, not the page cache."""
    details: dict[str, float] = {}

    @property
    def per_s(self) -> float:
        """The number per second of elapsed time."""
        return self.number / self.wall_s

    @property
    def per_cpu_s(self) -> float:
        """The number per second of processor time, as a core of its own would reach it."""
        return self.number / self.cpu_s if self.cpu_s else 0.0


class Goal(msgspec.Struct, kw_only=True):
    """A limit that a figure must reach, or with `at_most` must not exceed."""

    name: str
    value: float
    limit: float
    at_most: bool = False

    @property
    def is_met(self) -> bool:
        """Whether the figure keeps to the limit."""
        return self.value <= self.limit if self.at_most else self.value >= self.limit


class Results(msgspec.Struct, kw_only=True):
    """A whole run of the benchmark."""

    machine: Machine
    measurements: list[Measurement]
    goals: list[Goal]


INGEST_PER_CPU_S: Final = 100_000
COMPARE_PER_CPU_S: Final = 40_000
REPLAY_PER_S: Final = 5_000
PACING_P99_MS: Final = 20.0
MEMORY_GROWTH: Final = 1.5
TIME_GROWTH: Final = 1.25


def goals(measurements: Sequence[Measurement]) -> list[Goal]:
    """Return the goals for which there are measurements."""
    found: list[Goal] = []
    by_job: dict[str, list[Measurement]] = {}
    for one in measurements:
        by_job.setdefault(one.job, []).append(one)
    local = [one for one in by_job.get("ingest", []) if one.master.startswith("local[")]
    if local:
        largest = max(local, key=lambda one: one.number)
        found.append(
            Goal(
                name="frames ingested per s of a core",
                value=largest.per_cpu_s,
                limit=INGEST_PER_CPU_S,
            )
        )
        smallest = min(local, key=lambda one: one.number)
        if largest.number > smallest.number:
            found += [
                Goal(
                    name=f"memory of {largest.number:,} frames over {smallest.number:,}",
                    value=largest.peak_bytes / smallest.peak_bytes,
                    limit=MEMORY_GROWTH,
                    at_most=True,
                ),
                Goal(
                    name=f"processor time a frame of {largest.number:,} over {smallest.number:,}",
                    value=smallest.per_cpu_s / largest.per_cpu_s,
                    limit=TIME_GROWTH,
                    at_most=True,
                ),
            ]
    found += [
        Goal(
            name="frames compared three ways per s of a core",
            value=one.per_cpu_s,
            limit=COMPARE_PER_CPU_S,
        )
        for one in by_job.get("compare", [])[-1:]
    ]
    found += [
        Goal(name="requests replayed per s", value=one.details["rate"], limit=REPLAY_PER_S)
        for one in by_job.get("replay, as fast as possible", [])[-1:]
    ]
    found += [
        Goal(
            name="pacing error P99 at 1,000 per s, ms",
            value=one.details["pacing P99, ms"],
            limit=PACING_P99_MS,
            at_most=True,
        )
        for one in by_job.get("replay, at its times", [])[-1:]
    ]
    return found


def show(console: Console, results: Results) -> None:
    """Print two tables: the measurements and the goals."""
    machine = results.machine
    console.print(
        f"{machine.cores} cores of {machine.cpu}, load average {machine.load_average:.1f}"
    )
    table = Table()
    for name in (
        "job",
        "master",
        "number",
        "",
        "wall s",
        "CPU s",
        "per s",
        "per CPU s",
        "peak MiB",
    ):
        table.add_column(name, justify="left" if name in ("job", "master", "") else "right")
    for one in results.measurements:
        table.add_row(
            *(one.job, one.master, f"{one.number:,}", one.unit),
            *(f"{one.wall_s:,.1f}", f"{one.cpu_s:,.1f}", f"{one.per_s:,.0f}"),
            *(f"{one.per_cpu_s:,.0f}", f"{one.peak_bytes / 2**20:,.0f}"),
        )
    console.print(table)
    for one in results.measurements:
        if one.details:
            said = ", ".join(f"{name} {value:,.6g}" for name, value in one.details.items())
            console.print(f"{one.job}: {said}", highlight=False)
    table = Table()
    for name in ("goal", "figure", "limit", "met"):
        table.add_column(name, justify="left" if name == "goal" else "right")
    for goal in results.goals:
        sign = "≤" if goal.at_most else "≥"
        shown = "[green]yes[/]" if goal.is_met else "[red]no[/]"
        table.add_row(goal.name, f"{goal.value:,.4g}", f"{sign} {goal.limit:,g}", shown)
    console.print(table)
