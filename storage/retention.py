"""Removes what has been in its queue, or aborted, for longer than it is to be kept. Pending
messages always stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from storage.keys import (
    ENDS_VALUE,
    QUEUE_VALUE,
    debounce_key,
    key_prefix,
    pack_u64,
    split_queue_key,
    term,
)
from storage.logged import LoggedTransaction
from storage.reader import Reader
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
    removed = 0
    for topic, number in list(_queues(store, txn)):
        cutoff = 1 << 62 if is_deleted(topic) else own_before_ms.get(topic, before_ms)
        removed += _shorten_queue(store, txn, topic, number, cutoff, limit - removed)
        if removed >= limit:
            break
    removed += _remove_aborted(store, txn, before_ms, limit - removed)
    if removed:
        txn.put(NEXT_SEQUENCE, pack_u64(store.next_sequence), db=store.tables.meta)
    return removed


@in_batch
def remove_topic(store: Store, topic: bytes, limit: int) -> int:
    """Remove up to `limit` messages from the queues of a deleted topic.

    :returns: how many were removed; fewer than `limit` means that none is left.
    """
    txn = store.batch_transaction()
    removed = 0
    for name, number in list(_queues(store, txn, topic + b"\0")):
        removed += _shorten_queue(store, txn, name, number, 1 << 62, limit - removed)
    if removed:
        txn.put(NEXT_SEQUENCE, pack_u64(store.next_sequence), db=store.tables.meta)
    return removed


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
) -> int:
    queue = store.queue(topic, number)
    cursor = txn.cursor(db=store.tables.queues)
    alive = cursor.set_range(queue.prefix)
    removed = 0
    while alive and removed < limit and cursor.key()[:-8] == queue.prefix:
        sequence, _, _, stored_ms = QUEUE_VALUE.unpack(cursor.value())
        if stored_ms >= before_ms:
            break
        first = int.from_bytes(cursor.key()[-8:]) + 1
        txn.delete_at(cursor, db=store.tables.queues)
        _remove_message(store, txn, pack_u64(sequence))
        removed += 1
        alive = cursor.key() != b""
    if removed:
        txn.put(queue.prefix, ENDS_VALUE.pack(first, queue.next), db=store.tables.ends)
        store.shorten(queue, first)
    return removed


def _remove_aborted(store: Store, txn: LoggedTransaction, before_ms: int, limit: int) -> int:
    bound = pack_u64(max(0, before_ms))
    cursor = txn.cursor(db=store.tables.aborted)
    alive = cursor.first()
    removed = 0
    while alive and removed < limit and cursor.key() < bound:
        number = cursor.key()[8:]
        txn.delete_at(cursor, db=store.tables.aborted)
        _remove_message(store, txn, number)
        removed += 1
        alive = cursor.key() != b""
    return removed


def _remove_message(store: Store, txn: LoggedTransaction, number: bytes) -> None:
    tables = store.tables
    record = txn.pop(number, db=tables.messages)
    if record is None:
        return
    terms = store.terms_of(record)
    txn.delete(term(terms.message_id) + b"\0" + number, db=tables.ids)
    for key in map(term, terms.keys):
        txn.delete(key_prefix(terms.topic, key) + number, db=tables.keys)
        debounced = debounce_key(terms.topic, key)
        if txn.get(debounced, db=tables.debounced) == number:
            txn.delete(debounced, db=tables.debounced)
