"""Reschedules messages that have not fired."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import NamedTuple

from storage.keys import IdRow, pack_u64
from storage.logged import LoggedTransaction
from storage.noted import Noted, numbers_with_id, read_noted
from storage.store import Store, in_batch


class Rescheduled(Enum):
    """What a reschedule did, or found."""

    RESCHEDULED = "rescheduled"
    ALREADY_FIRED = "already fired"
    ALREADY_ABORTED = "already aborted"
    UNKNOWN = "unknown"


class RescheduleResult(NamedTuple):
    """The outcome for one message that a reschedule named.

    `due_ms` is when the message is due now, or was due last; `due_before_ms` is its due time before the call. Both are
    0 if the message is unknown or was not timed.
    """

    outcome: Rescheduled
    due_ms: int
    due_before_ms: int


NewDue = Callable[[int], int]
"""Computes a message's new due time from its present one, in epoch ms."""


@in_batch
def reschedule(
    store: Store, message_id: bytes, new_due: NewDue, now_ms: int, topic: bytes | None = None
) -> list[RescheduleResult]:
    """Give every pending message with this id another due time.

    :param new_due: a time in the past makes the message fire with the next step.
    :param now_ms: the time to note in the message's history.
    :param topic: when given, only messages of this topic.
    :returns: one result for each message with the id, the newest first; a single UNKNOWN when there is none.
    """
    txn = store.batch_transaction()
    numbers = list(numbers_with_id(store, txn, message_id))
    return [
        _move(store, txn, noted, new_due, now_ms)
        for noted in read_noted(store, txn, numbers)
        if topic in (None, noted.terms.topic)
    ] or [RescheduleResult(Rescheduled.UNKNOWN, 0, 0)]


@in_batch
def reschedule_sequences(
    store: Store, sequences: Iterable[int], new_due: NewDue, now_ms: int
) -> dict[int, RescheduleResult]:
    """Give messages another due time, unless they have fired. Return the outcome for each known message by its
    sequence. See `reschedule`."""
    txn = store.batch_transaction()
    return {
        noted.sequence: _move(store, txn, noted, new_due, now_ms)
        for noted in read_noted(store, txn, map(pack_u64, sequences))
    }


def _move(
    store: Store, txn: LoggedTransaction, noted: Noted, new_due: NewDue, now_ms: int
) -> RescheduleResult:
    due_before_ms = noted.row.due_ms
    if noted.row.aborted_ms:
        return RescheduleResult(Rescheduled.ALREADY_ABORTED, due_before_ms, due_before_ms)
    if not store.take_timer(txn, noted.timer_key, len(noted.record)):
        return RescheduleResult(Rescheduled.ALREADY_FIRED, due_before_ms, due_before_ms)
    due_ms = new_due(due_before_ms)
    moved = noted._replace(row=IdRow(due_ms, rescheduled_ms=now_ms, due_before_ms=due_before_ms))
    store.put_timer(txn, moved.timer_key, moved.timer_value)
    txn.put(moved.id_key, moved.row.pack(), db=store.tables.ids)
    return RescheduleResult(Rescheduled.RESCHEDULED, due_ms, due_before_ms)
