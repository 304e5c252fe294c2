"""Finding messages by id, key, topic, tag hash and due time, whatever their state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import Enum
from heapq import merge
from itertools import islice, takewhile
from typing import NamedTuple

import lmdb

from storage.keys import (
    HELD_SPAN_MS,
    NEVER_MOVED,
    QUEUE_VALUE,
    TIMER_VALUE,
    IdRow,
    held_key,
    key_prefix,
    pack_u64,
    split_timer_key,
    term,
    timer_key,
)
from storage.paused import is_waiting, waiting_timers
from storage.queues import find_sequence
from storage.read_ahead import Rows
from storage.reader import Reader
from storage.store import Store
from storage.timers import seek_topic

MAX_WITH_ID = 1_000
"""Messages with one id that are found: a sender that repeats itself leaves a few."""

MAX_WITH_KEY_SCANNED = 1_000
"""Messages with one key that a search among them looks at, some 50 ms."""

MAX_TIMERS_SCANNED = 20_000
"""Timers that one page of a scan looks at, some 10 ms: a page that ends early says where to go on.
"""

LEAPS = 500
"""Leaps over other topics' timers after which a search says how far it has come."""

LEAPS_WEIGH = 1_000
"""Timers that could be looked at meanwhile."""

RECORDS_READ_AHEAD = 64
"""Messages with one key that are looked at together."""

SPANS_READ_AHEAD = 16
"""Rows of `held` whose timers are sought together."""


class State(Enum):
    """Where a message is in its life."""

    PENDING = "pending"
    FIRED = "fired"
    ABORTED = "aborted"
    UNTIMED = "untimed"


class Found(NamedTuple):
    """A message and what has become of it.

    `moved_ms` is when it fired, was aborted or, untimed, was stored; 0 while it is pending.
    `offset` is its place in its queue once it is there, else -1. `due_ms` is 0 for an untimed
    message. `rescheduled_ms` is when it was given another time for the last time, and
    `due_before_ms` its time until then; both are 0 where it never was.
    """

    sequence: int
    record: bytes
    state: State
    due_ms: int
    moved_ms: int
    offset: int
    rescheduled_ms: int = 0
    due_before_ms: int = 0


class FoundPage(NamedTuple):
    """One page of a scan; `cursor` continues it, and is None at the end."""

    found: list[Found]
    cursor: bytes | None


def find_by_id(store: Store, message_id: bytes) -> list[Found]:
    """The messages with an id, the newest first, at most `MAX_WITH_ID`."""
    prefix = term(message_id) + b"\0"
    txn = store.settled_reader()
    numbers = islice(_newest_first(txn, store.tables.ids, prefix), MAX_WITH_ID)
    found = (_find(store, txn, number) for number in numbers)
    return [message for message in found if message is not None]


def find_by_sequence(store: Store, sequence: int) -> Found | None:
    """The message with a sequence, which is its physical offset on the wire."""
    if not 0 <= sequence < 1 << 64:
        return None
    txn = store.settled_reader()
    return _find(store, txn, pack_u64(sequence))


def find_by_key(
    store: Store,
    topics: Iterable[bytes],
    key: bytes,
    limit: int,
    wanted: Callable[[Found], bool] | None = None,
) -> list[Found]:
    """Messages of these topics with a key, the newest first within each topic.

    :param wanted: where given, only messages for which it says so, among the newest
        `MAX_WITH_KEY_SCANNED` of each topic.
    """
    found: list[Found] = []
    txn = store.settled_reader()
    for topic in topics:
        prefix = key_prefix(topic, term(key))
        numbers = _newest_first(txn, store.tables.keys, prefix)
        if wanted is not None:
            numbers = islice(numbers, MAX_WITH_KEY_SCANNED)
        while some := list(islice(numbers, min(limit - len(found), RECORDS_READ_AHEAD))):
            store.environment.ahead.touch(txn, Rows(store.tables.messages, some))
            for message in (_find(store, txn, number) for number in some):
                if message is not None and (wanted is None or wanted(message)):
                    found.append(message)
    return found


def scan_pending(
    store: Store,
    *,
    topic: bytes | None,
    begin_ms: int,
    end_ms: int,
    tag_hash: int | None,
    cursor: bytes | None,
    limit: int,
) -> FoundPage:
    """A page of what has not fired, in the order of due times.

    :param topic: only messages of this topic; None for all topics.
    :param begin_ms: first due time of interest.
    :param end_ms: the due time behind the last of interest.
    :param tag_hash: only messages whose tag has this hash.
    :param cursor: where the page before this one ended. Messages that fire or arrive meanwhile
        neither shift nor repeat the others.
    """
    txn = store.settled_reader()
    start = max(pack_u64(begin_ms), cursor + b"\0" if cursor is not None else b"")
    chosen: list[_Timer] = []
    behind: bytes | None = None
    seen = 0
    for key, value in pending_timers(store, txn, topic, start, end_ms):
        seen += 1 if value else LEAPS_WEIGH
        if value:
            queue, timer_hash, _ = TIMER_VALUE.unpack(value)
            if tag_hash in (None, timer_hash):
                chosen.append(_Timer(*split_timer_key(key), bool(queue & NEVER_MOVED)))
        if len(chosen) == limit or seen >= MAX_TIMERS_SCANNED:
            behind = key
            break
    return FoundPage(_pending(store, txn, chosen), behind)


class _Timer(NamedTuple):
    due_ms: int
    topic: bytes
    sequence: int
    message_id: bytes
    never_moved: bool

    @property
    def number(self) -> bytes:
        return pack_u64(self.sequence)

    @property
    def id_key(self) -> bytes:
        return self.message_id + b"\0" + self.number


def _pending(store: Store, txn: Reader, timers: list[_Timer]) -> list[Found]:
    """The messages of these timers."""
    messages, ids = store.tables.messages, store.tables.ids
    store.environment.ahead.touch(
        txn,
        Rows(messages, [timer.number for timer in timers]),
        Rows(ids, [timer.id_key for timer in timers if not timer.never_moved]),
    )
    found = []
    for timer in timers:
        record = txn.get(timer.number, db=messages)
        row: IdRow | None = IdRow(timer.due_ms)
        if not timer.never_moved:
            value = txn.get(timer.id_key, db=ids)
            row = IdRow.unpack(value) if value is not None else None
        if record is not None and row is not None:
            found.append(make_found(timer.sequence, record, State.PENDING, row))
    return found


def newest_stored_ms(store: Store) -> int:
    """The latest time at which a message was accepted or entered its queue; 0 in an empty store."""
    newest_ms = 0
    txn = store.settled_reader()
    messages = txn.cursor(db=store.tables.messages)
    if messages.last():
        # A record that cannot be read is for `find_faults` to tell of.
        with suppress(ValueError):
            newest_ms = store.terms_of(messages.value()).stored_ms
    cursor = txn.cursor(db=store.tables.queues)
    alive = cursor.last()
    while alive:
        newest_ms = max(newest_ms, QUEUE_VALUE.unpack(cursor.value())[3])
        # From a queue's last row to the last row of the queue before it.
        alive = cursor.set_range(cursor.key()[:-8]) and cursor.prev()
    return newest_ms


def pending_timers(
    store: Store, txn: Reader, topic: bytes | None, start: bytes, end_ms: int
) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values, as in `timers` and in their order, of all that has not fired, wherever it waits.

    Among them, after so many `LEAPS` over other topics' timers, the key of one of those and no value: so far nothing
    else was found.

    :param topic: only messages of this topic; None for all topics.
    :param start: the key to begin with.
    :param end_ms: the due time behind the last of interest.
    """
    in_table = (
        _all_timers(store, txn, start, end_ms)
        if topic is None
        else _timers_of(store, txn, topic, start, end_ms)
    )
    in_memory = store.inbox.between(start, pack_u64(end_ms), topic)
    waiting = waiting_timers(txn, store.tables, topic, start, pack_u64(end_ms))
    return merge(in_table, in_memory, waiting)


def _all_timers(
    store: Store, txn: Reader, start: bytes, end_ms: int
) -> Iterator[tuple[bytes, bytes]]:
    cursor = txn.cursor(db=store.tables.timers)
    end = pack_u64(end_ms)
    if cursor.set_range(start):
        for key, value in cursor:
            if key >= end:
                return
            yield key, value


def _timers_of(
    store: Store, txn: Reader, topic: bytes, start: bytes, end_ms: int
) -> Iterator[tuple[bytes, bytes]]:
    """A topic's timers, leaping over the other topics'.

    `held` tells in which spans of time the topic has any, and how many; within such a span every millisecond is
    sought directly. See `pending_timers` about keys without a value.
    """
    name = topic + b"\0"
    held = txn.cursor(db=store.tables.held)
    timers = txn.cursor(db=store.tables.timers)
    end = pack_u64(end_ms)
    if not held.set_range(held_key(topic, int.from_bytes(start[:8]) // HELD_SPAN_MS)):
        return
    behind = name + pack_u64(-(-end_ms // HELD_SPAN_MS))
    rows = takewhile(lambda row: row[0][:-8] == name and row[0] < behind, held)
    while some := list(islice(rows, SPANS_READ_AHEAD)):
        spans = [(int.from_bytes(row[-8:]), int.from_bytes(value)) for row, value in some]
        begins = [pack_u64(span * HELD_SPAN_MS) + name for span, _ in spans]
        store.environment.ahead.touch(txn, Rows(store.tables.timers, begins))
        for begin, (span, count) in zip(begins, spans, strict=True):
            last = min(end, pack_u64((span + 1) * HELD_SPAN_MS))
            timers.set_range(max(start, begin))
            left = count
            while left:
                if seek_topic(timers, name, last, LEAPS):
                    yield timers.key(), timers.value()
                    timers.next()
                    left -= 1
                elif b"" < timers.key() < last:
                    yield timers.key(), b""
                else:
                    break


def _newest_first(txn: Reader, table: lmdb._Database, prefix: bytes) -> Iterator[bytes]:
    """The sequences, packed, of an index's rows with a prefix, from the last to the first."""
    cursor = txn.cursor(db=table)
    alive = cursor.prev() if cursor.set_range(prefix + b"\xff" * 9) else cursor.last()
    while alive and cursor.key().startswith(prefix):
        # A key that holds a zero byte can stand among the rows of a shorter one.
        if len(cursor.key()) == len(prefix) + 8:
            yield cursor.key()[-8:]
        alive = cursor.prev()


def _find(store: Store, txn: Reader, number: bytes) -> Found | None:
    record = txn.get(number, db=store.tables.messages)
    if record is None:
        return None
    message_id = term(store.terms_of(record).message_id)
    row = txn.get(message_id + b"\0" + number, db=store.tables.ids)
    return _describe(store, txn, number, row) if row is not None else None


def _describe(store: Store, txn: Reader, number: bytes, id_row: bytes) -> Found | None:
    """State and place of a message, from its row in `ids`."""
    record = txn.get(number, db=store.tables.messages)
    if record is None:
        return None
    sequence = int.from_bytes(number)
    row = IdRow.unpack(id_row)
    if row.aborted_ms:
        return make_found(sequence, record, State.ABORTED, row, row.aborted_ms)
    terms = store.terms_of(record)
    if row.due_ms:
        key = timer_key(row.due_ms, terms.topic, sequence, term(terms.message_id))
        if (
            store.inbox.holds(key)
            or txn.get(key, db=store.tables.timers) is not None
            or is_waiting(txn, store.tables, key)
        ):
            return make_found(sequence, record, State.PENDING, row)
    queue = store.queue(terms.topic, terms.queue)
    place = find_sequence(txn, store.tables, queue, sequence, row.due_ms or terms.stored_ms)
    offset, moved_ms = place or (-1, 0)
    state = State.FIRED if row.due_ms else State.UNTIMED
    return make_found(sequence, record, state, row, moved_ms, offset)


def make_found(
    sequence: int, record: bytes, state: State, row: IdRow, moved_ms: int = 0, offset: int = -1
) -> Found:
    """A message of which is known where it is in its life."""
    return Found(
        sequence, record, state, row.due_ms, moved_ms, offset, row.rescheduled_ms, row.due_before_ms
    )
