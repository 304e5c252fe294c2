"""Holds every table against every other. Tests do so after each test; `tidegate` may offer it to operators."""

from __future__ import annotations

from collections import Counter

import lmdb

from storage.keys import (
    ENDS_VALUE,
    QUEUE_VALUE,
    TIMER_VALUE,
    key_prefix,
    pack_u64,
    split_queue_key,
    split_timer_key,
    term,
)
from storage.store import Store


def find_faults(store: Store) -> list[str]:
    """Each contradiction between two tables, as a sentence; none in a sound database."""
    with store.read_transaction() as txn:
        pending, faults = _check_timers(store, txn)
        queued = _check_queues(store, txn, faults)
        aborted = {int.from_bytes(key[8:]) for key, _ in txn.cursor(db=store.tables.aborted)}
        _check_messages(store, txn, faults, pending, queued, aborted)
        _check_indexes(store, txn, faults)
    return faults


def _check_timers(store: Store, txn: lmdb.Transaction) -> tuple[set[int], list[str]]:
    faults: list[str] = []
    pending: set[int] = set()
    held: Counter[tuple[bytes, int]] = Counter()
    for key, value in txn.cursor(db=store.tables.timers):
        due_ms, topic, sequence, _ = split_timer_key(key)
        pending.add(sequence)
        held[topic, due_ms // 1000] += 1
        record = txn.get(pack_u64(sequence), db=store.tables.messages)
        if record is None:
            faults.append(f"timer of message {sequence}: the message is missing")
        elif TIMER_VALUE.unpack(value)[2] != len(record):
            faults.append(f"timer of message {sequence}: its size is wrong")
    for key, value in txn.cursor(db=store.tables.held):
        counted = held.pop((key[:-9], int.from_bytes(key[-8:])), 0)
        if counted != int.from_bytes(value):
            faults.append(f"held {key!r}: {int.from_bytes(value)} noted, {counted} counted")
    faults += [f"held {place}: 0 noted, {count} counted" for place, count in held.items()]
    return pending, faults


def _check_queues(store: Store, txn: lmdb.Transaction, faults: list[str]) -> set[int]:
    queued: set[int] = set()
    expected: dict[bytes, int] = {}
    for key, value in txn.cursor(db=store.tables.queues):
        topic, number, offset = split_queue_key(key)
        prefix = key[:-8]
        if prefix not in expected:
            ends = txn.get(prefix, db=store.tables.ends)
            expected[prefix] = ENDS_VALUE.unpack(ends)[0] if ends is not None else 0
        if offset != expected[prefix]:
            faults.append(f"{topic!r} queue {number}: offset {expected[prefix]} is missing")
        expected[prefix] = offset + 1
        sequence, _, size, _ = QUEUE_VALUE.unpack(value)
        if sequence in queued:
            faults.append(f"message {sequence} is queued twice")
        queued.add(sequence)
        record = txn.get(pack_u64(sequence), db=store.tables.messages)
        if record is None or len(record) != size:
            faults.append(
                f"{topic!r} queue {number} offset {offset}: message {sequence} is not as noted"
            )
    return queued


def _check_messages(
    store: Store,
    txn: lmdb.Transaction,
    faults: list[str],
    pending: set[int],
    queued: set[int],
    aborted: set[int],
) -> None:
    """Every message is in exactly one of the three states, and in the indexes."""
    for number, record in txn.cursor(db=store.tables.messages):
        sequence = int.from_bytes(number)
        states = (sequence in pending) + (sequence in queued) + (sequence in aborted)
        if states != 1:
            faults.append(f"message {sequence} is in {states} states")
        terms = store.terms_of(record)
        row = txn.get(term(terms.message_id) + b"\0" + number, db=store.tables.ids)
        if row is None:
            faults.append(f"message {sequence} is missing from the ids")
        elif (len(row) > 8) != (sequence in aborted):
            faults.append(f"message {sequence}: ids and aborted disagree")
        for key in terms.keys:
            if txn.get(key_prefix(terms.topic, term(key)) + number, db=store.tables.keys) is None:
                faults.append(f"message {sequence} is missing from the keys")


def _check_indexes(store: Store, txn: lmdb.Transaction, faults: list[str]) -> None:
    for name in ("ids", "keys"):
        for key in txn.cursor(db=getattr(store.tables, name)).iternext(values=False):
            if txn.get(key[-8:], db=store.tables.messages) is None:
                faults.append(f"{name} {key!r}: the message is missing")
