"""Giving messages that have not fired another time."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from storage.keys import IdRow, pack_u64, term, timer_key
from storage.logged import LoggedTransaction
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


NewDue = Callable[[int], int]
"""The new time of a message, epoch ms, from the one that it has."""


@in_batch
def reschedule(
    store: Store, message_id: bytes, new_due: NewDue, now_ms: int, topic: bytes | None = None
) -> list[RescheduleResult]:
    """Have every message with this id that has not fired fire at another time.

    :param new_due: one that has passed fires with the next step.
    :param now_ms: the time to note in the message's history.
    :param topic: where given, only messages of this topic count.
    :returns: one result for each message with the id, the newest first; a single UNKNOWN where there is none.
    """
    txn = store.batch_transaction()
    prefix = term(message_id) + b"\0"
    found = [
        key
        for key, _ in rows_with_prefix(txn, store.tables.ids, prefix)
        if len(key) == len(prefix) + 8
    ]
    results = (_move(store, txn, key[-8:], new_due, now_ms, topic) for key in reversed(found))
    return [result for result in results if result is not None] or [_UNKNOWN]


@in_batch
def reschedule_sequence(
    store: Store, sequence: int, new_due: NewDue, now_ms: int
) -> RescheduleResult:
    """Have one message fire at another time, unless it has fired; see `reschedule`."""
    txn = store.batch_transaction()
    return _move(store, txn, pack_u64(sequence), new_due, now_ms, None) or _UNKNOWN


def _move(
    store: Store,
    txn: LoggedTransaction,
    number: bytes,
    new_due: NewDue,
    now_ms: int,
    topic: bytes | None,
) -> RescheduleResult | None:
    record = txn.get(number, db=store.tables.messages)
    if record is None:
        return None
    terms = store.terms_of(record)
    message_id = term(terms.message_id)
    key = message_id + b"\0" + number
    value = txn.get(key, db=store.tables.ids)
    if value is None or topic not in (None, terms.topic):
        return None
    row = IdRow.unpack(value)
    if row.aborted_ms:
        return RescheduleResult(Rescheduled.ALREADY_ABORTED, row.due_ms, row.due_ms)
    sequence = int.from_bytes(number)
    timer = store.take_timer(txn, timer_key(row.due_ms, terms.topic, sequence, message_id))
    if timer is None:
        return RescheduleResult(Rescheduled.ALREADY_FIRED, row.due_ms, row.due_ms)
    due_ms = new_due(row.due_ms)
    store.put_timer(txn, timer_key(due_ms, terms.topic, sequence, message_id), timer)
    moved = IdRow(due_ms, rescheduled_ms=now_ms, due_before_ms=row.due_ms)
    txn.put(key, moved.pack(), db=store.tables.ids)
    return RescheduleResult(Rescheduled.RESCHEDULED, due_ms, row.due_ms)


_UNKNOWN = RescheduleResult(Rescheduled.UNKNOWN, 0, 0)
