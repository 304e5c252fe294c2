"""Finding messages by id, key, topic, tag hash and due time, whatever their state."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from enum import Enum
from heapq import merge
from itertools import islice, takewhile
from typing import NamedTuple

import lmdb

from storage.errors import DamagedError, cannot_read
from storage.keys import (
    HELD_SPAN_MS,
    NEVER_MOVED,
    QUEUE_VALUE,
    TIMER_VALUE,
    IdRow,
    held_key,
    id_key,
    key_prefix,
    pack_u64,
    split_timer_key,
    term,
    timer_key_of,
)
from storage.noted import Noted, newest_first, numbers_with_id, read_noted
from storage.paused import has_timer, waiting_timers
from storage.queues import find_sequence
from storage.read_ahead import Rows
from storage.reader import Reader
from storage.records import read_terms, unpack
from storage.shapes import is_id, is_queued, is_timer, is_waiting
from storage.store import Store
from storage.timers import seek_topic

MAX_WITH_ID = 1_000
"""Messages with one id that are found, or changed at once: a sender that repeats itself leaves a few."""

MAX_WITH_KEY_SCANNED = 1_000
"""Messages with one key that a search among them looks at, some 50 ms."""

MAX_BYTES_SCANNED = 256 << 20
"""Bytes of them after which it ends, however few they are: some 1.5 s where they are on the disk only."""

MAX_FOUND_BYTES = 64 << 20
"""Bytes of messages after which a search, or one page of a scan, ends: all of them are in memory together."""

MAX_TIMERS_SCANNED = 20_000
"""Timers that one page of a scan looks at, some 10 ms: a page that ends early says where to go on.
"""

LEAPS = 500
"""Leaps over other topics' timers after which a search says how far it has come."""

LEAPS_WEIGH = 1_000
"""Timers that could be looked at meanwhile."""

PLACES_READ_AHEAD = 32
"""Places of `timers` that are sought together: about where the next messages of a topic are."""

PLACES_OF_SPAN = 8
"""Of them in the span of one row of `held`, at most: the timers of all topics there may fill several pages."""


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
    """The messages with an id, the newest first, at most `MAX_WITH_ID`; fewer where they are large
    (`MAX_FOUND_BYTES`)."""
    return _take(all_with_id(store, message_id), MAX_WITH_ID)


def all_with_id(store: Store, message_id: bytes) -> Iterator[Found]:
    """All messages with an id, the newest first. They are read when they are asked for, however many and large they
    are; nothing may be changed meanwhile."""
    txn = store.settled_reader()
    return _find(store, txn, numbers_with_id(store, txn, message_id))


def check_readable(store: Store, message_id: bytes) -> None:
    """See that nothing is kept from a search for an id, among the `MAX_WITH_ID` newest messages that have it.

    :raises DamagedError: when one of them, or the row in `ids` that leads to it, cannot be read.
    """
    _check_readable(store, numbers_with_id(store, store.reader(), message_id))


def check_readable_with_key(store: Store, topic: bytes, key: bytes) -> None:
    """Likewise, from a search for a topic's messages with a key.

    :raises DamagedError: likewise.
    """
    _check_readable(store, _numbers_with_key(store, store.reader(), [topic], key))


def _check_readable(store: Store, numbers: Iterator[bytes]) -> None:
    txn = store.reader()
    for number in islice(numbers, MAX_WITH_ID):
        read = store.record_with_terms(number)
        if read is not None:
            key = id_key(term(read[1].message_id), number)
            if is_id(key, txn.get(key, db=store.tables.ids) or b""):
                continue
        raise DamagedError(f"message {int.from_bytes(number)} cannot be read: see 'tidegate fsck'")


def has_too_many(store: Store, message_id: bytes) -> bool:
    """Whether more than `MAX_WITH_ID` messages have an id, those of the open batch included."""
    numbers = numbers_with_id(store, store.reader(), message_id)
    return next(islice(numbers, MAX_WITH_ID, None), None) is not None


def find_by_sequence(store: Store, sequence: int) -> Found | None:
    """The message with a sequence, which is its physical offset on the wire."""
    if not 0 <= sequence < 1 << 64:
        return None
    return next(_find(store, store.settled_reader(), [pack_u64(sequence)]), None)


def find_by_sequences(store: Store, sequences: Sequence[int]) -> list[Found]:
    """The messages with these sequences, in their order; not all of them where they are large (`MAX_FOUND_BYTES`)."""
    found = _find(store, store.settled_reader(), map(pack_u64, sequences))
    return _take(found, len(sequences))


def find_by_key(
    store: Store,
    topics: Iterable[bytes],
    key: bytes,
    limit: int,
    wanted: Callable[[Found], bool] | None = None,
) -> list[Found]:
    """Messages of these topics with a key, the newest first, at most `limit`; fewer where they are large
    (`MAX_FOUND_BYTES`).

    :param wanted: where given, only messages for which it says so, among the newest
        `MAX_WITH_KEY_SCANNED`; fewer where those are large (`MAX_BYTES_SCANNED`).
    """
    if wanted is None:
        return _take(all_with_key(store, topics, key, limit), limit)
    scanned = _first_bytes(all_with_key(store, topics, key, MAX_WITH_KEY_SCANNED))
    return _take(filter(wanted, scanned), limit)


def all_with_key(store: Store, topics: Iterable[bytes], key: bytes, limit: int) -> Iterator[Found]:
    """Messages of these topics with a key, at most `limit`, the newest first. They are read when they are asked for,
    however large they are; nothing may be changed meanwhile."""
    txn = store.settled_reader()
    return _find(store, txn, islice(_numbers_with_key(store, txn, topics, key), limit))


def scan_with_key(
    store: Store, topics: Iterable[bytes], key: bytes, *, cursor: bytes | None, limit: int
) -> FoundPage:
    """A page of the messages of these topics with a key, whatever their state, the newest first; it ends before `limit`
    where they are large (`MAX_FOUND_BYTES`).

    :param cursor: where the page before this one ended.
    """
    txn = store.settled_reader()
    before = () if cursor is None else (cursor,)
    numbers = list(islice(_numbers_with_key(store, txn, topics, key, *before), limit))
    found = _take(_find(store, txn, numbers), limit)
    if sum(len(one.record) for one in found) >= MAX_FOUND_BYTES:
        return FoundPage(found, pack_u64(found[-1].sequence))
    return FoundPage(found, numbers[-1] if len(numbers) == limit else None)


def _numbers_with_key(
    store: Store, txn: Reader, topics: Iterable[bytes], key: bytes, *before: bytes
) -> Iterator[bytes]:
    """The sequences, packed, of these topics' messages with a key, the newest first."""
    prefixes = (key_prefix(topic, term(key)) for topic in topics)
    return newest_first(txn, store.tables.keys, prefixes, *before)


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
    """A page of what has not fired, in the order of due times; it ends before `limit` where messages are large
    (`MAX_FOUND_BYTES`).

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
    seen = total = 0
    for key, value in pending_timers(store, txn, topic, start, end_ms):
        seen += 1 if value else LEAPS_WEIGH
        if value:
            queue, timer_hash, size = TIMER_VALUE.unpack(value)
            if tag_hash in (None, timer_hash):
                chosen.append(_Timer(*split_timer_key(key), bool(queue & NEVER_MOVED)))
                total += size
        if len(chosen) == limit or total >= MAX_FOUND_BYTES or seen >= MAX_TIMERS_SCANNED:
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
        return id_key(self.message_id, self.number)


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
        # Whoever asks takes it apart: one that cannot be is left out of the page, not the end of it.
        read = store.record_with_terms(timer.number)
        row: IdRow | None = IdRow(timer.due_ms)
        if not timer.never_moved:
            value = txn.get(timer.id_key, db=ids)
            row = IdRow.unpack(value) if value is not None and is_id(timer.id_key, value) else None
        if read is not None and row is not None:
            found.append(make_found(timer.sequence, read[0], State.PENDING, row))
    return found


def newest_stored_ms(store: Store) -> int:
    """The latest time at which a message was accepted, entered its queue, or was due and waited because its topic is
    paused; 0 in an empty store.

    :raises DataFolderError: when a row cannot be read.
    """
    try:
        return _newest_stored_ms(store)
    except (lmdb.Error, struct.error) as error:
        raise cannot_read(store.environment.path, error) from error


def _newest_stored_ms(store: Store) -> int:
    txn = store.settled_reader()
    messages = txn.cursor(db=store.tables.messages)
    # A record that cannot be read is for `find_faults` to tell of.
    terms = read_terms(store.terms_of, unpack(messages.value())) if messages.last() else None
    newest_ms = terms.stored_ms if terms is not None else 0
    cursor = txn.cursor(db=store.tables.queues)
    alive = cursor.last()
    while alive:
        if not is_queued(cursor.key(), cursor.value()):
            # It is for a repair, and leads to no other queue.
            alive = cursor.prev()
            continue
        newest_ms = max(newest_ms, QUEUE_VALUE.unpack(cursor.value())[3])
        # From a queue's last row to the last row of the queue before it.
        alive = cursor.set_range(cursor.key()[:-8]) and cursor.prev()
    for topic, _ in store.paused.items():
        # What waits was due, and will be in its queue at no time before that.
        cursor = txn.cursor(db=store.tables.waiting)
        alive = cursor.prev() if cursor.set_range(topic + b"\1") else cursor.last()
        while alive and cursor.key().startswith(topic + b"\0"):
            if is_waiting(cursor.key(), cursor.value()):
                newest_ms = max(newest_ms, int.from_bytes(timer_key_of(cursor.key())[:8]))
                break
            alive = cursor.prev()
    return newest_ms


def pending_timers(
    store: Store,
    txn: Reader,
    topic: bytes | None,
    start: bytes,
    end_ms: int,
    *,
    with_waiting: bool = True,
) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values, as in `timers` and in their order, of all that has not fired, wherever it waits.

    Among them, after so many `LEAPS` over other topics' timers, the key of one of those and no value: so far nothing
    else was found.

    :param topic: only messages of this topic; None for all topics.
    :param start: the key to begin with.
    :param end_ms: the due time behind the last of interest.
    :param with_waiting: also what is due and waits because its topic is paused.
    """
    in_table = (
        _all_timers(store, txn, start, end_ms)
        if topic is None
        else _timers_of(store, txn, topic, start, end_ms)
    )
    in_memory = store.inbox.between(start, pack_u64(end_ms), topic)
    ways = [in_table, in_memory]
    if with_waiting:
        ways.append(waiting_timers(txn, store.tables, topic, start, pack_u64(end_ms)))
    # Those that cannot be read are for a repair.
    return (row for row in merge(*ways) if not row[1] or is_timer(*row))


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
    rows = takewhile(lambda row: row[0] < behind, held)
    while spans := _next_spans(rows):
        places = [pack_u64(ms) + name for one in spans for ms in _places(*one)]
        store.environment.ahead.touch(txn, Rows(store.tables.timers, places))
        for span, count in spans:
            last = min(end, pack_u64((span + 1) * HELD_SPAN_MS))
            timers.set_range(max(start, pack_u64(span * HELD_SPAN_MS) + name))
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


def _next_spans(rows: Iterator[tuple[bytes, bytes]]) -> list[tuple[int, int]]:
    """The next spans of a topic's rows of `held`, each with how many timers are there, that have about
    `PLACES_READ_AHEAD` places."""
    spans = []
    places = 0
    for key, value in rows:
        span, count = int.from_bytes(key[-8:]), int.from_bytes(value)
        spans.append((span, count))
        places += len(_places(span, count))
        if places >= PLACES_READ_AHEAD:
            break
    return spans


def _places(span: int, count: int) -> list[int]:
    """The times, evenly spread over a span, about which so many timers of it are sought together."""
    places = min(count, PLACES_OF_SPAN)
    return [HELD_SPAN_MS * (places * span + place) // places for place in range(places)]


def _find(store: Store, txn: Reader, numbers: Iterable[bytes]) -> Iterator[Found]:
    return (_describe(store, txn, noted) for noted in read_noted(store, txn, numbers))


def _first_bytes(found: Iterable[Found]) -> Iterator[Found]:
    """These messages, until they have `MAX_BYTES_SCANNED` together."""
    size = 0
    for one in found:
        yield one
        size += len(one.record)
        if size >= MAX_BYTES_SCANNED:
            return


def _take(found: Iterable[Found], limit: int) -> list[Found]:
    """The first of these messages, as far as `limit` and `MAX_FOUND_BYTES` go."""
    taken: list[Found] = []
    size = 0
    for one in islice(found, limit):
        taken.append(one)
        size += len(one.record)
        if size >= MAX_FOUND_BYTES:
            break
    return taken


def _describe(store: Store, txn: Reader, noted: Noted) -> Found:
    """State and place of a message."""
    sequence, record, terms, row = noted.sequence, noted.record, noted.terms, noted.row
    if row.aborted_ms:
        return make_found(sequence, record, State.ABORTED, row, row.aborted_ms)
    if row.due_ms:
        key = noted.timer_key
        if store.inbox.holds(key) or has_timer(txn, store.tables, key):
            return make_found(sequence, record, State.PENDING, row)
    place = None
    # Of a queue that cannot be read its place is not told.
    with suppress(DamagedError):
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
