"""Finds messages by id, key or sequence, whatever their state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from enum import Enum
from itertools import islice
from typing import NamedTuple

from storage.errors import DamagedError
from storage.keys import IdRow, id_key, key_prefix, pack_u64, term
from storage.noted import Noted, newest_first, numbers_with_id, read_noted
from storage.paused import has_timer
from storage.queues import PlaceSearch
from storage.reader import Reader
from storage.shapes import is_id
from storage.store import Store

MAX_WITH_ID = 1_000
"""Messages with one id that are found, or changed at once. A sender that repeats itself leaves only a few."""

MAX_WITH_KEY_SCANNED = 1_000
"""Messages with one key that a filtered search examines, some 50 ms."""

MAX_BYTES_SCANNED = 256 << 20
"""Bytes of these messages after which the search ends, however few they are: some 1.5 s when they must be read from
disk."""

MAX_FOUND_BYTES = 64 << 20
"""Bytes of messages after which a search, or one page of a scan, ends: all of them are in memory together."""


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
    """Whether more than `MAX_WITH_ID` messages have an id. Rows of the open batch count (`Store.reader`)."""
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
    scanned = _find(store, txn, islice(numbers, MAX_WITH_KEY_SCANNED))
    scanned = _first_bytes(scanned, MAX_BYTES_SCANNED)
    return _take(filter(wanted, scanned), limit)


def topics_with_key(store: Store, topics: Iterable[bytes], key: bytes) -> list[bytes]:
    """Return those of these topics that have messages with a key, a microsecond each."""
    cursor = store.settled_reader().cursor(db=store.tables.keys)
    own = term(key)

    def has(topic: bytes) -> bool:
        prefix = key_prefix(topic, own)
        return cursor.set_range(prefix) and cursor.key().startswith(prefix)

    return [topic for topic in topics if has(topic)]


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


def _find(store: Store, txn: Reader, numbers: Iterable[bytes]) -> Iterator[Found]:
    search = PlaceSearch(txn, store.tables)
    return (_describe(store, txn, noted, search) for noted in read_noted(store, txn, numbers))


def _find_states(store: Store, txn: Reader, numbers: Iterable[bytes]) -> Iterator[Found]:
    return (_describe(store, txn, noted, None) for noted in read_noted(store, txn, numbers))


def _take(found: Iterable[Found], limit: int) -> list[Found]:
    """Return the first of these messages, within `limit` and `MAX_FOUND_BYTES`."""
    return list(_first_bytes(islice(found, limit), MAX_FOUND_BYTES))


def _first_bytes(found: Iterable[Found], most: int) -> Iterator[Found]:
    """Return these messages until they have `most` bytes together."""
    size = 0
    for one in found:
        yield one
        size += len(one.record)
        if size >= most:
            return


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
