"""The half messages of transactions: they wait, invisible to consumers, to be committed or rolled back."""

from __future__ import annotations

from typing import NamedTuple

from storage.keys import HALF_VALUE, NEXT_SEQUENCE, U64, pack_u64
from storage.logged import LoggedTransaction
from storage.reader import Reader
from storage.records import pack
from storage.store import Store, in_batch


class Half(NamedTuple):
    """A half message that waits.

    `check_ms` is when its producer must next be asked about it, in epoch ms. `checks` is how often that has been done.
    """

    sequence: int
    record: bytes
    check_ms: int
    checks: int


@in_batch
def put_half(store: Store, sequence: int, record: bytes, check_ms: int) -> None:
    """Store a half message until `take_half` or `remove_half`.

    :param sequence: from `Store.new_sequence`, in the order in which they were handed out.
    """
    number = pack_u64(sequence)
    store.count_bytes(len(record) + 200)
    txn = store.batch_transaction()
    stored = pack(record)
    store.cutter.count(stored)
    # Otherwise LMDB leaves pages half empty behind rows that come in order.
    txn.put_all([(number, stored)], db=store.tables.messages, append=True)
    txn.put(number, HALF_VALUE.pack(check_ms, 0), db=store.tables.halves)
    txn.put(pack_u64(check_ms) + number, b"", db=store.tables.checks)


@in_batch
def take_half(store: Store, sequence: int) -> bool:
    """End the wait of a half message. In the same batch, `Store.append` or `Store.schedule` has to replace its record.

    :returns: False when there is no such half message, or no longer.
    """
    txn = store.batch_transaction()
    number = pack_u64(sequence)
    if not _forget(store, txn, number):
        return False
    if sequence >= store.committed_sequence:
        # A record of this batch is appended if it is the last one.
        txn.delete(number, db=store.tables.messages)
    return True


@in_batch
def remove_half(store: Store, sequence: int) -> bool:
    """Delete a half message.

    :returns: False when there is no such half message, or no longer.
    """
    txn = store.batch_transaction()
    number = pack_u64(sequence)
    if not _forget(store, txn, number):
        return False
    txn.delete(number, db=store.tables.messages)
    # The sequence stays used: a late end-transaction request for this half message must not match another one.
    txn.put(NEXT_SEQUENCE, pack_u64(store.next_sequence), db=store.tables.meta)
    return True


@in_batch
def put_off_check(store: Store, sequence: int, check_ms: int, checks: int) -> bool:
    """Set when the next check is due, and how many have been made.

    :returns: False when there is no such half message, or no longer.
    """
    txn = store.batch_transaction()
    number = pack_u64(sequence)
    if not _forget(store, txn, number):
        return False
    txn.put(number, HALF_VALUE.pack(check_ms, checks), db=store.tables.halves)
    txn.put(pack_u64(check_ms) + number, b"", db=store.tables.checks)
    return True


def _forget(store: Store, txn: LoggedTransaction, number: bytes) -> bool:
    value = txn.pop(number, db=store.tables.halves)
    if value is None:
        return False
    check_ms, _ = HALF_VALUE.unpack(value)
    txn.delete(pack_u64(check_ms) + number, db=store.tables.checks)
    return True


def find_half(store: Store, sequence: int) -> Half | None:
    """Return the half message with a sequence, with the changes of the batch; None when there is none, or it cannot be
    read."""
    return _read(store, store.reader(), pack_u64(sequence))


def halves_to_check(store: Store, now_ms: int, limit: int, max_bytes: int) -> list[Half]:
    """Return half messages whose check is due at `now_ms`, the longest due first: at most `limit`, and no more once
    they have `max_bytes` together. Those that cannot be read are left to a repair."""
    halves: list[Half] = []
    bound = pack_u64(now_ms + 1)
    size = 0
    txn = store.reader()
    for key in txn.cursor(db=store.tables.checks).iternext(values=False):
        if key >= bound or len(halves) == limit or size >= max_bytes:
            break
        half = _read(store, txn, key[8:]) if len(key) == 2 * U64.size else None
        if half is not None:
            halves.append(half)
            size += len(half.record)
    return halves


def _read(store: Store, txn: Reader, number: bytes) -> Half | None:
    value = txn.get(number, db=store.tables.halves)
    record = store.record(number)
    if value is None or record is None:
        return None
    if len(value) != HALF_VALUE.size:
        store.damaged.add(number)
        return None
    return Half(int.from_bytes(number), record, *HALF_VALUE.unpack(value))
