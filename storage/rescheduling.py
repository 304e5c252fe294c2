"""Giving messages that have not fired another time."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import lmdb

from storage.keys import IdRow, term, timer_key
from storage.store import Store, in_batch, rows_with_prefix


class Rescheduled(Enum):
    """The true answer to a reschedule."""

    RESCHEDULED = "rescheduled"
    ALREADY_FIRED = "already fired"
    ALREADY_ABORTED = "already aborted"
    UNKNOWN = "unknown"


class RescheduleResult(NamedTuple):
    """What became of one message that a reschedule named.

    `due_ms` is when it is due now, or was to be; `due_before_ms` is when it was due until now. Both are 0 where the
    message is unknown or was not timed.
    """

    outcome: Rescheduled
    due_ms: int
    due_before_ms: int


@in_batch
def reschedule(
    store: Store, message_id: bytes, due_ms: int, now_ms: int, topic: bytes | None = None
) -> list[RescheduleResult]:
    """Have every message with this id that has not fired fire at another time.

    :param due_ms: the new time; one that has passed fires with the next step.
    :param now_ms: the time to note in the message's history.
    :param topic: where given, only messages of this topic count.
    :returns: one result for each message with the id, the newest first; a single UNKNOWN where there is none.
    """
    txn = store.batch_transaction()
    prefix = term(message_id) + b"\0"
    found = [
        (key, IdRow.unpack(value))
        for key, value in rows_with_prefix(txn, store.tables.ids, prefix)
        if len(key) == len(prefix) + 8
    ]
    results = (_move(store, txn, key, row, due_ms, now_ms, topic) for key, row in reversed(found))
    return [result for result in results if result is not None] or [
        RescheduleResult(Rescheduled.UNKNOWN, 0, 0)
    ]


def _move(
    store: Store,
    txn: lmdb.Transaction,
    key: bytes,
    row: IdRow,
    due_ms: int,
    now_ms: int,
    topic: bytes | None,
) -> RescheduleResult | None:
    record = txn.get(key[-8:], db=store.tables.messages)
    if record is None:
        return None
    own_topic = store.terms_of(record).topic
    if topic not in (None, own_topic):
        return None
    if row.aborted_ms:
        return RescheduleResult(Rescheduled.ALREADY_ABORTED, row.due_ms, row.due_ms)
    sequence = int.from_bytes(key[-8:])
    value = store.take_timer(txn, timer_key(row.due_ms, own_topic, sequence, key[:-9]))
    if value is None:
        return RescheduleResult(Rescheduled.ALREADY_FIRED, row.due_ms, row.due_ms)
    store.put_timer(txn, timer_key(due_ms, own_topic, sequence, key[:-9]), value)
    moved = IdRow(due_ms, rescheduled_ms=now_ms, due_before_ms=row.due_ms)
    txn.put(key, moved.pack(), db=store.tables.ids)
    return RescheduleResult(Rescheduled.RESCHEDULED, due_ms, row.due_ms)
