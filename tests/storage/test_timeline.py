"""Counting what is due when: every way of counting gives the same numbers, in pieces of any size."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Generator
from itertools import count
from typing import TypeVar

import pytest

from storage import (
    HELD_SPAN_MS,
    Columns,
    Cursor,
    Store,
    count_due,
    count_overdue,
    count_soon,
    due_range,
    pause_topic,
    pending,
    reschedule,
    soon,
    timeline,
)
from tests.storage.folder import Folder
from tests.storage.sample import TOPIC, Sample, fire, hold, hold_all, numbered

HOUR_MS = 3_600_000
TOPICS = (b"bills", b"orders", b"orders2")
PAUSED = b"paused"

Result = TypeVar("Result")


def counted(
    store: Store, columns: Columns, topic: bytes | None = None, tag_hash: int | None = None
) -> Counter[tuple[bytes, int]]:
    """Add up all pieces."""
    counts: Counter[tuple[bytes, int]] = Counter()
    cursor: Cursor | None = None
    while True:
        tally = count_due(store, columns, topic=topic, tag_hash=tag_hash, cursor=cursor)
        assert tally.rows <= timeline.MAX_ROWS + pending.LEAPS_WEIGH
        counts.update(tally.counts)
        cursor = tally.cursor
        if cursor is None:
            return counts


def whole(
    pieces: Generator[None, None, Result], between: Callable[[int], None] = lambda turn: None
) -> Result:
    """Return the result of a count.

    :param between: is called between two pieces, with their number so far.
    """
    for turn in count(1):
        try:
            next(pieces)
            between(turn)
        except StopIteration as end:
            result: Result = end.value
            return result
    raise AssertionError


def fill(folder: Folder) -> tuple[Store, list[tuple[bytes, int]]]:
    """Return a store with timers in the table, in the inbox, and of a paused topic, and the topic and due time of each.

    Every third has the tag hash 1.
    """
    chance = random.Random(7)
    due = [(chance.choice(TOPICS), chance.randrange(HOUR_MS, 9 * HOUR_MS)) for _ in range(300)]
    due += [(chance.choice(TOPICS), 2 * HOUR_MS + chance.randrange(200)) for _ in range(200)]
    store = folder.open(inbox_size=0)
    pause_topic(store, PAUSED, 0)
    due += [(PAUSED, 100), (PAUSED, 40 * HOUR_MS)]
    for at, (topic, due_ms) in enumerate(due):
        if at == 400:
            store.commit()
            store = folder.open()
        hold(store, Sample(b"%d" % at, topic, tag_hash=int(at % 3 == 0)), due_ms)
    store.commit()
    fire(store, 200)
    return store, due


@pytest.mark.parametrize("width_ms", [100, 999, 10_000, 60_000, HOUR_MS, 6 * HOUR_MS])
@pytest.mark.parametrize("rows", [1, 50, 3_000])
def test_counts_are_what_is_there(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, width_ms: int, rows: int
) -> None:
    monkeypatch.setattr(timeline, "MAX_ROWS", rows)
    monkeypatch.setattr(pending, "LEAPS", 2)
    store, due = fill(folder)
    begins = (2 * HOUR_MS, 2 * HOUR_MS + 55, 2 * HOUR_MS + 10_000)
    for begin_ms, number in ((0, 41 * HOUR_MS // width_ms + 1), *((begin, 3) for begin in begins)):
        columns = Columns(begin_ms, width_ms, number)
        expected = Counter(
            (topic, (due_ms - begin_ms) // width_ms)
            for topic, due_ms in due
            if begin_ms <= due_ms < columns.end_ms
        )
        assert counted(store, columns) == expected
        for topic in (*TOPICS, PAUSED, b"nobody"):
            own = {place: count for place, count in expected.items() if place[0] == topic}
            assert counted(store, columns, topic) == own


@pytest.mark.parametrize("width_ms", [999, 10_000, HOUR_MS])
def test_of_one_tag(folder: Folder, width_ms: int) -> None:
    store, due = fill(folder)
    columns = Columns(0, width_ms, 41 * HOUR_MS // width_ms + 1)
    assert counted(store, columns, tag_hash=1) == Counter(
        (topic, due_ms // width_ms) for topic, due_ms in due[::3]
    )


def test_what_is_due_soon(folder: Folder) -> None:
    store, due = fill(folder)
    bounds = (5, 60, 3_600, 14_400, 28_800, 864_000)
    for now_ms in (2 * HOUR_MS - 4_950, 2 * HOUR_MS - 12_345, HOUR_MS, 50 * HOUR_MS):
        begin_ms = now_ms - now_ms % 10_000
        times = [due_ms for _, due_ms in due]
        first = sum(now_ms < due_ms <= now_ms + 5_000 for due_ms in times)
        expected = [first]
        for below, bound in zip((0, *bounds[1:]), bounds[1:], strict=False):
            start, end = begin_ms + below * 1_000, begin_ms + bound * 1_000
            expected.append(sum(start <= due_ms < end for due_ms in times))
        expected[1] = max(0, expected[1] - first)
        assert whole(count_soon(store, now_ms, bounds)) == expected


def test_what_is_overdue_however_much_waits_in_paused_topics(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soon, "_MOST_ROWS", 20)
    store = folder.open(inbox_size=0)
    pause_topic(store, PAUSED, 0)
    for at in range(50):
        hold(store, Sample(b"p%d" % at, PAUSED), 1_000 + at)
    store.commit()
    assert fire(store, 2_000) == 0
    for at in range(3):
        hold(store, Sample(b"o%d" % at), 3_000 + at)
        hold(store, Sample(b"l%d" % at), 12_000 + at)
    store.commit()
    assert whole(count_overdue(store, 2_500)) == 0
    assert whole(count_overdue(store, 15_000)) == whole(count_overdue(store, HOUR_MS)) == 6


def test_the_first_and_the_last(folder: Folder) -> None:
    store = folder.open(inbox_size=0)
    assert due_range(store) is None
    hold(store, Sample(b"a"), 5_000)
    store.commit()
    assert due_range(store) == (5_000, 5_000)
    hold(store, Sample(b"a"), 8_000)
    store.commit()
    assert due_range(store) == (5_000, 8_000)
    store = folder.open()
    for due_ms in (4_000, 9_000, 7_000):
        hold(store, Sample(b"b"), due_ms)
    store.commit()
    assert due_range(store) == (4_000, 9_000)
    assert fire(store, 4_000) == 1
    assert due_range(store) == (5_000, 9_000)
    assert fire(store, 5_000) == 1
    assert due_range(store) == (7_000, 9_000)
    assert reschedule(store, b"b", lambda due_ms: min(due_ms, 8_500), 6_000) != []
    assert due_range(store) == (7_000, 8_500), "with the batch that this look-up has committed"
    pause_topic(store, PAUSED, 0)
    hold(store, Sample(b"c", PAUSED), 6_500)
    store.commit()
    assert fire(store, 6_500) == 0
    assert due_range(store) == (6_500, 8_500)


@pytest.mark.parametrize("last", [b"a", b"b", b"c"])
def test_the_last_may_wait_in_a_paused_topic(store: Store, last: bytes) -> None:
    for topic in (b"a", b"b", b"c"):
        pause_topic(store, topic, 0)
        hold(store, Sample(b"x", topic), 5_000)
        hold(store, Sample(b"y", topic), 9_000 if topic == last else 7_000)
    store.commit()
    assert fire(store, 9_000) == 0
    assert due_range(store) == (5_000, 9_000)


@pytest.mark.parametrize("key", [TOPIC + b"\0x", TOPIC + b"\0" + b"\xff" * 12])
def test_the_last_is_none_that_waits_and_cannot_be_read(folder: Folder, key: bytes) -> None:
    store = folder.open()
    pause_topic(store, TOPIC, 900)
    hold_all(store, numbered(2), 5_000)
    fire(store, 9_500)
    store = folder.damage("waiting", key, b"")
    assert due_range(store) == (5_000, 5_000)
    folder.damage("waiting", key, None)


def test_what_is_in_memory_is_counted_in_pieces(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "MAX_ROWS", 10)
    store = folder.open()
    for at in range(45):
        hold(store, Sample(b"%d" % at), 1 + at * 1_000)
    columns = Columns(0, HELD_SPAN_MS, 10)
    store.commit()
    cursor: Cursor | None = None
    found: list[int] = []
    while not found or cursor is not None:
        tally = count_due(store, columns, cursor=cursor)
        cursor = tally.cursor
        found.append(sum(tally.counts.values()))
        if len(found) == 3:
            # What fires meanwhile is no longer counted, unless it was counted before.
            fired = fire(store, 100_000, 40)
    assert max(found) <= 10
    assert 45 - fired <= sum(found) <= 45


def test_a_message_that_moves_into_the_table_during_a_count_counts_once(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soon, "MAX_ROWS", 10)
    store = folder.open(inbox_size=100)
    for at in range(150):
        hold(store, Sample(b"%d" % at), 1 + at * 100_000)
    store.commit()
    before = set(store.inbox.keys())
    bounds = (5, 60, 3_600, 14_400, 28_800)
    expected = whole(count_soon(store, 5, bounds))
    assert expected is not None
    assert sum(expected) == 150

    def send(turn: int) -> None:
        for number in range(10):
            hold(store, Sample(b"%d.%d" % (turn, number)), 1_000 * HOUR_MS)
        store.commit()

    assert whole(count_soon(store, 5, bounds), send) == expected
    assert len(before & set(store.inbox.keys())) < len(before) / 2
    assert whole(count_soon(store, 5, bounds)) == expected
