"""Removes messages that have been in their queue, or aborted, for longer than retention keeps them. Pending messages
are never removed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain, islice, takewhile
from typing import NamedTuple

from storage.environment import Tables
from storage.errors import DamagedError, StorageError
from storage.keys import (
    ENDS_VALUE,
    NEXT_SEQUENCE,
    NO_MESSAGE,
    QUEUE_VALUE,
    Terms,
    debounce_key,
    id_key,
    key_prefix,
    pack_u64,
    split_queue_key,
    term,
)
from storage.logged import LoggedTransaction
from storage.noted import newest_first
from storage.parts import LARGE, delete_record, touch_records
from storage.queues import Queue
from storage.read_ahead import Rows
from storage.reader import Reader, rows_with_prefix
from storage.shapes import is_end, is_moment, is_queued, is_queued_value
from storage.store import Store, in_batch

_ALL_QUEUES = b"\xff"
"""A key behind the keys of all queues."""

QUEUES_AT_ONCE = 500
"""Queues that one step examines, some 2 ms of work."""

KEYS_PER_MESSAGE = 50
"""The most keys that one step removes, some 2 us each, per message that it may remove. A single message can have
16,000."""

BYTES_AT_ONCE = 8 << 20
"""Bytes of messages after which a step ends: each message is read, perhaps from disk, and its parts are removed one by
one. A batch accepts as many."""


class Removed(NamedTuple):
    """The result of one step of a clean-up: how many messages it removed, and where the next step begins. None means
    that all queues were examined and nothing is left to do."""

    messages: int
    behind: bytes | None


class _Expired(NamedTuple):
    """A message to remove: its packed sequence, and the key of the row that makes it expire, which may be damaged. For
    a row in `queues`, `queue` is the queue, and `place` the message's topic, queue number, tag hash and size according
    to the row. Otherwise the message was aborted."""

    number: bytes
    row: bytes
    queue: Queue | None = None
    place: tuple[bytes, int, int, int] | None = None

    def is_in_queue_of(self, record: bytes, terms: Terms) -> bool:
        """Whether the expired row in `queues`, if it is one, can belong to this message."""
        own = (terms.topic, terms.queue, terms.tag_hash, len(record))
        return self.place in (None, own)


def _none_of_its_own(topic: bytes) -> int | None:
    return None


def _at_its_first_row(topic: bytes, number: int) -> int:
    return 0


@in_batch
def remove_expired(
    store: Store,
    before_ms: int,
    limit: int,
    is_deleted: Callable[[bytes], bool],
    own_before_ms: Callable[[bytes], int | None] = _none_of_its_own,
    begin: bytes = b"",
    begin_of: Callable[[bytes, int], int] = _at_its_first_row,
) -> Removed:
    """Remove up to `limit` messages that entered their queue, or were aborted, before `before_ms`.

    This is one step in the store's batch, so that a long clean-up leaves time for sends between its steps. A step that
    finds nothing opens no batch.

    :param is_deleted: whether a topic was deleted, so that its messages are removed at any age.
    :param own_before_ms: replaces `before_ms` for the queues of a topic that has its own retention.
    :param begin: where the previous step ended.
    :param begin_of: the offset where a topic's queue begins; messages before it are removed at any age.
    """
    # Otherwise pages that a killed export still holds could not be reused.
    store.environment.forget_dead_readers()
    if store.has_changes:
        # This writes rows that the batch has added so far.
        store.batch_transaction()
    found: list[tuple[bytes, int, int]] = []
    behind: bytes | None = None
    for count, (key, oldest_ms) in enumerate(_queues(store.reader(), store.tables, begin)):
        if count == QUEUES_AT_ONCE:
            behind = key
            break
        topic, number, oldest = split_queue_key(key)
        own_ms = own_before_ms(topic)
        cutoff = 1 << 62 if is_deleted(topic) else before_ms if own_ms is None else own_ms
        first = begin_of(topic, number)
        if oldest_ms < cutoff or oldest < first:
            found.append((key, cutoff, first))
    if not found and (behind is not None or not _has_aborted(store, before_ms)):
        return Removed(0, behind)
    txn = store.batch_transaction()
    expired: list[_Expired] = []
    for key, cutoff, first in found:
        with suppress(DamagedError):
            expired += _expired_in_queue(store, txn, key, cutoff, limit - len(expired), first)
        if len(expired) >= limit:
            behind = key
            break
    if behind is None:
        expired += _expired_aborted(store, txn, before_ms, limit - len(expired))
        if len(expired) >= limit:
            behind = _ALL_QUEUES
    removed = _remove(store, txn, expired, limit)
    if removed < len(expired):
        left = expired[removed]
        behind = left.row if left.queue is not None else _ALL_QUEUES
    return Removed(removed, behind)


@in_batch
def remove_topic(store: Store, topic: bytes, limit: int) -> Removed:
    """Remove up to `limit` messages from the queues of a deleted topic, as one step of a clean-up of that topic
    alone."""
    txn = store.batch_transaction()
    cleared: list[_Expired] = []
    for key in _queues_of(txn, store.tables, topic):
        with suppress(DamagedError):
            cleared += _expired_in_queue(store, txn, key, 1 << 62, limit - len(cleared))
        if len(cleared) == limit:
            break
    removed = _remove(store, txn, cleared, limit)
    is_all = removed == len(cleared) < limit
    return Removed(removed, None if is_all else topic + b"\0")


@in_batch
def cut_topic(store: Store, topic: bytes) -> dict[int, int]:
    """Let the queues of a deleted topic begin where they end, so that nobody reads what they still hold.
    `remove_expired` removes it, provided that it is passed these beginnings.

    :returns: the beginnings, as `emptied_queues` returns them. They are not stored: after a start, `begin_queue` has
        to be called with them.
    """
    txn = store.batch_transaction()
    begins = emptied_queues(store, topic)
    for key in _queues_of(txn, store.tables, topic):
        _, number, _ = split_queue_key(key)
        with suppress(DamagedError):
            queue = store.queue(topic, number)
            store.shorten(queue, queue.next)
            begins[number] = queue.next
    return begins


def begin_queue(store: Store, topic: bytes, number: int, first: int) -> bool:
    """After a start, let a queue begin where `cut_topic` has cut it. Return False where the queue ends before that, so
    that this cannot be its beginning: it would hide messages."""
    with suppress(StorageError):
        queue = store.queue(topic, number)
        if queue.next < first:
            return False
        queue.first = max(queue.first, first)
    return True


def emptied_queues(store: Store, topic: bytes) -> dict[int, int]:
    """Return the next offset of each queue that `remove_topic` has emptied, by the queue's number. Queues that never
    held a message, or cannot be read, are left out."""
    rows = rows_with_prefix(store.reader(), store.tables.ends, topic + b"\0")
    return {
        int.from_bytes(key[-4:]): ENDS_VALUE.unpack(value)[1]
        for key, value in rows
        if is_end(key, value)
    }


def _queues_of(txn: Reader, tables: Tables, topic: bytes) -> Iterator[bytes]:
    """Return the key of the oldest row of each queue of a topic that holds a message."""
    name = topic + b"\0"
    rows = takewhile(lambda row: row[0].startswith(name), _queues(txn, tables, name))
    return (key for key, _ in rows)


def _queues(txn: Reader, tables: Tables, begin: bytes) -> Iterator[tuple[bytes, int]]:
    """Return the key of the oldest row of every queue that holds a message, and when that message was stored. It leaps
    from one queue to the next. Damaged rows are passed over; `_expired_in_queue` leaves a queue that begins with one to
    a repair.

    :param begin: the key to begin with; empty for the first one.
    """
    cursor = txn.cursor(db=tables.queues)
    alive = cursor.set_range(begin)
    while alive:
        key, value = cursor.key(), cursor.value()
        if not is_queued(key, value):
            alive = cursor.next()
            continue
        yield key, QUEUE_VALUE.unpack(value)[3]
        alive = cursor.set_range(key[:-8] + b"\xff" * 9)


def _expired_in_queue(
    store: Store, txn: LoggedTransaction, key: bytes, before_ms: int, limit: int, first: int = 0
) -> list[_Expired]:
    """Return the first messages of a queue: those that entered it before a time, or are before an offset.

    :param key: of one of its rows.
    :param first: the offset.
    :raises DamagedError: when the queue cannot be read.
    """
    topic, number, _ = split_queue_key(key)
    queue = store.queue(topic, number)
    cursor = txn.cursor(db=store.tables.queues)
    alive = cursor.set_range(queue.prefix)
    expired: list[_Expired] = []
    while (
        alive
        and len(expired) < limit
        and cursor.key()[:-8] == queue.prefix
        and is_queued_value(cursor.value())
    ):
        sequence, tag_hash, size, stored_ms = QUEUE_VALUE.unpack(cursor.value())
        if stored_ms >= before_ms and int.from_bytes(cursor.key()[-8:]) >= first:
            break
        place = (topic, number, tag_hash, size)
        expired.append(_Expired(pack_u64(sequence), cursor.key(), queue, place))
        alive = cursor.next()
    return expired


def _has_aborted(store: Store, before_ms: int) -> bool:
    """Whether a message was aborted before a time."""
    cursor = store.reader().cursor(db=store.tables.aborted)
    return cursor.first() and cursor.key() < pack_u64(max(0, before_ms))


def _expired_aborted(
    store: Store, txn: LoggedTransaction, before_ms: int, limit: int
) -> list[_Expired]:
    """Return messages that were aborted before a time."""
    bound = pack_u64(max(0, before_ms))
    rows = takewhile(
        lambda key: key < bound, txn.cursor(db=store.tables.aborted).iternext(values=False)
    )
    # A damaged key names no message, and goes.
    no_message = pack_u64(NO_MESSAGE)
    return [
        _Expired(key[8:] if is_moment(key, b"") else no_message, key) for key in islice(rows, limit)
    ]


def _remove(store: Store, txn: LoggedTransaction, expired: list[_Expired], limit: int) -> int:
    """Remove messages with all rows about them. Only the first are removed if they are larger, or have more keys, than
    one step may remove.

    :returns: how many.
    """
    if not expired:
        return 0
    tables, ahead = store.tables, store.environment.ahead
    txn.put(NEXT_SEQUENCE, pack_u64(store.next_sequence), db=tables.meta)
    # The messages were stored long ago: their pages may be on disk only.
    first = list(_first_bytes(expired))
    large = [one.number for one in first if one.place is None or one.place[3] > LARGE]
    numbers = [one.number for one in first]
    touch_records(ahead.touch, txn, tables, numbers, large, BYTES_AT_ONCE)
    found: list[tuple[_Expired, Terms, bytes, list[bytes]]] = []
    gone: list[_Expired] = []
    keys_left, bytes_left = KEYS_PER_MESSAGE * limit, BYTES_AT_ONCE
    for one in expired:
        gone.append(one)
        # A message that cannot be read stays, so that a repair moves it to its journal. So does a message that the row
        # only seems to name.
        read = store.record_with_terms(one.number)
        if read is not None and one.is_in_queue_of(*read):
            record, terms = read
            keys = [key_prefix(terms.topic, term(key)) + one.number for key in terms.keys]
            found.append((one, terms, id_key(term(terms.message_id), one.number), keys))
            keys_left -= len(keys)
            bytes_left -= len(record)
            if keys_left <= 0 or bytes_left <= 0:
                break
    ahead.touch(
        txn,
        Rows(tables.ids, [own_id for _, _, own_id, _ in found]),
        Rows(tables.keys, [key for _, _, _, keys in found for key in keys]),
    )
    for one, terms, own_id, keys in found:
        if one.queue is None:
            noted = txn.get(own_id, db=tables.ids)
            if noted is None or noted[8:16] != one.row[:8]:
                continue
        delete_record(txn, tables, one.number)
        txn.delete(own_id, db=tables.ids)
        for row in keys:
            txn.delete(row, db=tables.keys)
        for key in terms.keys:
            _pass_on_debounce(txn, tables, terms.topic, term(key), one.number)
    _forget_rows(store, txn, gone)
    return len(gone)


def _pass_on_debounce(
    txn: LoggedTransaction, tables: Tables, topic: bytes, key: bytes, number: bytes
) -> None:
    """If `debounced` names a removed message, let it name the next one with the key, or else the last one before it:
    nothing older is pending. Otherwise the next debounce would look at all messages with the key again, of which those
    that were aborted may be kept longer. When none is left, the row goes."""
    name = debounce_key(topic, key)
    if txn.get(name, db=tables.debounced) != number:
        return
    prefix = key_prefix(topic, key)
    later = rows_with_prefix(txn, tables.keys, prefix, prefix + number)
    heirs = chain(
        (row[-8:] for row, _ in later if len(row) == len(prefix) + 8),
        newest_first(txn, tables.keys, [prefix]),
    )
    if (heir := next(heirs, None)) is not None:
        txn.put(name, heir, db=tables.debounced)
    else:
        txn.delete(name, db=tables.debounced)


def _first_bytes(expired: list[_Expired]) -> Iterator[_Expired]:
    """Return these messages until they have `BYTES_AT_ONCE` together. The sizes of aborted messages are unknown and
    count as 0."""
    size = 0
    for one in expired:
        yield one
        size += one.place[3] if one.place is not None else 0
        if size >= BYTES_AT_ONCE:
            return


def _forget_rows(store: Store, txn: LoggedTransaction, gone: list[_Expired]) -> None:
    """Let queues begin behind removed messages, and delete the rows of removed aborts."""
    begins: dict[Queue, int] = {}
    for one in gone:
        if one.queue is None:
            txn.delete(one.row, db=store.tables.aborted)
        else:
            txn.delete(one.row, db=store.tables.queues)
            begins[one.queue] = int.from_bytes(one.row[-8:]) + 1
    for queue, first in begins.items():
        txn.put(queue.prefix, ENDS_VALUE.pack(first, queue.next), db=store.tables.ends)
        store.shorten(queue, first)
