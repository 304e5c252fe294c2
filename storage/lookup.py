"""Finds messages by id, key, topic, tag hash and due time, whatever their state."""

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
    timer_topic,
)
from storage.noted import Noted, newest_first, numbers_with_id, read_noted
from storage.paused import has_timer, waiting_timers
from storage.queues import PlaceSearch
from storage.read_ahead import Rows
from storage.reader import Reader
from storage.records import read_terms, unpack
from storage.shapes import is_id, is_queued, is_timer, is_waiting
from storage.store import Store
from storage.timers import seek_topic

MAX_WITH_ID = 1_000
"""Messages with one id that are found, or changed at once. A sender that repeats itself leaves only a few."""

MAX_WITH_KEY_SCANNED = 1_000
"""Messages with one key that a filtered search examines, some 50 ms."""

MAX_BYTES_SCANNED = 256 << 20
"""Bytes of these messages after which the search ends, however few they are: some 1.5 s when they must be read from
disk."""

MAX_FOUND_BYTES = 64 << 20
"""Bytes of messages after which a search, or one page of a scan, ends: all of them are in memory together."""

MAX_TIMERS_SCANNED = 20_000
"""Timers that one page of a scan examines, some 10 ms. A page that ends early says where to continue."""

LEAPS = 500
"""Leaps over other topics' timers after which a search reports how far it has come."""

LEAPS_WEIGH = 1_000
"""Timers that could be examined in the time of `LEAPS` leaps."""

PLACES_READ_AHEAD = 32
"""Keys of `timers` that are read ahead together: about where the next messages of a topic are."""

PLACES_OF_SPAN = 8
"""The most of these keys in the span of one row of `held`: the timers of all topics in a span may fill several
pages."""


class State(Enum):
    """The state of a message."""

    PENDING = "pending"
    FIRED = "fired"
    ABORTED = "aborted"
    UNTIMED = "untimed"


class Found(NamedTuple):
    """A message, its state and its place.

    `moved_ms` is when the message fired or was aborted, or when it was stored if it is untimed; 0 while it is pending.
    `offset` is its offset once it is in its queue, else -1. They are also 0 and -1 if the place was not looked up, or
    is too far behind many others (`PlaceSearch`). `due_ms` is 0 for an untimed message. `rescheduled_ms` is
    when it was last rescheduled, and `due_before_ms` its due time before that; both are 0 if it never was.
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
    """One page of a scan. `cursor` continues the scan, and is None at the end."""

    found: list[Found]
    cursor: bytes | None


def find_by_id(store: Store, message_id: bytes) -> list[Found]:
    """Return the messages with an id, the newest first, at most `MAX_WITH_ID`; fewer if they are large
    (`MAX_FOUND_BYTES`)."""
    txn = store.settled_reader()
    return _take(_find(store, txn, numbers_with_id(store, txn, message_id)), MAX_WITH_ID)


def all_with_id(store: Store, message_id: bytes) -> Iterator[Found]:
    """Return all messages with an id, the newest first, however many and large they are, without the places of those
    that are in their queues. Each is read when the iterator reaches it; nothing may be changed meanwhile."""
    txn = store.settled_reader()
    return _find_states(store, txn, numbers_with_id(store, txn, message_id))


def check_readable(store: Store, message_id: bytes) -> None:
    """Check that damage hides nothing from a search for an id, among the `MAX_WITH_ID` newest messages that have it.

    :raises DamagedError: when one of them, or the row in `ids` that leads to it, cannot be read.
    """
    _check_readable(store, numbers_with_id(store, store.reader(), message_id))


def check_readable_with_key(store: Store, topic: bytes, key: bytes) -> None:
    """Check the same for a search for a topic's messages with a key.

    :raises DamagedError: as from `check_readable`.
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
    """Whether more than `MAX_WITH_ID` messages have an id. Messages of the open batch count."""
    numbers = numbers_with_id(store, store.reader(), message_id)
    return next(islice(numbers, MAX_WITH_ID, None), None) is not None


def find_by_sequence(store: Store, sequence: int) -> Found | None:
    """Return the message with a sequence, which is its physical offset on the wire."""
    if not 0 <= sequence < 1 << 64:
        return None
    return next(_find(store, store.settled_reader(), [pack_u64(sequence)]), None)


def find_record(store: Store, sequence: int) -> bytes | None:
    """Return the record of the message with a sequence, as `find_by_sequence` finds it; its place is not looked up,
    which can take some ms."""
    if not 0 <= sequence < 1 << 64:
        return None
    noted = next(read_noted(store, store.settled_reader(), [pack_u64(sequence)]), None)
    return noted.record if noted is not None else None


def find_by_sequences(store: Store, sequences: Sequence[int]) -> list[Found]:
    """Return the messages with these sequences, in the same order. If they are large, the last are left out
    (`MAX_FOUND_BYTES`)."""
    found = _find(store, store.settled_reader(), map(pack_u64, sequences))
    return _take(found, len(sequences))


def find_by_key(
    store: Store,
    topics: Iterable[bytes],
    key: bytes,
    limit: int,
    wanted: Callable[[Found], bool] | None = None,
) -> list[Found]:
    """Return messages of these topics with a key, the newest first, at most `limit`; fewer if they are large
    (`MAX_FOUND_BYTES`).

    :param wanted: when given, only messages that it accepts, among the newest `MAX_WITH_KEY_SCANNED`; fewer if those
        are large (`MAX_BYTES_SCANNED`).
    """
    txn = store.settled_reader()
    numbers = _numbers_with_key(store, txn, topics, key)
    if wanted is None:
        return _take(_find(store, txn, islice(numbers, limit)), limit)
    scanned = _first_bytes(_find(store, txn, islice(numbers, MAX_WITH_KEY_SCANNED)))
    return _take(filter(wanted, scanned), limit)


def all_with_key(store: Store, topics: Iterable[bytes], key: bytes, limit: int) -> Iterator[Found]:
    """Return messages of these topics with a key, at most `limit`, the newest first, without the places of those that
    are in their queues; fewer if they are large (`MAX_BYTES_SCANNED`). Each is read when the iterator reaches it;
    nothing may be changed meanwhile."""
    txn = store.settled_reader()
    numbers = islice(_numbers_with_key(store, txn, topics, key), limit)
    return _first_bytes(_find_states(store, txn, numbers))


def scan_with_key(
    store: Store, topics: Iterable[bytes], key: bytes, *, cursor: bytes | None, limit: int
) -> FoundPage:
    """Return a page of the messages of these topics with a key, in any state, the newest first, without the places of
    those that are in their queues. The page ends before `limit` if the messages are large (`MAX_FOUND_BYTES`).

    :param cursor: where the previous page ended.
    """
    txn = store.settled_reader()
    before = () if cursor is None else (cursor,)
    numbers = list(islice(_numbers_with_key(store, txn, topics, key, *before), limit))
    found = _take(_find_states(store, txn, numbers), limit)
    if sum(len(one.record) for one in found) >= MAX_FOUND_BYTES:
        return FoundPage(found, pack_u64(found[-1].sequence))
    return FoundPage(found, numbers[-1] if len(numbers) == limit else None)


def _numbers_with_key(
    store: Store, txn: Reader, topics: Iterable[bytes], key: bytes, *before: bytes
) -> Iterator[bytes]:
    """Return the packed sequences of these topics' messages with a key, the newest first."""
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
                chosen.append(_Timer(*split_timer_key(key), bool(queue & NEVER_MOVED)))
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
    never_moved: bool

    @property
    def number(self) -> bytes:
        return pack_u64(self.sequence)

    @property
    def id_key(self) -> bytes:
        return id_key(self.message_id, self.number)


def _pending(store: Store, txn: Reader, timers: list[_Timer]) -> list[Found]:
    """Return the messages of these timers."""
    messages, ids = store.tables.messages, store.tables.ids
    store.environment.ahead.touch(
        txn,
        Rows(messages, [timer.number for timer in timers]),
        Rows(ids, [timer.id_key for timer in timers if not timer.never_moved]),
    )
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


def newest_stored_ms(store: Store) -> int:
    """Return the latest of three times: when a message was accepted, when one entered its queue, and when one of a
    paused topic became due; 0 in an empty store.

    :raises DataFolderError: when a row cannot be read.
    """
    try:
        return _newest_stored_ms(store)
    except (lmdb.Error, struct.error) as error:
        raise cannot_read(store.environment.path, error) from error


def _newest_stored_ms(store: Store) -> int:
    txn = store.settled_reader()
    messages = txn.cursor(db=store.tables.messages)
    # Leave it to `find_faults` to report a record that cannot be read.
    terms = read_terms(store.terms_of, unpack(messages.value())) if messages.last() else None
    newest_ms = terms.stored_ms if terms is not None else 0
    cursor = txn.cursor(db=store.tables.queues)
    alive = cursor.last()
    while alive:
        if not is_queued(cursor.key(), cursor.value()):
            # The row needs a repair, and leads to no other queue.
            alive = cursor.prev()
            continue
        newest_ms = max(newest_ms, QUEUE_VALUE.unpack(cursor.value())[3])
        # From a queue's last row to the last row of the queue before it.
        alive = cursor.set_range(cursor.key()[:-8]) and cursor.prev()
    for topic, _ in store.paused.items():
        # A waiting message was due, and will enter its queue no earlier than its due time.
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


def _find(store: Store, txn: Reader, numbers: Iterable[bytes]) -> Iterator[Found]:
    search = PlaceSearch(txn, store.tables)
    return (_describe(store, txn, noted, search) for noted in read_noted(store, txn, numbers))


def _find_states(store: Store, txn: Reader, numbers: Iterable[bytes]) -> Iterator[Found]:
    return (_describe(store, txn, noted, None) for noted in read_noted(store, txn, numbers))


def _first_bytes(found: Iterable[Found]) -> Iterator[Found]:
    """Return these messages until they have `MAX_BYTES_SCANNED` together."""
    size = 0
    for one in found:
        yield one
        size += len(one.record)
        if size >= MAX_BYTES_SCANNED:
            return


def _take(found: Iterable[Found], limit: int) -> list[Found]:
    """Return the first of these messages, within `limit` and `MAX_FOUND_BYTES`."""
    taken: list[Found] = []
    size = 0
    for one in islice(found, limit):
        taken.append(one)
        size += len(one.record)
        if size >= MAX_FOUND_BYTES:
            break
    return taken


def _describe(store: Store, txn: Reader, noted: Noted, search: PlaceSearch | None) -> Found:
    """Return a message with its state and, if it is searched for, its place."""
    sequence, record, terms, row = noted.sequence, noted.record, noted.terms, noted.row
    if row.aborted_ms:
        return make_found(sequence, record, State.ABORTED, row, row.aborted_ms)
    if row.due_ms:
        key = noted.timer_key
        if store.inbox.holds(key) or has_timer(txn, store.tables, key):
            return make_found(sequence, record, State.PENDING, row)
    place = None
    if search is not None:
        # The place of a message in a queue that cannot be read is left out.
        with suppress(DamagedError):
            queue = store.queue(terms.topic, terms.queue)
            place = search.find(queue, sequence, row.due_ms or terms.stored_ms)
    offset, moved_ms = place or (-1, 0)
    state = State.FIRED if row.due_ms else State.UNTIMED
    return make_found(sequence, record, state, row, moved_ms, offset)


def make_found(
    sequence: int, record: bytes, state: State, row: IdRow, moved_ms: int = 0, offset: int = -1
) -> Found:
    """Return a message whose state is known."""
    return Found(
        sequence, record, state, row.due_ms, moved_ms, offset, row.rescheduled_ms, row.due_before_ms
    )
