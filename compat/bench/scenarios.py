"""The scenarios of the benchmark: each is one load, put on every system in turn."""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

Flush = Literal["sync", "async"]
"""Whether a send is answered after it is on disk (sync), or before (async)."""

Kind = Literal[
    "sends", "life", "removal", "levels", "normal", "storm", "waiting", "workers", "held"
]

_STORM_SENDS_PER_SECOND: Final = 4_000
"""About how many messages of a storm are sent per second, including the reserve of time until they are due."""

_FILLED_PER_SECOND: Final = 30_000
"""About how many messages per second are written to fill a data folder."""

_FAR_MS: Final = (30 * 60_000, 120 * 60_000)
"""Delays that end long after the run. Such a scenario measures only sends."""

_SOON_MS: Final = (2_000, 12_000)
"""Delays of a whole life in the full run."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One load."""

    name: str
    kind: Kind
    title: str
    flush: Flush
    threads: int
    """Sending threads. They share one producer and thus one connection, as in most programs."""
    rate: int = 0
    """Sends per second of all threads together; with 0 each sends as soon as it has its answer."""
    delay_ms: tuple[int, int] = (0, 0)
    """The bounds of the delay, which is uniform between them; zeros mean no delay."""
    levels: tuple[int, ...] = ()
    """Delay levels to choose from, in place of `delay_ms`."""
    consume: bool = True
    seconds: float
    """How long sends are measured."""
    warmup: float
    """How long the same load runs before anything is measured."""
    body: int = 256
    """The size of a body in bytes."""
    queues: int = 8
    storm: int = 0
    """So many messages of another topic are due in one second while the load goes on."""
    consumers: int = 1
    """Consumers whose pulls wait; several of them divide the messages' tags among them."""
    workers: int = 1
    """The gateway's setting `workers`."""
    retention_hours: float = 0
    """The gateway's setting `retention_hours`; 0 leaves it at its default, so that nothing is removed in a run."""
    held: int = 0
    """Messages that the data folder has before the server starts."""
    beside: str = ""
    """The scenario with whose figures this one's are compared."""
    alone: bool = False
    """Whether it runs on the gateway only."""

    @property
    def longest_delay(self) -> float:
        """The longest delay of a message in seconds; 0 if a run does not wait for its messages."""
        return (
            max(_LEVEL_SECONDS[level] for level in self.levels)
            if self.levels
            else (self.delay_ms[1] / 1000 if self.consume else 0)
        )

    @property
    def expected_seconds(self) -> float:
        """About how many seconds a run takes, with the starts of server and client."""
        drain = 2 * self.longest_delay if self.consume else 0
        gathering = self.storm / _STORM_SENDS_PER_SECOND + self.held / _FILLED_PER_SECOND
        return 12 + self.warmup + self.seconds + drain + gathering


_HELD_NAME: Final = re.compile(r"held-(\d{1,9})")

_LEVEL_SECONDS: Final = {1: 1, 2: 5, 3: 10}
"""By delay level: its seconds. Only the first levels of the default table are short enough for a benchmark."""


def _sends(threads: int, flush: Flush, seconds: float, warmup: float) -> Scenario:
    return Scenario(
        name=f"sends-{threads}-{flush}",
        kind="sends",
        title=f"Timed sends, {threads} threads, {flush} flush",
        flush=flush,
        threads=threads,
        delay_ms=_FAR_MS,
        consume=False,
        seconds=seconds,
        warmup=warmup,
    )


def _life(
    rate: int, flush: Flush, delay_ms: tuple[int, int], seconds: float, warmup: float
) -> Scenario:
    return Scenario(
        name=f"life-{rate}-{flush}",
        kind="life",
        title=f"Whole life of timed messages at {rate:,} per s, {flush} flush",
        flush=flush,
        # A synchronous send blocks its thread until it is on disk, so the rate needs enough threads.
        threads=16 if rate <= 1_000 else 64,
        rate=rate,
        delay_ms=delay_ms,
        seconds=seconds,
        warmup=warmup,
    )


def _bodies(size: int, rate: int) -> Scenario:
    return msgspec.structs.replace(
        _life(rate, "sync", _SOON_MS, seconds=15, warmup=8),
        name=f"bodies-{size}-sync",
        title=f"Whole life of timed messages with bodies of {size:,} bytes at {rate:,} per s, sync flush",
        body=size,
    )


def _removal(rate: int) -> Scenario:
    """Return a scenario in which, once it is warm, as many messages are removed as arrive: 11 s after they have fired,
    in rounds of 10 s."""
    return msgspec.structs.replace(
        _life(rate, "async", _SOON_MS, seconds=30, warmup=60),
        name=f"removal-{rate}-async",
        kind="removal",
        title=f"Whole life of timed messages at {rate:,} per s while as many are removed, async flush",
        retention_hours=0.003,
        beside=f"life-{rate}-async",
        alone=True,
    )


def quick() -> list[Scenario]:
    """Return the most important scenarios, which take about three minutes."""
    return [
        _sends(16, "sync", seconds=5, warmup=6),
        _sends(16, "async", seconds=5, warmup=6),
        _life(1_000, "sync", (1_000, 4_000), seconds=8, warmup=4),
    ]


def full() -> list[Scenario]:
    """Return all scenarios, which take somewhat over half an hour."""
    flushes: tuple[Flush, ...] = ("sync", "async")
    scenarios = [
        _sends(threads, flush, seconds=12, warmup=10) for threads in (16, 64) for flush in flushes
    ]
    scenarios += [
        _life(rate, flush, _SOON_MS, seconds=15, warmup=8)
        for rate in (1_000, 5_000, 10_000)
        for flush in flushes
    ]
    scenarios.append(_removal(5_000))
    scenarios += [
        _bodies(size, rate) for size, rate in ((1_300, 1_000), (4_000, 1_000), (64_000, 200))
    ]
    scenarios.append(
        Scenario(
            name="levels-2000-async",
            kind="levels",
            title="Delay levels 1 and 2 at 2,000 per s, async flush",
            flush="async",
            threads=16,
            rate=2_000,
            levels=(1, 2),
            seconds=12,
            warmup=6,
        )
    )
    scenarios += [
        Scenario(
            name=f"normal-16-{flush}",
            kind="normal",
            title=f"Messages for now, sent and consumed, 16 threads, {flush} flush",
            flush=flush,
            threads=16,
            seconds=12,
            warmup=8,
        )
        for flush in flushes
    ]
    scenarios.append(
        Scenario(
            name="storm-500000-sync",
            kind="storm",
            title="Timed messages at 2,000 per s while 500,000 others are due in one second, sync flush",
            flush="sync",
            threads=64,
            rate=2_000,
            delay_ms=(500, 3_000),
            seconds=20,
            warmup=8,
            storm=500_000,
        )
    )
    scenarios += [_waiting(1, beside=""), _waiting(100, beside="waiting-1")]
    scenarios += [_workers(count) for count in (1, 2, 4)]
    return [*scenarios, held(0), held(1_000_000)]


def named(name: str) -> Scenario | None:
    """Return the scenario `held-N` for any N, which may be in no other run; None for other names."""
    found = _HELD_NAME.fullmatch(name)
    return held(int(found[1])) if found else None


def held(count: int) -> Scenario:
    """Return a scenario of sends and look-ups while so many messages are pending."""
    return Scenario(
        name=f"held-{count}",
        kind="held",
        title=f"Timed sends and look-ups while {count:,} messages are held, 16 threads, sync flush",
        flush="sync",
        threads=16,
        delay_ms=_FAR_MS,
        consume=False,
        seconds=12,
        warmup=10,
        held=count,
        beside="held-0" if count else "",
        alone=True,
    )


def _waiting(consumers: int, beside: str) -> Scenario:
    who = "1 consumer" if consumers == 1 else f"{consumers} consumers that filter by tag"
    return Scenario(
        name=f"waiting-{consumers}",
        kind="waiting",
        title=f"500 messages per s for now to {who}, long polling, async flush",
        flush="async",
        threads=1,
        rate=500,
        seconds=15,
        warmup=5,
        queues=1,
        consumers=consumers,
        beside=beside,
    )


def _workers(count: int) -> Scenario:
    return Scenario(
        name=f"workers-{count}",
        kind="workers",
        title=f"Timed sends, 64 threads for each worker, workers = {count}, sync flush",
        flush="sync",
        # As many threads for each worker, so that as many messages share a worker's commit.
        threads=64 * count,
        delay_ms=_FAR_MS,
        consume=False,
        seconds=12,
        warmup=10,
        workers=count,
        beside="workers-1" if count > 1 else "",
        alone=True,
    )
