"""Removes what has been in its queue, or aborted, for longer than it is to be kept. Pending
messages always stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import NamedTuple

from storage.environment import Tables
from storage.keys import (
    ENDS_VALUE,
    NEXT_SEQUENCE,
    QUEUE_VALUE,
    debounce_key,
    id_key,
    key_prefix,
    pack_u64,
    split_queue_key,
    term,
)
from storage.logged import LoggedTransaction
from storage.read_ahead import Rows
from storage.reader import Reader, rows_with_prefix
from storage.store import Store, in_batch

_ALL_QUEUES = b"\xff"
"""Stands behind the keys of all queues."""

QUEUES_AT_ONCE = 500
"""Queues that one step looks at, some 2 ms of work."""


class Removed(NamedTuple):
    """What one step of a clean-up did: how many messages it removed, and where the next one begins; None once all
    queues were looked at, and nothing is left to do."""

    messages: int
    behind: bytes | None


def _none_of_its_own(topic: bytes) -> int | None:
    return None


@in_batch
def remove_expired(
    store: Store,
    before_ms: int,
    limit: int,
    is_deleted: Callable[[bytes], bool],
    own_before_ms: Callable[[bytes], int | None] = _none_of_its_own,
    begin: bytes = b"",
) -> Removed:
    """Remove up to `limit` messages that entered their queue, or were aborted, before `before_ms`.

    It is one step in the store's batch, so that a long clean-up leaves room for sends between its
    steps. One that finds nothing opens none.

    :param is_deleted: tells of a topic whether it was deleted, so that its messages go whatever
        their age.
    :param own_before_ms: such a time of a topic that has its own, for what is in its queues.
    :param begin: where the step before ended.
    """
    # What an export that was killed still holds could not be used again.
    store.environment.forget_dead_readers()
    if store.has_changes:
        # Rows that the batch has added are there only then.
        store.batch_transaction()
    found: list[tuple[bytes, int]] = []
    behind: bytes | None = None
    for count, (key, oldest_ms) in enumerate(_queues(store.reader(), store.tables, begin)):
        if count == QUEUES_AT_ONCE:
            behind = key
            break
        topic, _, _ = split_queue_key(key)
        own_ms = own_before_ms(topic)
        cutoff = 1 << 62 if is_deleted(topic) else before_ms if own_ms is None else own_ms
        if oldest_ms < cutoff:
            found.append((key, cutoff))
    if not found and (behind is not None or not _has_aborted(store, before_ms)):
        return Removed(0, behind)
    txn = store.batch_transaction()
    expired: list[bytes] = []
    for key, cutoff in found:
        expired += _shorten_queue(store, txn, key, cutoff, limit - len(expired))
        if len(expired) >= limit:
            behind = key
            break
    if behind is None:
        expired += _forget_aborted(store, txn, before_ms, limit - len(expired))
        if len(expired) >= limit:
            behind = _ALL_QUEUES
    _remove_messages(store, txn, expired)
    return Removed(len(expired), behind)


@in_batch
def remove_topic(store: Store, topic: bytes, limit: int) -> int:
    """Remove up to `limit` messages from the queues of a deleted topic.

    :returns: how many were removed; fewer than `limit` means that none is left.
    """
    txn = store.batch_transaction()
    cleared: list[bytes] = []
    name = topic + b"\0"
    rows = takewhile(lambda row: row[0].startswith(name), _queues(txn, store.tables, name))
    for key, _ in list(rows):
        cleared += _shorten_queue(store, txn, key, 1 << 62, limit - len(cleared))
    _remove_messages(store, txn, cleared)
    return len(cleared)


def emptied_queues(store: Store, topic: bytes) -> dict[int, int]:
    """The offset that the next message gets in each queue of a topic of which `remove_topic` has left nothing, by the
    queue's number; queues that never held a message are left out."""
    rows = rows_with_prefix(store.reader(), store.tables.ends, topic + b"\0")
    return {int.from_bytes(key[-4:]): ENDS_VALUE.unpack(value)[1] for key, value in rows}


def _queues(txn: Reader, tables: Tables, begin: bytes) -> Iterator[tuple[bytes, int]]:
    """The key of the oldest row of every queue that holds a message, and when that was stored, leaping from one queue
    to the next.

    :param begin: the key to begin with.
    """
    cursor = txn.cursor(db=tables.queues)
    alive = cursor.set_range(begin) if begin else cursor.first()
    while alive:
        key = cursor.key()
        yield key, QUEUE_VALUE.unpack(cursor.value())[3]
        alive = cursor.set_range(key[:-8] + b"\xff" * 9)


def _shorten_queue(
    store: Store, txn: LoggedTransaction, key: bytes, before_ms: int, limit: int
) -> list[bytes]:
    """Let a queue begin later; the sequences, packed, of the messages that stood there.

    :param key: of one of its rows.
    """
    topic, number, _ = split_queue_key(key)
    queue = store.queue(topic, number)
    cursor = txn.cursor(db=store.tables.queues)
    cursor.set_range(queue.prefix)
    numbers: list[bytes] = []
    while len(numbers) < limit and cursor.key()[:-8] == queue.prefix:
        sequence, _, _, stored_ms = QUEUE_VALUE.unpack(cursor.value())
        if stored_ms >= before_ms:
            break
        first = int.from_bytes(cursor.key()[-8:]) + 1
        txn.delete_at(cursor, db=store.tables.queues)
        numbers.append(pack_u64(sequence))
    if numbers:
        txn.put(queue.prefix, ENDS_VALUE.pack(first, queue.next), db=store.tables.ends)
        store.shorten(queue, first)
    return numbers


def _has_aborted(store: Store, before_ms: int) -> bool:
    """Whether a message was aborted before a time."""
    cursor = store.reader().cursor(db=store.tables.aborted)
    return cursor.first() and cursor.key() < pack_u64(max(0, before_ms))


def _forget_aborted(
    store: Store, txn: LoggedTransaction, before_ms: int, limit: int
) -> list[bytes]:
    """Likewise, of the messages that were aborted before a time."""
    bound = pack_u64(max(0, before_ms))
    cursor = txn.cursor(db=store.tables.aborted)
    alive = cursor.first()
    numbers: list[bytes] = []
    while alive and len(numbers) < limit and cursor.key() < bound:
        numbers.append(cursor.key()[8:])
        txn.delete_at(cursor, db=store.tables.aborted)
        alive = cursor.key() != b""
    return numbers


def _remove_messages(store: Store, txn: LoggedTransaction, numbers: list[bytes]) -> None:
    """Remove messages from the tables that know them by their sequence, id and keys."""
    if not numbers:
        return
    tables, ahead = store.tables, store.environment.ahead
    txn.put(NEXT_SEQUENCE, pack_u64(store.next_sequence), db=tables.meta)
    # They were stored long ago: their pages may be on the disk only.
    ahead.touch(txn, Rows(tables.messages, numbers))
    id_keys: list[bytes] = []
    keys: list[bytes] = []
    debounced: list[tuple[bytes, bytes]] = []
    for number in numbers:
        # One that cannot be read stays, for a repair to move it into its file.
        if (found := store.record_with_terms(number)) is None:
            continue
        _, terms = found
        txn.delete(number, db=tables.messages)
        id_keys.append(id_key(term(terms.message_id), number))
        for key in map(term, terms.keys):
            keys.append(key_prefix(terms.topic, key) + number)
            debounced.append((debounce_key(terms.topic, key), number))
    ahead.touch(txn, Rows(tables.ids, id_keys), Rows(tables.keys, keys))
    for key in id_keys:
        txn.delete(key, db=tables.ids)
    for key in keys:
        txn.delete(key, db=tables.keys)
    for key, number in debounced:
        if txn.get(key, db=tables.debounced) == number:
            txn.delete(key, db=tables.debounced)
