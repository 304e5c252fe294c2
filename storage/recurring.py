"""Recurring messages: their definitions, how often they have fired, and when they fire next.

A definition is opaque to this package, and is written once, when it is set. What changes with every occurrence is a
small row of its own, and one in the order of time. The caller puts the occurrence itself into its queue in the same
batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from storage.keys import (
    RECURRENCE_VALUE,
    pack_u64,
    planned_key,
    recurring_key,
    split_planned_key,
    split_recurring_key,
)
from storage.logged import LoggedTransaction
from storage.reader import Reader, rows_with_prefix
from storage.shapes import is_planned, is_recurrence
from storage.store import Store, in_batch

MAX_PAGE_BYTES = 2 << 20
"""A page ends once its definitions have more bytes than this together."""


class Recurring(NamedTuple):
    """A recurring message: its topic and name, when it fires next in epoch ms, how often it has fired, and whether it
    is paused. A paused one does not fire, and `next_ms` is when it would have fired."""

    topic: bytes
    name: bytes
    next_ms: int
    fired: int
    paused: bool
    definition: bytes


class RecurringPage(NamedTuple):
    """A page of recurring messages. `cursor` leads to the next page, and is None on the last."""

    found: list[Recurring]
    cursor: bytes | None


@in_batch
def put_recurring(store: Store, recurring: Recurring) -> None:
    """Store a recurring message, replacing the one with its topic and name, if any."""
    txn = store.batch_transaction()
    key = recurring_key(recurring.topic, recurring.name)
    store.count_bytes(len(recurring.definition) + 400)
    txn.put(key, recurring.definition, db=store.tables.recurring)
    _plan(store, txn, key, recurring.next_ms, recurring.fired, paused=recurring.paused)


@in_batch
def plan_recurring(
    store: Store, topic: bytes, name: bytes, next_ms: int, fired: int, *, paused: bool
) -> None:
    """Set when a recurring message fires next, and how often it has fired; its definition stays."""
    store.count_bytes(400)
    key = recurring_key(topic, name)
    _plan(store, store.batch_transaction(), key, next_ms, fired, paused=paused)


@in_batch
def delete_recurring(store: Store, topic: bytes, name: bytes) -> bool:
    """Delete a recurring message.

    :returns: False when there is none of that name.
    """
    txn = store.batch_transaction()
    key = recurring_key(topic, name)
    store.count_bytes(400)
    _unplan(store, txn, key)
    return txn.delete(key, db=store.tables.recurring)


@in_batch
def delete_recurring_of(store: Store, topic: bytes) -> int:
    """Delete all recurring messages of a topic.

    :returns: how many there were.
    """
    txn = store.batch_transaction()
    keys = [key for key, _ in rows_with_prefix(txn, store.tables.recurring, topic + b"\0")]
    for key in keys:
        store.count_bytes(400)
        _unplan(store, txn, key)
        txn.delete(key, db=store.tables.recurring)
    return len(keys)


@in_batch
def current_recurring(store: Store, topic: bytes, name: bytes) -> Recurring | None:
    """Return a recurring message, with the changes of the batch."""
    return _read(store, store.batch_transaction(), recurring_key(topic, name))


@in_batch
def due_recurring(store: Store, now_ms: int, limit: int, max_bytes: int) -> list[Recurring]:
    """Return the recurring messages due at `now_ms`, the earliest first: at most `limit`, and no more once their
    definitions have `max_bytes` together. They stay unchanged until `plan_recurring`.

    A planned row without readable rows that agree with it is left out, for a repair.
    """
    txn = store.batch_transaction()
    bound = pack_u64(now_ms + 1)
    due: list[Recurring] = []
    size = 0
    for key, value in txn.cursor(db=store.tables.planned):
        if key >= bound or len(due) == limit or size >= max_bytes:
            break
        if not is_planned(key, value):
            store.damaged.add(key)
            continue
        next_ms, own = split_planned_key(key)
        found = _read(store, txn, own)
        if found is not None and found.next_ms == next_ms and not found.paused:
            due.append(found)
            size += len(found.definition)
    return due


def find_recurring(store: Store, topic: bytes, name: bytes) -> Recurring | None:
    """Return a recurring message as of the last commit."""
    return _read(store, store.settled_reader(), recurring_key(topic, name))


def count_recurring(store: Store) -> int:
    """Return how many recurring messages there are, paused ones included, with the changes of the batch."""
    return store.reader().stat(store.tables.recurring)["entries"]


def next_recurring_due(store: Store, from_ms: int = 0) -> int | None:
    """Return when the next recurring message fires at or after a time, in epoch ms, with the changes of the batch."""
    cursor = store.reader().cursor(db=store.tables.planned)
    return split_planned_key(cursor.key())[0] if cursor.set_range(pack_u64(from_ms)) else None


def scan_recurring(
    store: Store,
    topic: bytes | None,
    cursor: bytes | None,
    limit: int,
    readable: Callable[[bytes], bool] | None = None,
) -> RecurringPage:
    """Return a page of recurring messages as of the last commit, by topic and name; fewer than `limit` if they are
    large. Messages with a row that cannot be read are left out, here as in the other reads, for a repair.

    :param topic: when given, only messages of this topic.
    :param cursor: from the previous page.
    :param readable: when given, only messages of topics that it accepts; the page's cursor names no other topic.
    """
    found: list[Recurring] = []
    size = 0
    prefix = topic + b"\0" if topic is not None else b""
    txn = store.settled_reader()
    rows = txn.cursor(db=store.tables.recurring)
    # A key followed by a zero byte is the first key behind it.
    alive = rows.set_range(max(prefix, cursor + b"\0" if cursor is not None else b""))
    while alive and rows.key().startswith(prefix):
        own = rows.key().partition(b"\0")[0]
        if readable is not None and not readable(own):
            alive = rows.set_range(own + b"\1")
            continue
        if len(found) == limit or size > MAX_PAGE_BYTES:
            last = found[-1]
            return RecurringPage(found, recurring_key(last.topic, last.name))
        one = _read(store, txn, rows.key())
        if one is not None:
            found.append(one)
            size += len(one.definition)
        alive = rows.next()
    return RecurringPage(found, None)


def _plan(
    store: Store, txn: LoggedTransaction, key: bytes, next_ms: int, fired: int, *, paused: bool
) -> None:
    _unplan(store, txn, key)
    txn.put(key, RECURRENCE_VALUE.pack(next_ms, fired, paused), db=store.tables.recurrences)
    if not paused:
        txn.put(planned_key(next_ms, key), b"", db=store.tables.planned)


def _unplan(store: Store, txn: LoggedTransaction, key: bytes) -> None:
    value = txn.pop(key, db=store.tables.recurrences)
    if value is not None and is_recurrence(key, value):
        next_ms, _, _ = RECURRENCE_VALUE.unpack(value)
        txn.delete(planned_key(next_ms, key), db=store.tables.planned)


def _read(store: Store, txn: Reader, key: bytes) -> Recurring | None:
    definition = txn.get(key, db=store.tables.recurring)
    value = txn.get(key, db=store.tables.recurrences)
    if definition is None or value is None:
        return None
    if not is_recurrence(key, value):
        store.damaged.add(key)
        return None
    topic, name = split_recurring_key(key)
    next_ms, fired, paused = RECURRENCE_VALUE.unpack(value)
    return Recurring(topic, name, next_ms, fired, paused, definition)
