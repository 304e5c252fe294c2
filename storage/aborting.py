"""Taking back messages that have not fired."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from storage.keys import IdRow, pack_u64, term, timer_key
from storage.logged import LoggedTransaction
from storage.store import Store, in_batch, rows_with_prefix


class Aborted(Enum):
    """The true answer to an abort."""

    ABORTED = "aborted"
    ALREADY_FIRED = "already fired"
    ALREADY_ABORTED = "already aborted"
    UNKNOWN = "unknown"


class AbortResult(NamedTuple):
    """What became of one message that an abort named; `due_ms` is 0 where the message is unknown or
    was not timed."""

    outcome: Aborted
    due_ms: int


@in_batch
def abort(
    store: Store, message_id: bytes, now_ms: int, topic: bytes | None = None
) -> list[AbortResult]:
    """Take back every message with this id that has not fired.

    :param topic: where given, only messages of this topic count.
    :returns: one result for each message with the id, the newest first; a single UNKNOWN where
        there is none.
    """
    txn = store.batch_transaction()
    prefix = term(message_id) + b"\0"
    found = [
        (key, value)
        for key, value in rows_with_prefix(txn, store.tables.ids, prefix)
        if len(key) == len(prefix) + 8
    ]
    results = []
    for key, value in reversed(found):
        result = _abort_one(store, txn, key, value, now_ms, topic)
        if result is not None:
            results.append(result)
    return results or [AbortResult(Aborted.UNKNOWN, 0)]


@in_batch
def abort_sequence(store: Store, sequence: int, now_ms: int) -> Aborted:
    """Take back one message, unless it has fired."""
    txn = store.batch_transaction()
    number = pack_u64(sequence)
    record = txn.get(number, db=store.tables.messages)
    if record is None:
        return Aborted.UNKNOWN
    key = term(store.terms_of(record).message_id) + b"\0" + number
    value = txn.get(key, db=store.tables.ids)
    result = _abort_one(store, txn, key, value, now_ms, None) if value is not None else None
    return result.outcome if result is not None else Aborted.UNKNOWN


def _abort_one(
    store: Store, txn: LoggedTransaction, key: bytes, value: bytes, now_ms: int, topic: bytes | None
) -> AbortResult | None:
    number = key[-8:]
    record = txn.get(number, db=store.tables.messages)
    if record is None:
        return None
    terms = store.terms_of(record)
    if topic is not None and terms.topic != topic:
        return None
    row = IdRow.unpack(value)
    due_ms = row.due_ms
    if row.aborted_ms:
        return AbortResult(Aborted.ALREADY_ABORTED, due_ms)
    timer = timer_key(due_ms, terms.topic, int.from_bytes(number), key[:-9])
    if store.take_timer(txn, timer) is None:
        return AbortResult(Aborted.ALREADY_FIRED, due_ms)
    aborted = pack_u64(now_ms)
    txn.put(key, row._replace(aborted_ms=now_ms).pack(), db=store.tables.ids)
    txn.put(aborted + number, b"", db=store.tables.aborted)
    return AbortResult(Aborted.ABORTED, due_ms)
