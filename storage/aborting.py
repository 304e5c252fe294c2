"""Aborts messages that have not fired."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from storage.keys import pack_u64
from storage.logged import LoggedTransaction
from storage.noted import Noted, numbers_with_id, read_noted
from storage.store import Store, in_batch


class Aborted(Enum):
    """What an abort did, or found."""

    ABORTED = "aborted"
    ALREADY_FIRED = "already fired"
    ALREADY_ABORTED = "already aborted"
    UNKNOWN = "unknown"


class AbortResult(NamedTuple):
    """The outcome for one message that an abort named. `due_ms` is 0 if the message is unknown or was not timed."""

    outcome: Aborted
    due_ms: int


@in_batch
def abort(
    store: Store, message_id: bytes, now_ms: int, topic: bytes | None = None
) -> list[AbortResult]:
    """Abort every pending message with this id.

    :param topic: when given, only messages of this topic.
    :returns: one result for each message with the id, the newest first; a single UNKNOWN when there is none.
    """
    txn = store.batch_transaction()
    numbers = list(numbers_with_id(store, txn, message_id))
    return [
        AbortResult(_abort(store, txn, noted, now_ms), noted.row.due_ms)
        for noted in read_noted(store, txn, numbers)
        if topic in (None, noted.terms.topic)
    ] or [AbortResult(Aborted.UNKNOWN, 0)]


@in_batch
def abort_sequences(store: Store, sequences: Iterable[int], now_ms: int) -> set[int]:
    """Abort those of these messages that are pending. Return their sequences."""
    txn = store.batch_transaction()
    return {
        noted.sequence
        for noted in read_noted(store, txn, map(pack_u64, sequences))
        if _abort(store, txn, noted, now_ms) is Aborted.ABORTED
    }


def _abort(store: Store, txn: LoggedTransaction, noted: Noted, now_ms: int) -> Aborted:
    row = noted.row
    if row.aborted_ms:
        return Aborted.ALREADY_ABORTED
    if not store.take_timer(txn, noted.timer_key, len(noted.record)):
        return Aborted.ALREADY_FIRED
    txn.put(noted.id_key, row._replace(aborted_ms=now_ms).pack(), db=store.tables.ids)
    txn.put(pack_u64(now_ms) + noted.number, b"", db=store.tables.aborted)
    return Aborted.ABORTED
