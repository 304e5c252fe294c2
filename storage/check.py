"""Checks every table against every other. Tests do so after each test; `tidegate fsck` does it for operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

import lmdb

from storage.check_held import check_held
from storage.environment import Tables
from storage.errors import way_out
from storage.expired import numbers_in
from storage.keys import (
    ENDS_VALUE,
    HALF_VALUE,
    MARK,
    NEVER_MOVED,
    NO_MESSAGE,
    PAUSE_VALUE,
    QUEUE_VALUE,
    RECURRENCE_VALUE,
    SUSPENDED,
    TIMER_VALUE,
    IdRow,
    TermsOf,
    id_key,
    key_prefix,
    pack_u64,
    planned_key,
    split_pop_key,
    split_queue_key,
    split_timer_key,
    term,
)
from storage.parts import lone_parts
from storage.paused import waiting_timers
from storage.places import Place, Places, Standing
from storage.queues import open_queue
from storage.reader import Reader, rows_with_prefix
from storage.records import read_record, read_terms, record_in
from storage.sequences import first_free_sequence
from storage.store import Store

Progress = Callable[[str, int], None]
"""Called at the beginning of each step of a check, with what the step checks and how many rows that is."""


class View(NamedTuple):
    """A state of all tables, and what is needed to read them.

    :param terms_of: see `Store`.
    :param inbox: timers, keys and values, that are in no table.
    """

    txn: Reader
    tables: Tables
    terms_of: TermsOf
    inbox: Sequence[tuple[bytes, bytes]]


def find_faults(store: Store) -> list[str]:
    """Return each contradiction between two tables of a store as a sentence; none for a sound store."""
    txn = store.settled_reader()
    inbox = store.inbox.rows()
    return check(View(txn, store.tables, store.terms_of, inbox))


def check(view: View, progress: Progress | None = None) -> list[str]:
    """Return each contradiction between two tables as a sentence. All rows must have the shapes that `shapes` checks.

    If LMDB itself cannot read its file, the check ends, and the last sentence says so.
    """
    faults: list[str] = []
    tables = view.tables

    def begin(name: str, *looked_at: lmdb._Database, more: int = 0) -> None:
        if progress is not None:
            rows = sum(view.txn.stat(table)["entries"] for table in looked_at)
            progress(name, rows + more)

    try:
        places = Places(view.txn, tables)
        begin("timers", tables.timers, more=len(view.inbox))
        _check_timers(view, faults, places)
        _check_mark(view, faults)
        begin("sums of timers", tables.held, tables.hours, tables.totals)
        check_held(view.txn, tables, faults)
        begin("messages of paused topics", tables.waiting)
        _check_paused(view, faults)
        begin("debounced keys", tables.debounced)
        _check_debounced(view, faults, places)
        begin("messages in queues", tables.queues)
        _check_queues(view, faults, places)
        begin("aborted messages", tables.aborted)
        _check_aborted(view, faults, places)
        begin("rows of messages to be removed", tables.expired)
        _check_expired(view, faults, places)
        begin("halves of transactions", tables.halves)
        halves = _check_halves(view, faults)
        begin("popped messages", tables.pops)
        _check_pops(view, faults)
        begin("recurring messages", tables.recurring)
        _check_recurring(view, faults)
        begin("messages", tables.messages)
        ids, keys = _check_messages(view, faults, places, halves)
        begin("parts of messages that were cut", tables.parts)
        _check_parts(view, faults)
        begin("ids and keys", tables.ids, tables.keys)
        # If an index has as many rows as the messages led to, it has no others.
        if view.txn.stat(tables.ids)["entries"] != ids:
            _check_ids(view, faults)
        if view.txn.stat(tables.keys)["entries"] != keys:
            _check_keys(view, faults)
    except lmdb.Error as error:
        faults.append(f"LMDB cannot read its file: {error}{way_out(error)}")
    return faults


def _record(view: View, faults: list[str], number: bytes, name: str) -> bytes | None:
    """Return the record that a row leads to; `name` names the row in the fault. A missing message is a fault here. A
    record that cannot be read is reported once, for its own row."""
    record = read_record(view.txn, view.tables, number)
    if record is None and view.txn.get(number, db=view.tables.messages) is None:
        faults.append(f"{name}: the message is missing")
    return record


def _check_timers(view: View, faults: list[str], places: Places) -> None:
    waiting = waiting_timers(view.txn, view.tables)
    for key, value in chain(view.txn.cursor(db=view.tables.timers), view.inbox, waiting):
        due_ms, topic, sequence, message_id = split_timer_key(key)
        queue, tag_hash, size = TIMER_VALUE.unpack(value)
        place = Place(Standing.PENDING, due_ms, topic, queue & ~NEVER_MOVED, tag_hash)
        if not places.add(sequence, place):
            faults.append(f"message {sequence} is timed twice")
        number = pack_u64(sequence)
        record = _record(view, faults, number, f"timer of message {sequence}")
        if record is None:
            continue
        if size != len(record):
            faults.append(f"timer of message {sequence}: its size is wrong")
        elif (id_row := view.txn.get(id_key(message_id, number), db=view.tables.ids)) is not None:
            # The rest of that row is checked against the message later, when its record is read anyway.
            if queue & NEVER_MOVED and IdRow.unpack(id_row).rescheduled_ms:
                faults.append(f"timer of message {sequence}: says that it was never moved")
        elif (terms := read_terms(view.terms_of, record)) and message_id != term(terms.message_id):
            faults.append(f"timer of message {sequence}: its id is wrong")


def _check_mark(view: View, faults: list[str]) -> None:
    """Check that the mark is at most the next sequence: otherwise a start would miss the timers of messages before the
    mark."""
    mark = int.from_bytes(view.txn.get(MARK, db=view.tables.meta) or b"")
    behind = first_free_sequence(view.txn, view.tables)
    if mark > behind:
        faults.append(f"the mark is at message {mark}, but the next message is {behind}")


def _check_paused(view: View, faults: list[str]) -> None:
    """Check that waiting messages belong to a paused topic, and are counted: otherwise nothing would ever fire them."""
    found = Counter(
        key[: key.index(0)]
        for key in view.txn.cursor(db=view.tables.waiting).iternext(values=False)
    )
    for topic, value in view.txn.cursor(db=view.tables.paused):
        noted = PAUSE_VALUE.unpack(value)[1]
        counted = found.pop(topic, 0)
        if noted != counted:
            faults.append(f"paused {topic!r}: {noted} noted, {counted} wait")
    faults += [
        f"waiting {topic!r}: {count} wait, but it is not paused" for topic, count in found.items()
    ]


def _check_debounced(view: View, faults: list[str], places: Places) -> None:
    """Check that no pending message with a debounced key is older than the key's row says: it would not be replaced."""
    for name, value in view.txn.cursor(db=view.tables.debounced):
        topic, _, key = name.partition(b"\0")
        sequence = int.from_bytes(value)
        prefix = key_prefix(topic, key)
        if view.txn.get(prefix + pack_u64(sequence), db=view.tables.keys) is None:
            faults.append(f"debounced {name!r}: message {sequence} does not have the key")
        for row, _ in rows_with_prefix(view.txn, view.tables.keys, prefix):
            older = int.from_bytes(row[len(prefix) :]) if len(row) == len(prefix) + 8 else sequence
            if older < sequence and Standing.PENDING in places.of(older):
                faults.append(f"debounced {name!r}: message {older} is pending before {sequence}")


def _check_queues(view: View, faults: list[str], places: Places) -> None:
    ends = {
        prefix: ENDS_VALUE.unpack(value) for prefix, value in view.txn.cursor(db=view.tables.ends)
    }
    expected = {prefix: first for prefix, (first, _) in ends.items()}
    newest: dict[bytes, int] = {}
    for key, value in view.txn.cursor(db=view.tables.queues):
        topic, number, offset = split_queue_key(key)
        prefix = key[:-8]
        place = f"{topic!r} queue {number} offset {offset}"
        if offset != expected.get(prefix, 0):
            faults.append(f"{place}: offset {expected.get(prefix, 0)} should come before it")
        expected[prefix] = offset + 1
        sequence, tag_hash, size, stored_ms = QUEUE_VALUE.unpack(value)
        if stored_ms < newest.get(prefix, 0):
            faults.append(f"{place}: its time is before that of the offset before it")
        newest[prefix] = stored_ms
        if sequence == NO_MESSAGE:
            continue
        if not places.add(sequence, Place(Standing.QUEUED, stored_ms, topic, number, tag_hash)):
            faults.append(f"message {sequence} is queued twice")
        record = _record(view, faults, value[:8], f"{place} with message {sequence}")
        if record is not None and len(record) != size:
            faults.append(f"{place}: message {sequence} is not as noted")
    for prefix, (first, next_offset) in ends.items():
        noted = f"ends {prefix!r}: {first} to {next_offset} noted"
        if prefix not in newest and first != next_offset:
            faults.append(f"{noted}, but the queue is empty")
        elif prefix in newest and next_offset > expected[prefix]:
            faults.append(f"{noted}, but the queue ends before {expected[prefix]}")


def _check_aborted(view: View, faults: list[str], places: Places) -> None:
    for key in view.txn.cursor(db=view.tables.aborted).iternext(values=False):
        sequence = int.from_bytes(key[8:])
        if not places.add(sequence, Place(Standing.ABORTED, int.from_bytes(key[:8]))):
            faults.append(f"message {sequence} is aborted twice")
        if view.txn.get(key[8:], db=view.tables.messages) is None:
            faults.append(f"aborted message {sequence} is missing")


def _check_expired(view: View, faults: list[str], places: Places) -> None:
    for row in view.txn.cursor(db=view.tables.expired):
        for number in numbers_in(*row):
            sequence = int.from_bytes(number)
            places.add(sequence, Place(Standing.EXPIRED, 0))
            if view.txn.get(number, db=view.tables.messages) is None:
                faults.append(f"expired message {sequence} is missing")


def _check_halves(view: View, faults: list[str]) -> set[int]:
    """Check that each half message has a message and one check, and is in no index."""
    due: dict[bytes, bytes] = {}
    for key in view.txn.cursor(db=view.tables.checks).iternext(values=False):
        if key[8:] in due:
            faults.append(f"half {int.from_bytes(key[8:])} is to be checked twice")
        due[key[8:]] = key[:8]
    halves: set[int] = set()
    for number, value in view.txn.cursor(db=view.tables.halves):
        sequence = int.from_bytes(number)
        halves.add(sequence)
        if due.pop(number, None) != pack_u64(HALF_VALUE.unpack(value)[0]):
            faults.append(f"half {sequence}: halves and checks disagree")
        terms = read_terms(view.terms_of, _record(view, faults, number, f"half {sequence}"))
        row = id_key(term(terms.message_id), number) if terms is not None else None
        if row is not None and view.txn.get(row, db=view.tables.ids) is not None:
            faults.append(f"half {sequence} is in the ids")
    faults += [f"check of half {int.from_bytes(number)}: no such half" for number in due]
    return halves


def _check_pops(view: View, faults: list[str]) -> None:
    """Check that each popped message has been in its queue, and is to come back no earlier than it was popped. It need
    not be there any more, and the group's progress need not be behind it: retention may have removed it, and progress
    may have been set back."""
    for key, value in view.txn.cursor(db=view.tables.pops):
        back_ms, _, topic, queue, offset = split_pop_key(key)
        if int.from_bytes(value) & ~SUSPENDED > back_ms:
            faults.append(f"popped {key!r}: it comes back before it was popped")
        if offset >= open_queue(view.txn, view.tables, topic, queue).next:
            faults.append(f"popped {key!r}: its queue has no such message")


def _check_recurring(view: View, faults: list[str]) -> None:
    """Check that every recurring message has a next firing time, and is planned for it unless paused."""
    tables = view.tables
    expected: set[bytes] = set()
    for key, value in view.txn.cursor(db=tables.recurrences):
        next_ms, _, paused = RECURRENCE_VALUE.unpack(value)
        if not paused:
            expected.add(planned_key(next_ms, key))
        if view.txn.get(key, db=tables.recurring) is None:
            faults.append(f"recurring {key!r}: its definition is missing")
    for key in view.txn.cursor(db=tables.recurring).iternext(values=False):
        if view.txn.get(key, db=tables.recurrences) is None:
            faults.append(f"recurring {key!r}: nothing says when it fires")
    planned = set(view.txn.cursor(db=tables.planned).iternext(values=False))
    faults += [f"planned {key!r}: no recurring message says so" for key in planned - expected]
    faults += [f"planned {key!r} is missing" for key in expected - planned]


def _check_messages(
    view: View, faults: list[str], places: Places, halves: set[int]
) -> tuple[int, int]:
    """Check that every message is in exactly one of the five states, at its own place, and in the indexes; half
    messages are in none.

    :returns: how many rows of `ids` and of `keys` lead to the right message.
    """
    ids = keys = 0
    for number, value in view.txn.cursor(db=view.tables.messages):
        sequence, record = int.from_bytes(number), record_in(view.txn, view.tables, number, value)
        found = places.of(sequence)
        states = len(found) + (sequence in halves)
        if states != 1:
            faults.append(f"message {sequence} is in {states} states")
        terms = read_terms(view.terms_of, record)
        if terms is None:
            faults.append(f"message {sequence}: its record cannot be read")
        if terms is None or sequence in halves:
            continue
        pending, queued, aborted, expired = map(found.get, Standing)
        place = pending or queued
        if place is not None and (place.topic, place.queue) != (terms.topic, terms.queue):
            faults.append(f"message {sequence} is in {place.topic!r} queue {place.queue}")
        if place is not None and place.tag_hash != terms.tag_hash:
            faults.append(f"message {sequence}: the hash of its tag is wrong")
        row = view.txn.get(id_key(term(terms.message_id), number), db=view.tables.ids)
        if row is None:
            faults.append(f"message {sequence} is missing from the ids")
        else:
            ids += 1
            noted = IdRow.unpack(row)
            if pending is not None and pending.time_ms != noted.due_ms:
                faults.append(f"message {sequence}: ids and timers disagree")
            if queued is not None and queued.time_ms < noted.due_ms:
                faults.append(f"message {sequence}: the ids say that it is due after it fired")
            aborted_ms = aborted.time_ms if aborted is not None else 0
            if expired is None and aborted_ms != noted.aborted_ms:
                faults.append(f"message {sequence}: ids and aborted disagree")
        for key in {term(key) for key in terms.keys}:
            if view.txn.get(key_prefix(terms.topic, key) + number, db=view.tables.keys) is None:
                faults.append(f"message {sequence} is missing from the keys")
            else:
                keys += 1
    return ids, keys


def _check_parts(view: View, faults: list[str]) -> None:
    """Check that all parts belong to messages that were cut. A message whose parts do not fit cannot be read."""
    keys = view.txn.cursor(db=view.tables.parts).iternext(values=False)
    faults += [
        f"message {int.from_bytes(number)} has parts, but it was not cut"
        for number, _ in lone_parts(view.txn, view.tables, keys)
    ]


def _check_ids(view: View, faults: list[str]) -> None:
    """Check that every row of `ids` leads to a message with that id."""
    for key in view.txn.cursor(db=view.tables.ids).iternext(values=False):
        terms = read_terms(view.terms_of, _record(view, faults, key[-8:], f"ids {key!r}"))
        if terms is not None and key[:-9] != term(terms.message_id):
            faults.append(f"ids {key!r}: the message has another id")


def _check_keys(view: View, faults: list[str]) -> None:
    """Check that every row of `keys` leads to a message with that key."""
    for key in view.txn.cursor(db=view.tables.keys).iternext(values=False):
        terms = read_terms(view.terms_of, _record(view, faults, key[-8:], f"keys {key!r}"))
        if terms and key[:-8] not in {key_prefix(terms.topic, term(one)) for one in terms.keys}:
            faults.append(f"keys {key!r}: the message has another key")
