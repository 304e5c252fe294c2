"""Ends the retention of messages that have been in their queue, or aborted, for long enough, and removes them. Pending
messages are never removed.

This takes two steps. Messages expire: they leave their queue, or the aborted messages, and nobody finds them any more.
This changes neighbouring rows, and reads no message. Later, many of them together are removed in the order in which
they were accepted: those that lie on a page go at once, however different their delays were (`expired`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain, islice, takewhile
from math import inf
from typing import NamedTuple

from storage.environment import Tables
from storage.errors import DamagedError, StorageError
from storage.expired import (
    LAST,
    can_have_left,
    expired_numbers,
    forget_expired,
    note_expired,
    oldest_in_queue,
)
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
    queue_prefix,
    split_queue_key,
    term,
    time_of,
    timer_key,
)
from storage.logged import LoggedTransaction
from storage.noted import newest_first
from storage.parts import delete_record, touch_records
from storage.paused import has_timer
from storage.queues import Queue
from storage.read_ahead import Rows
from storage.reader import Reader, rows_with_prefix
from storage.shapes import is_end, is_id, is_message, is_moment, is_queued, is_queued_value
from storage.store import Store, in_batch
from storage.timers import earlier

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


class Step(NamedTuple):
    """The result of one step of a clean-up: how many messages expired, or were removed, and where the next step begins.
    None means that nothing is left to do."""

    messages: int
    behind: bytes | None


class _Expired(NamedTuple):
    """A message that expires: its packed sequence, the key of the row that makes it expire, which may be damaged, and
    its queue. Without a queue, the message was aborted."""

    number: bytes
    row: bytes
    queue: Queue | None = None


def _none_of_its_own(topic: bytes) -> int | None:
    return None


def _at_its_first_row(topic: bytes, number: int) -> int:
    return 0


@in_batch
def expire_messages(
    store: Store,
    before_ms: int,
    limit: int,
    is_deleted: Callable[[bytes], bool],
    own_before_ms: Callable[[bytes], int | None] = _none_of_its_own,
    begin: bytes = b"",
    begin_of: Callable[[bytes, int], int] = _at_its_first_row,
) -> Step:
    """Let up to `limit` messages expire that entered their queue, or were aborted, before `before_ms`.

    This is one step in the store's batch, so that a long clean-up leaves time for sends between its steps. A step that
    finds nothing opens no batch.

    :param is_deleted: whether a topic was deleted, so that its messages expire at any age.
    :param own_before_ms: replaces `before_ms` for the queues of a topic that has its own retention.
    :param begin: where the previous step ended.
    :param begin_of: the offset where a topic's queue begins; messages before it expire at any age.
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
        return Step(0, behind)
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
    _expire(store, txn, expired)
    return Step(len(expired), behind)


@in_batch
def expire_topic(store: Store, topic: bytes, limit: int) -> Step:
    """Let up to `limit` messages in the queues of a deleted topic expire, as one step of a clean-up of that topic
    alone."""
    txn = store.batch_transaction()
    cleared: list[_Expired] = []
    for key in _queues_of(txn, store.tables, topic):
        with suppress(DamagedError):
            cleared += _expired_in_queue(store, txn, key, 1 << 62, limit - len(cleared))
        if len(cleared) == limit:
            break
    _expire(store, txn, cleared)
    return Step(len(cleared), None if len(cleared) < limit else topic + b"\0")


def expired_bounds(store: Store) -> tuple[bytes, bytes] | None:
    """Return the packed sequence of the first expired message, and one that no other exceeds; None when there is
    none."""
    txn = store.reader()
    first = next(expired_numbers(txn, store.tables), None)
    cursor = txn.cursor(db=store.tables.expired)
    if first is None or not cursor.last():
        return None
    return first, cursor.key().ljust(len(LAST), b"\xff")


@in_batch
def remove_expired(
    store: Store, now_ms: int, limit: int, begin: bytes = b"", last: bytes = LAST
) -> Step:
    """Remove up to `limit` expired messages with all rows about them, in the order in which they were accepted. Fewer
    are removed if they are large, or have many keys.

    This is one step in the store's batch. A step that finds nothing opens no batch.

    :param now_ms: the current time, epoch ms: what is due later is not removed.
    :param begin: where the previous step ended, a packed sequence.
    :param last: only messages up to this one.
    """
    found = expired_numbers(store.reader(), store.tables, begin, last)
    numbers = list(islice(found, limit + 1))
    if not numbers:
        return Step(0, None)
    txn = store.batch_transaction()
    removed, behind = _remove(store, txn, now_ms, numbers[:limit], limit)
    if behind is None and len(numbers) > limit:
        behind = numbers[limit]
    return Step(removed, behind)


@in_batch
def cut_topic(store: Store, topic: bytes) -> dict[int, int]:
    """Let the queues of a deleted topic begin where they end, so that nobody reads what they still hold.
    It expires with `expire_messages`, provided that this is passed these beginnings.

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
    """Return the next offset of each queue that `expire_topic` has emptied, by the queue's number. Queues that never
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
        value = cursor.value()
        stored_ms = QUEUE_VALUE.unpack(value)[3]
        if stored_ms >= before_ms and int.from_bytes(cursor.key()[-8:]) >= first:
            break
        expired.append(_Expired(value[:8], cursor.key(), queue))
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


def _expire(store: Store, txn: LoggedTransaction, expired: list[_Expired]) -> None:
    """Take messages out of their queues, and out of the aborted ones."""
    begins: dict[Queue, int] = {}
    for one in expired:
        if one.queue is None:
            txn.delete(one.row, db=store.tables.aborted)
        else:
            txn.delete(one.row, db=store.tables.queues)
            begins[one.queue] = int.from_bytes(one.row[-8:]) + 1
    for queue, first in begins.items():
        txn.put(queue.prefix, ENDS_VALUE.pack(first, queue.next), db=store.tables.ends)
        store.shorten(queue, first)
    # An offset without a message names none, and a damaged row may name any.
    numbers = (one.number for one in expired if is_message(one.number, b""))
    note_expired(txn, store.tables, numbers)


def _remove(
    store: Store, txn: LoggedTransaction, now_ms: int, numbers: list[bytes], limit: int
) -> tuple[int, bytes | None]:
    """Remove expired messages with all rows about them. Only the first are removed if they are larger, or have more
    keys, than one step may remove.

    :param numbers: their packed sequences.
    :returns: how many, and the first number that is left, if any.
    """
    tables, ahead = store.tables, store.environment.ahead
    txn.put(NEXT_SEQUENCE, pack_u64(store.next_sequence), db=tables.meta)
    # The messages were stored long ago: their pages may be on disk only.
    touch_records(ahead.touch, txn, tables, numbers, numbers, BYTES_AT_ONCE)
    found: list[_Found] = []
    forgotten: list[bytes] = []
    behind = None
    keys_left, bytes_left = KEYS_PER_MESSAGE * limit, BYTES_AT_ONCE
    for number in numbers:
        if keys_left <= 0 or bytes_left <= 0:
            behind = number
            break
        read = store.record_with_terms(number)
        if read is not None:
            record, terms = read
            keys = [key_prefix(terms.topic, term(key)) + number for key in terms.keys]
            found.append(_Found(number, terms, id_key(term(terms.message_id), number), keys))
            keys_left -= len(keys)
            bytes_left -= len(record)
        elif number not in store.damaged:
            forgotten.append(number)
        # A message that cannot be read stays, so that a repair moves it to its journal.
    ahead.touch(
        txn,
        Rows(tables.ids, [one.id_key for one in found]),
        Rows(tables.keys, [key for one in found for key in one.keys]),
    )
    gone = list(_gone(store, txn, now_ms, found, forgotten))
    for number, terms, own_id, keys in gone:
        delete_record(txn, tables, number)
        txn.delete(own_id, db=tables.ids)
        for row in keys:
            txn.delete(row, db=tables.keys)
        for key in terms.keys:
            _pass_on_debounce(txn, tables, terms.topic, term(key), number)
    forget_expired(txn, tables, (*forgotten, *(one.number for one in gone)))
    return len(gone), behind


class _Found(NamedTuple):
    """An expired message: its packed sequence, its terms, and its keys in `ids` and `keys`."""

    number: bytes
    terms: Terms
    id_key: bytes
    keys: list[bytes]


def _gone(
    store: Store,
    txn: LoggedTransaction,
    now_ms: int,
    found: Iterable[_Found],
    forgotten: list[bytes],
) -> Iterator[_Found]:
    """Return the messages that can be removed, which are nearly always all. The row that expired may have been damaged
    and have named another message, so it is made sure that each is nowhere any more.

    :param now_ms: see `remove_expired`.
    :param forgotten: receives the packed sequences of those that have not expired for sure.
    """
    tables = store.tables
    first_due_ms = _first_due_ms(store, txn)
    oldest: dict[bytes, int | None] = {}
    for one in found:
        noted = txn.get(one.id_key, db=tables.ids)
        if noted is None or not is_id(one.id_key, noted):
            # It stays, for a repair. A half message of a transaction has no such row.
            if txn.get(one.number, db=tables.halves) is not None:
                forgotten.append(one.number)
            continue
        due_ms = int.from_bytes(noted[:8])
        aborted = noted[8:16]
        if any(aborted):
            if txn.get(aborted + one.number, db=tables.aborted) is None:
                yield one
            else:
                forgotten.append(one.number)
            continue
        if due_ms >= first_due_ms and _is_pending(store, txn, one, due_ms):
            forgotten.append(one.number)
            continue
        prefix = queue_prefix(one.terms.topic, one.terms.queue)
        if prefix not in oldest:
            oldest[prefix] = oldest_in_queue(txn, tables, prefix)
        # What is still in its queue expires in its turn. What is not due has fired only if the clock was wrong.
        if due_ms <= now_ms and can_have_left(oldest[prefix], due_ms, one.terms):
            yield one


def _first_due_ms(store: Store, txn: LoggedTransaction) -> float:
    """Return a time before which no pending message is due."""
    if txn.stat(store.tables.waiting)["entries"]:
        return 0
    cursor = txn.cursor(db=store.tables.timers)
    cursor.first()
    first = earlier(cursor.key(), store.inbox.first())
    return time_of(first) if first else inf


def _is_pending(store: Store, txn: LoggedTransaction, one: _Found, due_ms: int) -> bool:
    number, message_id = int.from_bytes(one.number), term(one.terms.message_id)
    key = timer_key(due_ms, one.terms.topic, number, message_id)
    return store.inbox.holds(key) or has_timer(txn, store.tables, key)


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
