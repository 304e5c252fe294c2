"""Which way of committing sends is chosen: by what simulated senders do, on a clock of their own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, takewhile
from math import inf
from random import Random
from statistics import median

import pytest

from gateway.pace import MOST_EXPECTED, MOST_REST, Pace

WAIT = 0.002
SEND = 0.000_02
"""Seconds that a client, and the gateway, take for a send."""

Commits = Iterator[tuple[float, int]]
"""When each commit was made, in seconds, and how many sends it had."""


def in_step(pace: Pace, threads: int, sync: float, now: float = 0) -> Commits:
    """Threads that send again once they are answered; the disk takes `sync` seconds for each commit."""
    begun = now
    back = [now] * threads  # when each of them sends
    while True:
        back.sort()
        begun = max(now, back[0], begun + pace.rest)
        last = back[min(int(pace.expected), threads) - 1]
        now = max(begun, min(last, begun + WAIT))
        sends = sum(at <= now for at in back)
        now += sends * SEND + sync
        back[:sends] = [now + 0.0001 + number * SEND for number in range(sends)]
        pace.committed(sends, now)
        yield now, sends


def evenly(pace: Pace, rate: float, now: float = 0) -> Commits:
    """So many sends per second, at random times, whether or not others are answered."""
    random = Random(0)
    begun = now
    coming = now + random.expovariate(rate)
    while True:
        begun = now = max(now, coming, begun + pace.rest)
        sends = 0
        while coming <= now or (sends < int(pace.expected) and coming <= begun + WAIT):
            now = max(now, coming) + SEND
            sends += 1
            coming += random.expovariate(rate)
        if sends < int(pace.expected):
            now = max(now, begun + WAIT)
        now += 0.0002
        pace.committed(sends, now)
        yield now, sends


def sent(commits: Commits, until: float) -> int:
    """Let time pass up to a moment. Return how many sends were committed."""
    return sum(sends for _, sends in takewhile(lambda commit: commit[0] < until, commits))


def test_a_commit_waits_for_as_many_senders_as_there_were_lately() -> None:
    pace = Pace(WAIT)
    assert (pace.expected, pace.rest) == (1, 0)
    expected = []
    for sends in (1, 32, 1, 1, 1_000, 1):
        pace.committed(sends, 0.001)
        expected.append(pace.expected)
    assert expected == pytest.approx([1, 32, 22.4, 15.68, MOST_EXPECTED, 0.7 * MOST_EXPECTED])


@pytest.mark.parametrize(
    ("rate", "rest"), [(1_000, 0), (2_000, 0), (6_000, 0.0015), (10_000, MOST_REST)]
)
def test_those_that_come_evenly_wait_for_nobody(rate: int, rest: float) -> None:
    pace = Pace(WAIT)
    sent(evenly(pace, rate), until=5)
    assert pace.expected == 1
    assert pace.rest == pytest.approx(rest, rel=0.1)


def test_nobody_rests_longer_than_a_commit_may_wait() -> None:
    pace = Pace(0.0005)
    sent(evenly(pace, 10_000), until=5)
    assert pace.rest == 0.0005


@pytest.mark.parametrize("threads", [2, 8, 16, 32])
@pytest.mark.parametrize("sync", [0.0002, 0.005])
def test_senders_in_step_send_hardly_less_than_if_nothing_were_tried(
    threads: int, sync: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = sent(in_step(Pace(WAIT), threads, sync), until=60)
    monkeypatch.setattr("gateway.pace.SPAN_SECONDS", inf)
    assert chosen >= 0.9 * sent(in_step(Pace(WAIT), threads, sync), until=60)


def test_nobody_waits_where_that_makes_senders_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a commit that takes no longer than a few sends, senders and gateway had better work at the same time."""
    chosen = sent(in_step(Pace(WAIT), 32, 0.0002), until=60)
    monkeypatch.setattr("gateway.pace.SPAN_SECONDS", inf)
    assert chosen >= 1.2 * sent(in_step(Pace(WAIT), 32, 0.0002), until=60)


def test_the_way_changes_with_the_senders() -> None:
    pace = Pace(WAIT)
    for begun in (0, 20, 40):
        commits = evenly(pace, 10_000, begun)
        sent(commits, until=begun + 9)
        # Now and then another way is tried for a moment.
        assert median(pace.rest for _ in islice(commits, 400)) == MOST_REST
        sent(in_step(pace, 16, 0.005, begun + 10), until=begun + 20)
        assert pace.expected > 8
        assert pace.rest == 0


def test_a_trial_ends_even_if_hardly_anything_comes() -> None:
    pace = Pace(WAIT)
    trial = next(now for now, _ in in_step(pace, 16, 0.0002) if pace.rest)
    sent(in_step(pace, 16, 0.0002, trial + 60), until=trial + 60.1)
    assert pace.rest == 0


def test_without_a_wait_nothing_is_tried() -> None:
    pace = Pace(0)
    commits = evenly(pace, 10_000)
    assert not any(pace.rest for _ in islice(commits, 10_000))
