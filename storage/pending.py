"""Lists pending messages in the order of due times, of one topic or of all, wherever their timers are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import merge
from itertools import takewhile
from typing import NamedTuple

from storage.keys import (
    HELD_SPAN_MS,
    NEVER_MOVED,
    TIMER_VALUE,
    IdRow,
    held_key,
    id_key,
    pack_u64,
    split_timer_key,
    timer_topic,
)
from storage.lookup import MAX_FOUND_BYTES, Found, FoundPage, State, make_found
from storage.parts import LARGE, touch_records
from storage.paused import waiting_timers
from storage.read_ahead import Rows
from storage.reader import Reader
from storage.shapes import is_id, is_timer
from storage.store import Store
from storage.timers import seek_topic

MAX_TIMERS_SCANNED = 2_000
"""Timers that one page of a scan examines, some 4 ms, or 12 if each is in a span of its own. A page that ends early
says where to continue."""

LEAPS = 500
"""Leaps over other topics' timers after which a search reports how far it has come."""

LEAPS_WEIGH = 1_000
"""Timers that could be examined in the time of `LEAPS` leaps."""

PLACES_READ_AHEAD = 32
"""Keys of `timers` that are read ahead together: about where the next messages of a topic are."""

PLACES_OF_SPAN = 8
"""The most of these keys in the span of one row of `held`: the timers of all topics in a span may fill several
pages."""


def scan_pending(
    store: Store,
    *,
    topic: bytes | None,
    begin_ms: int,
    end_ms: int,
    tag_hash: int | None,
    cursor: bytes | None,
    limit: int,
    readable: Callable[[bytes], bool] | None = None,
) -> FoundPage:
    """Return a page of the pending messages, in the order of due times. The page ends before `limit` if the messages
    are large (`MAX_FOUND_BYTES`).

    :param topic: only messages of this topic; None for all topics.
    :param begin_ms: the first due time wanted.
    :param end_ms: the due time just after the last one wanted.
    :param tag_hash: only messages whose tag has this hash.
    :param cursor: where the previous page ended. Messages that fire or arrive meanwhile neither shift nor repeat the
        others. One of a page of some topics alone names no other topic, and no message of another.
    :param readable: when given and `topic` is None, only messages of topics that it accepts.
    """
    txn = store.settled_reader()
    start = max(pack_u64(begin_ms), cursor + b"\0" if cursor is not None else b"")
    rows = (
        pending_timers(store, txn, topic, start, end_ms)
        if topic is not None or readable is None
        else _readable_timers(store, txn, readable, start, end_ms)
    )
    chosen: list[_Timer] = []
    seen = total = 0
    first_ms: int | None = None
    for key, value in rows:
        seen += 1 if value else LEAPS_WEIGH
        due_ms = int.from_bytes(key[:8])
        first_ms = due_ms if first_ms is None else first_ms
        if value:
            queue, timer_hash, size = TIMER_VALUE.unpack(value)
            if tag_hash in (None, timer_hash):
                chosen.append(_Timer(*split_timer_key(key), size, bool(queue & NEVER_MOVED)))
                total += size
        is_over = seen >= MAX_TIMERS_SCANNED
        if len(chosen) == limit or total >= MAX_FOUND_BYTES or (is_over and value):
            return FoundPage(_pending(store, txn, chosen), key)
        if is_over and topic is not None:
            return FoundPage(_pending(store, txn, chosen), _own_place(key, topic))
        if is_over and due_ms > first_ms:
            # The next page begins with this millisecond, whose other messages may be readable.
            before = [one for one in chosen if one.due_ms < due_ms]
            return FoundPage(_pending(store, txn, before), pack_u64(due_ms - 1) + b"\xff")
    return FoundPage(_pending(store, txn, chosen), None)


def _own_place(key: bytes, topic: bytes) -> bytes:
    """Return the place in a topic's own timers where another topic's timer stands: before or behind those that are due
    in the same millisecond."""
    own = key[:8] + topic
    return own if key < own else own + b"\xff"


class _Timer(NamedTuple):
    due_ms: int
    topic: bytes
    sequence: int
    message_id: bytes
    size: int
    never_moved: bool

    @property
    def number(self) -> bytes:
        return pack_u64(self.sequence)

    @property
    def id_key(self) -> bytes:
        return id_key(self.message_id, self.number)


def _pending(store: Store, txn: Reader, timers: list[_Timer]) -> list[Found]:
    """Return the messages of these timers."""
    ids = store.tables.ids
    touch = store.environment.ahead.touch
    touch(txn, Rows(ids, [timer.id_key for timer in timers if not timer.never_moved]))
    large = [timer.number for timer in timers if timer.size > LARGE]
    touch_records(touch, txn, store.tables, [timer.number for timer in timers], large)
    found = []
    for timer in timers:
        # The caller parses the record. One that cannot be parsed is left out, and the page goes on.
        read = store.record_with_terms(timer.number)
        row: IdRow | None = IdRow(timer.due_ms)
        if not timer.never_moved:
            value = txn.get(timer.id_key, db=ids)
            row = IdRow.unpack(value) if value is not None and is_id(timer.id_key, value) else None
        if read is not None and row is not None:
            found.append(make_found(timer.sequence, read[0], State.PENDING, row))
    return found


def pending_timers(
    store: Store,
    txn: Reader,
    topic: bytes | None,
    start: bytes,
    end_ms: int,
    *,
    in_table_only: bool = False,
) -> Iterator[tuple[bytes, bytes]]:
    """Return keys and values, as in `timers` and in the same order, of all pending messages, wherever their timers are.

    After every `LEAPS` leaps over other topics' timers comes the key of one of those timers with an empty value:
    nothing else was found so far.

    :param topic: only messages of this topic; None for all topics.
    :param start: the key to begin with.
    :param end_ms: the due time just after the last one wanted.
    :param in_table_only: only those whose timers are in `timers`: leave out what is in the inbox, and what is due and
        waits because its topic is paused.
    """
    in_table = (
        _all_timers(store, txn, start, end_ms)
        if topic is None
        else _timers_of(store, txn, topic, start, end_ms)
    )
    ways = [in_table]
    if not in_table_only:
        end = pack_u64(end_ms)
        ways.append(store.inbox.between(start, end, topic))
        ways.append(waiting_timers(txn, store.tables, topic, start, end))
    return _in_order(*ways)


def _readable_timers(
    store: Store, txn: Reader, readable: Callable[[bytes], bool], start: bytes, end_ms: int
) -> Iterator[tuple[bytes, bytes]]:
    """Return what `pending_timers` returns of the topics that are readable.

    After every `LEAPS` leaps over other topics' timers, or `LEAPS_WEIGH` such timers in the inbox, comes the key of one
    of those timers with an empty value.
    """
    end = pack_u64(end_ms)
    return _in_order(
        _readable_in_table(store, txn, readable, start, end),
        _readable_in_inbox(store, readable, start, end),
        waiting_timers(txn, store.tables, None, start, end, readable),
    )


def _in_order(*ways: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Merge timers, and keys without a value. Timers that cannot be read are left out: they are left to a repair."""
    return (row for row in merge(*ways) if not row[1] or is_timer(*row))


def _readable_in_table(
    store: Store, txn: Reader, readable: Callable[[bytes], bool], start: bytes, end: bytes
) -> Iterator[tuple[bytes, bytes]]:
    cursor = txn.cursor(db=store.tables.timers)
    alive = cursor.set_range(start)
    leaps = 0
    while alive and (key := cursor.key()) < end:
        if not is_timer(key, cursor.value()) or readable(timer_topic(key)):
            yield key, cursor.value()
            alive = cursor.next()
            continue
        leaps += 1
        if leaps % LEAPS == 0:
            yield key, b""
        # Very many of the topic can be due in the same millisecond.
        alive = cursor.set_range(key[:8] + timer_topic(key) + b"\1")


def _readable_in_inbox(
    store: Store, readable: Callable[[bytes], bool], start: bytes, end: bytes
) -> Iterator[tuple[bytes, bytes]]:
    passed = 0
    for key, value in store.inbox.between(start, end, None):
        if readable(timer_topic(key)):
            yield key, value
            continue
        passed += 1
        if passed % LEAPS_WEIGH == 0:
            yield key, b""


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
    """Return a topic's timers, leaping over the timers of other topics.

    `held` says in which spans of time the topic has timers, and how many. Within such a span, each millisecond is
    looked up directly. See `pending_timers` about keys without a value.
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
                if seek_topic(timers, name, last, LEAPS) is not None:
                    yield timers.key(), timers.value()
                    timers.next()
                    left -= 1
                elif b"" < timers.key() < last:
                    yield timers.key(), b""
                else:
                    break


def _next_spans(rows: Iterator[tuple[bytes, bytes]]) -> list[tuple[int, int]]:
    """Return the next spans of a topic's rows of `held`, each with its number of timers, until they have about
    `PLACES_READ_AHEAD` places to read ahead."""
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
    """Return times, evenly spread over a span, near which its timers are read ahead."""
    places = min(count, PLACES_OF_SPAN)
    return [HELD_SPAN_MS * (places * span + place) // places for place in range(places)]
