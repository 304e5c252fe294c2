"""The figures of each kind of scenario, and their goals.

docs/performance.md explains the goals. A ratio is Tidegate's figure divided by RocketMQ's in the same run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from compat.bench.records import Ledger, Spread
from compat.bench.results import Outcome
from compat.bench.scenarios import Kind, Scenario

_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of an outcome."""

    key: str
    label: str
    """The name with the unit."""
    of: Callable[[Outcome], float | None]
    digits: int = 1
    more_is_better: bool = False
    is_count: bool = False
    """Whether it counts faults: those of several runs are added up, without a median."""

    def over(self, outcomes: Sequence[Outcome]) -> float | None:
        """Return the figure of several runs of one scenario: the median, or the sum of faults."""
        found = [value for outcome in outcomes if (value := self.of(outcome)) is not None]
        if not found:
            return None
        return sum(found) if self.is_count else statistics.median(found)


@dataclass(frozen=True, slots=True)
class Goal:
    """The bounds of Tidegate's figure. All that are given must hold.

    Each is an upper bound, or a lower bound if more is better.
    """

    limit: float | None = None
    """The bound of the figure itself."""
    ratio: float | None = None
    """The bound of its ratio to RocketMQ's figure."""
    beside: float | None = None
    """The bound of its ratio to Tidegate's own figure in the scenario `Scenario.beside`."""

    def text(self, figure: Figure) -> str:
        """Return the goal in a few characters."""
        sign = "≥" if figure.more_is_better else "≤"
        parts = []
        if self.limit is not None:
            parts.append(f"{sign} {self.limit:,g}" if self.limit else "0")
        if self.ratio is not None:
            parts.append(f"{sign} {self.ratio:g}x")
        if self.beside is not None:
            parts.append(f"{sign} {self.beside:g}x the other's")
        return ", ".join(parts)

    def is_met(
        self,
        figure: Figure,
        own: float | None,
        other: float | None,
        beside: float | None = None,
    ) -> bool | None:
        """Whether the goal is met; None if a figure is missing.

        :param other: RocketMQ's figure.
        :param beside: Tidegate's figure in the scenario `Scenario.beside`.
        """
        if own is None:
            return None
        pairs: list[tuple[float, float]] = []
        if self.limit is not None:
            pairs.append((own, self.limit))
        if self.ratio is not None:
            if other is None:
                return None
            pairs.append((own, self.ratio * other))
        if self.beside is not None:
            if beside is None:
                return None
            pairs.append((own, self.beside * beside))
        return all(
            value >= bound if figure.more_is_better else value <= bound for value, bound in pairs
        )


def _per_message(
    total: Callable[[Outcome], float | None], scale: float = 1
) -> Callable[[Outcome], float | None]:
    def figure(outcome: Outcome) -> float | None:
        count, found = outcome.ledger.acknowledged, total(outcome)
        return found * scale / count if count and found is not None else None

    return figure


def _part(
    spread: Callable[[Outcome], Spread | None], part: Callable[[Spread], float]
) -> Callable[[Outcome], float | None]:
    def figure(outcome: Outcome) -> float | None:
        found = spread(outcome)
        return None if found is None else part(found)

    return figure


def _send(outcome: Outcome) -> Spread | None:
    return outcome.send


def _firing(outcome: Outcome) -> Spread | None:
    return outcome.firing


def _stored(outcome: Outcome) -> Spread | None:
    return outcome.stored


def _by_id(outcome: Outcome) -> Spread | None:
    return outcome.held.by_id if outcome.held else None


def _by_key(outcome: Outcome) -> Spread | None:
    return outcome.held.by_key if outcome.held else None


def _by_range(outcome: Outcome) -> Spread | None:
    return outcome.held.by_range if outcome.held else None


def _disk_read(outcome: Outcome) -> Spread | None:
    return outcome.held.disk_read if outcome.held else None


def _storm_firing(outcome: Outcome) -> Spread | None:
    return outcome.storm.firing if outcome.storm else None


def _storm_stored(outcome: Outcome) -> Spread | None:
    return outcome.storm.stored if outcome.storm else None


def _storm_count(count: Callable[[Ledger], int]) -> Callable[[Outcome], float | None]:
    return lambda outcome: count(outcome.storm.ledger) if outcome.storm else None


RATE: Final = Figure(
    "rate", "sends per s", lambda o: o.sends_per_second, digits=0, more_is_better=True
)
SEND_FIGURES: Final = (
    Figure("send.mean", "send mean, ms", _part(_send, lambda s: s.mean), digits=2),
    Figure("send.p50", "send P50, ms", _part(_send, lambda s: s.p50), digits=2),
    Figure("send.p99", "send P99, ms", _part(_send, lambda s: s.p99), digits=2),
    Figure("send.p999", "send P999, ms", _part(_send, lambda s: s.p999), digits=2),
    Figure("send.max", "send max, ms", _part(_send, lambda s: s.max), digits=1),
)
FIRING_FIGURES: Final = (
    Figure("firing.p50", "firing error P50, ms", _part(_firing, lambda s: s.p50), digits=0),
    Figure("firing.p90", "firing error P90, ms", _part(_firing, lambda s: s.p90), digits=0),
    Figure("firing.p99", "firing error P99, ms", _part(_firing, lambda s: s.p99), digits=0),
    Figure("firing.p999", "firing error P999, ms", _part(_firing, lambda s: s.p999), digits=0),
    Figure("firing.max", "firing error max, ms", _part(_firing, lambda s: s.max), digits=0),
    Figure("stored.p99", "until stored P99, ms", _part(_stored, lambda s: s.p99), digits=0),
)
FAULTS: Final = (
    Figure("refused", "sends refused", lambda o: o.ledger.refused, digits=0, is_count=True),
    Figure("lost", "lost", lambda o: o.ledger.lost, digits=0, is_count=True),
    Figure("doubled", "doubled", lambda o: o.ledger.doubled, digits=0, is_count=True),
    Figure("early", "early", lambda o: o.ledger.early, digits=0, is_count=True),
)
CPU: Final = Figure("cpu", "server CPU a message, µs", _per_message(lambda o: o.cpu_seconds, 1e6))
CLIENT_CPU: Final = Figure(
    "client_cpu", "client CPU a message, µs", _per_message(lambda o: o.client_cpu_seconds, 1e6)
)
CPU_RATE: Final = Figure(
    "cpu_rate",
    "messages per CPU second",
    lambda o: o.ledger.acknowledged / o.cpu_seconds if o.cpu_seconds else None,
    digits=0,
    more_is_better=True,
)
CORES: Final = Figure("cores", "server CPU, cores", lambda o: o.cpu_seconds / o.seconds, digits=2)
RESOURCES: Final = (
    Figure(
        "written",
        "disk written a message, bytes",
        _per_message(lambda o: o.device_bytes),
        digits=0,
    ),
    Figure("held", "disk held a message, bytes", _per_message(lambda o: o.held_bytes), digits=0),
    Figure(
        "memory",
        "own memory, MiB",
        lambda o: o.own_memory_bytes / _MIB,
        digits=0,
    ),
    Figure(
        "resident",
        "with mapped files, MiB",
        lambda o: o.resident_bytes / _MIB,
        digits=0,
    ),
)
STORM_FIGURES: Final = (
    Figure("storm.stored", "storm fired after, max, ms", _part(_storm_stored, lambda s: s.max), 0),
    Figure("storm.p50", "storm received P50, ms", _part(_storm_firing, lambda s: s.p50), 0),
    Figure("storm.max", "storm received max, ms", _part(_storm_firing, lambda s: s.max), 0),
    Figure("storm.refused", "storm refused", _storm_count(lambda e: e.refused), 0, is_count=True),
    Figure("storm.lost", "storm lost", _storm_count(lambda e: e.lost), 0, is_count=True),
    Figure("storm.doubled", "storm doubled", _storm_count(lambda e: e.doubled), 0, is_count=True),
    Figure("storm.early", "storm early", _storm_count(lambda e: e.early), 0, is_count=True),
)
HELD_FIGURES: Final = (
    Figure(
        "start",
        "start to first answer, s",
        lambda o: o.held.start_seconds if o.held else None,
        digits=2,
    ),
    Figure("id.p50", "look-up by id P50, ms", _part(_by_id, lambda s: s.p50), digits=2),
    Figure("id.p99", "look-up by id P99, ms", _part(_by_id, lambda s: s.p99), digits=2),
    Figure("key.p50", "look-up by key P50, ms", _part(_by_key, lambda s: s.p50), digits=2),
    Figure("key.p99", "look-up by key P99, ms", _part(_by_key, lambda s: s.p99), digits=2),
    Figure("range.p50", "page of a topic P50, ms", _part(_by_range, lambda s: s.p50), digits=2),
    Figure("range.p99", "page of a topic P99, ms", _part(_by_range, lambda s: s.p99), digits=2),
    Figure("disk.p50", "disk: 4 KiB at random P50, ms", _part(_disk_read, lambda s: s.p50), 2),
    Figure("disk.p99", "disk: 4 KiB at random P99, ms", _part(_disk_read, lambda s: s.p99), 2),
    Figure(
        "full",
        "disk held before the start, MiB",
        lambda o: o.held.disk_bytes / _MIB if o.held else None,
    ),
)
END_TO_END: Final = (
    Figure("e2e.p50", "send to receipt P50, ms", _part(_firing, lambda s: s.p50), digits=0),
    Figure("e2e.p99", "send to receipt P99, ms", _part(_firing, lambda s: s.p99), digits=0),
)

LIFE_FIGURES: Final = (RATE, *FIRING_FIGURES, *FAULTS, *SEND_FIGURES, CPU, CORES, *RESOURCES)

FIGURES: Final[dict[Kind, tuple[Figure, ...]]] = {
    "sends": (RATE, *SEND_FIGURES, FAULTS[0], CPU, CLIENT_CPU, CORES, *RESOURCES),
    "life": LIFE_FIGURES,
    "removal": LIFE_FIGURES,
    "levels": LIFE_FIGURES,
    "normal": (RATE, *SEND_FIGURES, *END_TO_END, *FAULTS, CPU_RATE, CPU, CORES, *RESOURCES),
    "storm": (RATE, *STORM_FIGURES, *SEND_FIGURES, *FIRING_FIGURES, *FAULTS, CORES, *RESOURCES[2:]),
    "waiting": (RATE, *END_TO_END, *FAULTS, CPU, CORES, *RESOURCES[2:]),
    "workers": (RATE, *SEND_FIGURES, FAULTS[0], CPU, CORES, *RESOURCES),
    "held": (RATE, *HELD_FIGURES, *SEND_FIGURES, FAULTS[0], CPU, CORES, *RESOURCES),
}

_REACHED: Final = 0.95
"""The least share of a scenario's rate that must have been sent: its other figures are of that rate."""

_LOOK_UPS: Final = ("id", "key", "range")
_PARTS: Final = ("p50", "p99")
_NONE: Final = Goal(limit=0)
_MEMORY: Final = {"memory": Goal(limit=300)}
_DISK: Final = {"written": Goal(ratio=0.5), "held": Goal(ratio=0.5)}
_USUAL_FIRING: Final = (2, 5, 20, 50)
"""Bounds of the firing error's P50, P90, P99 and P999, in milliseconds, below 10,000 messages per s."""
_FAULTLESS: Final = {"lost": _NONE, "doubled": _NONE, "early": _NONE}
_CALM: Final = {"send.mean": Goal(ratio=1), "send.p99": Goal(ratio=1)}


def goals(scenario: Scenario) -> dict[str, Goal]:
    """Return the goals of a scenario's figures, by the figures' keys."""
    # Refused sends are in no other figure, which would be better for them.
    whole = {"refused": _NONE}
    if scenario.rate:
        whole["rate"] = Goal(limit=_REACHED * scenario.rate)
    return whole | _goals_of_kind(scenario)


def _goals_of_kind(scenario: Scenario) -> dict[str, Goal]:
    match scenario.kind:
        case "sends":
            least = 2.0 if scenario.flush == "sync" else 1.3
            found = {"rate": Goal(ratio=least), **_CALM, **_DISK, **_MEMORY}
            if scenario.flush == "sync":
                found["cpu"] = Goal(limit=40 if scenario.threads <= 16 else 25)
            return found
        case "life":
            firing = _USUAL_FIRING if scenario.rate < 10_000 else (5, 10, 30, 100)
            found = {**_firing_goals(firing), **_FAULTLESS, **_DISK, **_MEMORY}
            if scenario.rate >= 10_000:
                found["cpu"] = Goal(limit=40, ratio=0.5)
            return found
        case "removal":
            beside = {"cpu": Goal(beside=1.25), "held": Goal(beside=0.1)}
            return {**_firing_goals(_USUAL_FIRING), **_FAULTLESS, **beside, **_MEMORY}
        case "levels":
            return {**_firing_goals(_USUAL_FIRING), **_FAULTLESS, **_DISK, **_MEMORY}
        case "storm":
            return {
                "storm.stored": Goal(limit=10_000),
                "send.p99": Goal(limit=50),
                "firing.max": Goal(limit=100),
                **{f"storm.{fault}": _NONE for fault in ("refused", *_FAULTLESS)},
                **_FAULTLESS,
                **_MEMORY,
            }
        case "normal":
            return {"cpu_rate": Goal(ratio=0.8), **_FAULTLESS, **_MEMORY}
        case "waiting":
            cpu = {"cpu": Goal(beside=2)} if scenario.beside else {}
            return {**cpu, **_FAULTLESS, **_MEMORY}
        case "workers":
            # The rate cannot grow if no core is free. The goal is therefore the CPU: workers that cost little more per
            # message than one alone would raise the rate if there were more cores.
            return {"cpu": Goal(beside=1 / 0.8)} if scenario.beside else {}
        case "held":
            return {
                **({"rate": Goal(beside=0.8)} if scenario.beside else {}),
                "start": Goal(limit=2),
                **{f"{kind}.{part}": Goal(limit=10) for kind in _LOOK_UPS for part in _PARTS},
                **_MEMORY,
            }


def _firing_goals(limits: tuple[float, ...]) -> dict[str, Goal]:
    parts = ("p50", "p90", "p99", "p999")
    return {f"firing.{part}": Goal(limit=limit) for part, limit in zip(parts, limits, strict=True)}
