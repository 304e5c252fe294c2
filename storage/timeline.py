"""How many messages that have not fired are due when.

Wide columns are summed up from `held`, narrow ones are counted one by one. Either way a call does a
bounded piece of work, and says where the next one goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import lmdb

from storage.keys import HELD_SPAN_MS, TIMER_VALUE, held_key, pack_u64
from storage.store import Store

MAX_ROWS = 10_000
"""Rows that one piece of counting looks at, some 10 ms."""


class Columns(NamedTuple):
    """Spans of time of one width, one behind the other."""

    begin_ms: int
    width_ms: int
    number: int

    @property
    def end_ms(self) -> int:
        """The time behind the last of them."""
        return self.begin_ms + self.width_ms * self.number

    @property
    def fit_held(self) -> bool:
        """Whether the spans of `held` lie each within one of them."""
        return self.begin_ms % HELD_SPAN_MS == 0 and self.width_ms % HELD_SPAN_MS == 0


class Tally(NamedTuple):
    """A piece of a count: messages by topic and column, and where to go on; None at the end."""

    counts: dict[tuple[bytes, int], int]
    rows: int
    cursor: bytes | None


def count_due(
    store: Store,
    columns: Columns,
    *,
    topic: bytes | None = None,
    tag_hash: int | None = None,
    cursor: bytes | None = None,
) -> Tally:
    """Count what is due in each of these columns. The first piece has those that wait in memory, too.

    :param topic: only messages of this topic; None for all.
    :param tag_hash: only messages whose tag has this hash.
    :param cursor: where the piece before ended.
    """
    counts: dict[tuple[bytes, int], int] = {}

    def add(key_topic: bytes, due_ms: int, more: int) -> None:
        place = (key_topic, (due_ms - columns.begin_ms) // columns.width_ms)
        counts[place] = counts.get(place, 0) + more

    if cursor is None:
        begin, end = pack_u64(columns.begin_ms), pack_u64(columns.end_ms)
        for key, value in store.inbox.between(begin, end, topic):
            if tag_hash in (None, TIMER_VALUE.unpack(value)[1]):
                add(key[8 : key.index(0, 8)], int.from_bytes(key[:8]), 1)
    seen = 0
    with store.read_transaction() as txn:
        if columns.fit_held and tag_hash is None:
            rows = _held(store, txn, columns, topic, cursor)
        else:
            rows = _timers(store, txn, columns, topic, tag_hash, cursor)
        for seen, (place, key_topic, due_ms, count) in enumerate(rows, 1):
            if count:
                add(key_topic, due_ms, count)
            if seen == MAX_ROWS:
                return Tally(counts, seen, place)
    return Tally(counts, seen, None)


def due_range(store: Store) -> tuple[int, int] | None:
    """When the earliest and the latest message are due, epoch ms; None while none is held."""
    times = [int.from_bytes(key[:8]) for key, _ in store.inbox.between(b"", b"\xff" * 9, None)]
    with store.read_transaction() as txn:
        cursor = txn.cursor(db=store.tables.timers)
        if cursor.first():
            times.append(int.from_bytes(cursor.key()[:8]))
            cursor.last()
            times.append(int.from_bytes(cursor.key()[:8]))
    return (min(times), max(times)) if times else None


def _held(
    store: Store,
    txn: lmdb.Transaction,
    columns: Columns,
    topic: bytes | None,
    behind: bytes | None,
) -> Iterator[tuple[bytes, bytes, int, int]]:
    """Key, topic, begin of the span, and count of each row within the columns."""
    first, last = columns.begin_ms // HELD_SPAN_MS, columns.end_ms // HELD_SPAN_MS
    cursor = txn.cursor(db=store.tables.held)
    start = held_key(topic, first) if topic is not None else b""
    alive = cursor.set_range(behind + b"\0" if behind is not None else start)
    while alive:
        key = cursor.key()
        name, span = key[:-8], int.from_bytes(key[-8:])
        if topic is not None and name[:-1] != topic:
            return
        if span < first:
            alive = cursor.set_range(name + pack_u64(first))
        elif span >= last:
            alive = cursor.set_range(name + b"\xff" * 9)
        else:
            yield key, name[:-1], span * HELD_SPAN_MS, int.from_bytes(cursor.value())
            alive = cursor.next()


def _timers(
    store: Store,
    txn: lmdb.Transaction,
    columns: Columns,
    topic: bytes | None,
    tag_hash: int | None,
    behind: bytes | None,
) -> Iterator[tuple[bytes, bytes, int, int]]:
    """Key, topic and due time of each message within the columns; 1, or 0 where it is not wanted."""
    cursor = txn.cursor(db=store.tables.timers)
    end = pack_u64(columns.end_ms)
    if not cursor.set_range(behind + b"\0" if behind is not None else pack_u64(columns.begin_ms)):
        return
    for key, value in cursor:
        if key >= end:
            return
        name = key[8 : key.index(0, 8)]
        wanted = topic in (None, name) and tag_hash in (
            None,
            TIMER_VALUE.unpack(value)[1],
        )
        yield key, name, int.from_bytes(key[:8]), int(wanted)
