"""Counts when pending messages are due.

Wide columns are summed from `hours` and `held`, after the messages in memory, which those do not count; narrow ones are
counted message by message. Either way, one call does a bounded amount of work, and says where the next one continues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from storage.keys import (
    HELD_SPAN_MS,
    HOUR_MS,
    TIMER_VALUE,
    held_key,
    hour_key,
    pack_u64,
    timer_topic,
)
from storage.paused import last_waiting, waiting_timers
from storage.pending import LEAPS_WEIGH, pending_timers
from storage.reader import Reader
from storage.shapes import is_timer
from storage.store import Store

MAX_ROWS = 3_000
"""Rows that one call examines, some 5 ms."""

_SUMS, _WAITING = b"s", b"w"
"""The first byte of a place among sums: the rest is a key in `held` or `hours`, or after them, in `waiting`."""


Span = tuple[int, int]
"""Due times in ms, from the first on and before the second."""


def with_whole(unit_ms: int, begin_ms: int, end_ms: int) -> list[Span]:
    """Divide a span so that the whole units in it can be counted at once: what comes before these, they, and the
    rest."""
    first_ms = -(-begin_ms // unit_ms) * unit_ms
    last_ms = end_ms // unit_ms * unit_ms
    if first_ms >= last_ms:
        return [(begin_ms, end_ms)] if begin_ms < end_ms else []
    parts = (begin_ms, first_ms), (first_ms, last_ms), (last_ms, end_ms)
    return [part for part in parts if part[0] < part[1]]


class Columns(NamedTuple):
    """Consecutive spans of time of the same width."""

    begin_ms: int
    width_ms: int
    number: int

    @property
    def end_ms(self) -> int:
        """The time just after the last column."""
        return self.begin_ms + self.width_ms * self.number

    @property
    def fit_held(self) -> bool:
        """Whether each span of `held` lies within one column."""
        return self.begin_ms % HELD_SPAN_MS == 0 and self.width_ms % HELD_SPAN_MS == 0

    @property
    def fit_hours(self) -> bool:
        """Whether each hour lies within one column."""
        return self.begin_ms % HOUR_MS == 0 and self.width_ms % HOUR_MS == 0


class Cursor(NamedTuple):
    """Where a count continues: with these timers, which were in memory when it began, and then behind a place in the
    tables."""

    timers: list[bytes]
    place: bytes


class Tally(NamedTuple):
    """A part of a count: messages by topic and column, the rows examined, and where to continue; None at the end."""

    counts: dict[tuple[bytes, int], int]
    rows: int
    cursor: Cursor | None


class _Row(NamedTuple):
    """A number of messages of a topic that are due at a time, or in the span or hour that begins then. `place` is
    where this row is. A row without messages only says how far the search has come. `weight` is how many rows could be
    examined in the time that it took."""

    place: bytes
    topic: bytes
    due_ms: int
    messages: int
    weight: int = 1


def count_due(
    store: Store,
    columns: Columns,
    *,
    topic: bytes | None = None,
    tag_hash: int | None = None,
    in_table_only: bool = False,
    cursor: Cursor | None = None,
) -> Tally:
    """Count the messages that are due in each of these columns.

    :param topic: only messages of this topic; None for all.
    :param tag_hash: only messages whose tag has this hash.
    :param in_table_only: only messages whose timers are in `timers`, not those in memory, nor the due messages of
        paused topics.
    :param cursor: where the previous call ended. Messages that change between two calls may be counted twice or not at
        all; those that move from memory into the table may be counted twice.
    """
    counts: dict[tuple[bytes, int], int] = {}
    seen = 0
    txn = store.settled_reader()
    if columns.fit_held and tag_hash is None:
        if cursor is None:
            cursor = Cursor([] if in_table_only else store.inbox.keys(topic), _SUMS)
        timers, later = cursor.timers[:MAX_ROWS], cursor.timers[MAX_ROWS:]
        counts = _in_memory(store, columns, timers)
        seen = len(timers)
        if later:
            return Tally(counts, seen, Cursor(later, cursor.place))
        rows = _summed(store, txn, columns, topic, cursor.place, in_table_only=in_table_only)
    else:
        begin = cursor.place + b"\0" if cursor is not None else pack_u64(columns.begin_ms)
        pending = pending_timers(
            store, txn, topic, begin, columns.end_ms, in_table_only=in_table_only
        )
        rows = _singly(pending, tag_hash)
    for row in rows:
        seen += row.weight
        if row.messages:
            column = (row.topic, (row.due_ms - columns.begin_ms) // columns.width_ms)
            counts[column] = counts.get(column, 0) + row.messages
        if seen >= MAX_ROWS:
            return Tally(counts, seen, Cursor([], row.place))
    return Tally(counts, seen, None)


def due_range(store: Store) -> tuple[int, int] | None:
    """Return when the earliest and the latest pending message are due, in epoch ms; None when none is pending."""
    txn = store.settled_reader()
    in_memory = store.inbox.keys()
    keys = [min(in_memory), max(in_memory)] if in_memory else []
    keys += [key for key, _ in islice(waiting_timers(txn, store.tables), 1)]
    keys += last_waiting(txn, store.tables)
    cursor = txn.cursor(db=store.tables.timers)
    if cursor.first():
        keys.append(cursor.key())
        cursor.last()
        keys.append(cursor.key())
    times = [int.from_bytes(key[:8]) for key in keys]
    return (min(times), max(times)) if times else None


def _singly(timers: Iterable[tuple[bytes, bytes]], tag_hash: int | None) -> Iterator[_Row]:
    for key, value in timers:
        if value:
            wanted = tag_hash in (None, TIMER_VALUE.unpack(value)[1])
            yield _Row(key, timer_topic(key), int.from_bytes(key[:8]), int(wanted))
        else:
            yield _Row(key, b"", 0, 0, LEAPS_WEIGH)


def _in_memory(store: Store, columns: Columns, timers: list[bytes]) -> dict[tuple[bytes, int], int]:
    """Count those of these timers that are still in memory. The others have fired, or are in `held` now."""
    begin_ms, width_ms = columns.begin_ms, columns.width_ms
    begin, end = pack_u64(begin_ms), pack_u64(columns.end_ms)
    return Counter(
        (timer_topic(key), (int.from_bytes(key[:8]) - begin_ms) // width_ms)
        for key in timers
        if begin <= key < end and store.inbox.holds(key)
    )


def _summed(
    store: Store,
    txn: Reader,
    columns: Columns,
    topic: bytes | None,
    place: bytes,
    *,
    in_table_only: bool,
) -> Iterator[_Row]:
    """Return the rows of `hours` or `held`, and then one by one the waiting messages of paused topics, which those do
    not count."""
    begin, end = pack_u64(columns.begin_ms), pack_u64(columns.end_ms)
    if place[:1] == _SUMS:
        sums = _hours if columns.fit_hours else _held
        yield from sums(store, txn, columns, topic, place[1:])
    elif place[1:]:
        begin = place[1:] + b"\0"
    if in_table_only:
        return
    waiting = waiting_timers(txn, store.tables, topic, begin, end)
    # Timers that cannot be read are left to a repair.
    for row in _singly((timer for timer in waiting if is_timer(*timer)), None):
        yield row._replace(place=_WAITING + row.place)


def _held(
    store: Store, txn: Reader, columns: Columns, topic: bytes | None, behind: bytes
) -> Iterator[_Row]:
    first, last = columns.begin_ms // HELD_SPAN_MS, columns.end_ms // HELD_SPAN_MS
    cursor = txn.cursor(db=store.tables.held)
    start = held_key(topic, first) if topic is not None else b""
    alive = cursor.set_range(behind + b"\0" if behind else start)
    while alive:
        key = cursor.key()
        name, span = key[:-8], int.from_bytes(key[-8:])
        if topic is not None and name[:-1] != topic:
            return
        counted = int.from_bytes(cursor.value()) if first <= span < last else 0
        yield _Row(_SUMS + key, name[:-1], span * HELD_SPAN_MS, counted)
        if span < first:
            alive = cursor.set_range(name + pack_u64(first))
        elif span >= last:
            alive = cursor.set_range(name + b"\xff" * 9)
        else:
            alive = cursor.next()


def _hours(
    store: Store, txn: Reader, columns: Columns, topic: bytes | None, behind: bytes
) -> Iterator[_Row]:
    cursor = txn.cursor(db=store.tables.hours)
    end = pack_u64(columns.end_ms // HOUR_MS)
    start = hour_key(columns.begin_ms // HOUR_MS, topic or b"")
    alive = cursor.set_range(behind + b"\0" if behind else start)
    while alive and cursor.key() < end:
        key = cursor.key()
        hour, name = int.from_bytes(key[:8]), key[8:]
        counted = int.from_bytes(cursor.value()) if topic in (None, name) else 0
        yield _Row(_SUMS + key, name, hour * HOUR_MS, counted)
        if topic is None:
            alive = cursor.next()
        else:
            alive = cursor.set_range(hour_key(hour if name < topic else hour + 1, topic))
