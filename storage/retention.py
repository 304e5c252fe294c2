"""Removes what has been in its queue, or aborted, for longer than it is to be kept. Pending
messages always stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from storage.keys import (
    ENDS_VALUE,
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
from storage.store import NEXT_SEQUENCE, Store, in_batch


@in_batch
def remove_expired(
    store: Store,
    before_ms: int,
    limit: int,
    is_deleted: Callable[[bytes], bool],
    own_before_ms: Mapping[bytes, int] = MappingProxyType({}),
) -> int:
    """Remove up to `limit` messages that entered their queue, or were aborted, before `before_ms`.

    It is one step in the store's batch, so that a long clean-up leaves room for sends between its
    steps.

    :param is_deleted: tells of a topic whether it was deleted, so that its messages go whatever
        their age.
    :param own_before_ms: such times of the topics that have their own, for what is in their queues.
    :returns: how many were removed; fewer than `limit` means that nothing is left to do.
    """
    # What an export that was killed still holds could not be used again.
    store.environment.forget_dead_readers()
    txn = store.batch_transaction()
    expired: list[bytes] = []
    for topic, number in list(_queues(store, txn)):
        cutoff = 1 << 62 if is_deleted(topic) else own_before_ms.get(topic, before_ms)
        expired += _shorten_queue(store, txn, topic, number, cutoff, limit - len(expired))
        if len(expired) >= limit:
            break
    expired += _forget_aborted(store, txn, before_ms, limit - len(expired))
    _remove_messages(store, txn, expired)
    return len(expired)


@in_batch
def remove_topic(store: Store, topic: bytes, limit: int) -> int:
    """Remove up to `limit` messages from the queues of a deleted topic.

    :returns: how many were removed; fewer than `limit` means that none is left.
    """
    txn = store.batch_transaction()
    cleared: list[bytes] = []
    for name, number in list(_queues(store, txn, topic + b"\0")):
        cleared += _shorten_queue(store, txn, name, number, 1 << 62, limit - len(cleared))
    _remove_messages(store, txn, cleared)
    return len(cleared)


def emptied_queues(store: Store, topic: bytes) -> dict[int, int]:
    """The offset that the next message gets in each queue of a topic of which `remove_topic` has left nothing, by the
    queue's number; queues that never held a message are left out."""
    rows = rows_with_prefix(store.reader(), store.tables.ends, topic + b"\0")
    return {int.from_bytes(key[-4:]): ENDS_VALUE.unpack(value)[1] for key, value in rows}


def _queues(store: Store, txn: Reader, prefix: bytes = b"") -> Iterator[tuple[bytes, int]]:
    """Every queue that holds a message and whose key begins so, leaping from one to the next."""
    cursor = txn.cursor(db=store.tables.queues)
    alive = cursor.set_range(prefix) if prefix else cursor.first()
    while alive and cursor.key().startswith(prefix):
        key = cursor.key()
        topic, number, _ = split_queue_key(key)
        yield topic, number
        alive = cursor.set_range(key[:-8] + b"\xff" * 9)


def _shorten_queue(
    store: Store, txn: LoggedTransaction, topic: bytes, number: int, before_ms: int, limit: int
) -> list[bytes]:
    """Let a queue begin later; the sequences, packed, of the messages that stood there."""
    queue = store.queue(topic, number)
    cursor = txn.cursor(db=store.tables.queues)
    alive = cursor.set_range(queue.prefix)
    numbers: list[bytes] = []
    while alive and len(numbers) < limit and cursor.key()[:-8] == queue.prefix:
        sequence, _, _, stored_ms = QUEUE_VALUE.unpack(cursor.value())
        if stored_ms >= before_ms:
            break
        first = int.from_bytes(cursor.key()[-8:]) + 1
        txn.delete_at(cursor, db=store.tables.queues)
        numbers.append(pack_u64(sequence))
        alive = cursor.key() != b""
    if numbers:
        txn.put(queue.prefix, ENDS_VALUE.pack(first, queue.next), db=store.tables.ends)
        store.shorten(queue, first)
    return numbers


def _forget_aborted(
    store: Store, txn: LoggedTransaction, before_ms: int, limit: int
) -> list[bytes]:
    """Likewise, of the messages that were aborted."""
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
