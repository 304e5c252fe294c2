"""Repairs a damaged data folder: all tables are made to agree with the records, and with what most tables say.

No message's record is deleted: a record that cannot be read is moved into the journal. The journal has the old value of
every row that is removed or changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set as AbstractSet
from typing import IO

import lmdb

from storage.changes import Changes, moment, text
from storage.environment import Tables
from storage.evidence import RecordReader
from storage.held import count_spans
from storage.inbox import recover
from storage.inbox_copy import is_copy_of
from storage.keys import (
    HALF_VALUE,
    HELD_SPAN_MS,
    HELD_SPANS_OF_AN_HOUR,
    HOUR_MS,
    INBOX_COPY,
    PAUSE_VALUE,
    RECURRENCE_VALUE,
    SUSPENDED,
    TOTAL_VALUE,
    hour_key,
    key_prefix,
    pack_u64,
    planned_key,
    split_planned_key,
    split_pop_key,
)
from storage.message_repairs import MessageRepairs
from storage.queues import open_queue
from storage.reader import rows_with_prefix
from storage.shapes import find_misshapen, find_unordered, is_name
from storage.sums import sum_topics


def make_repairs(
    txn: lmdb.Transaction,
    tables: Tables,
    reader: RecordReader,
    now_ms: int,
    journal: IO[str] | None,
) -> Changes:
    """Repair all tables in a transaction, which the caller commits or not.

    :param now_ms: the current time, epoch ms.
    :param journal: see `Changes`.
    :returns: what was changed.
    """
    changes = Changes(txn, tables, journal)
    _take_out_misshapen(changes, now_ms)
    _take_out_wrong_copy(changes, reader)
    messages = MessageRepairs(changes, reader, now_ms)
    pending = messages.make()
    _mend_halves(changes, messages.halves, now_ms)
    _mend_held(changes)
    _mend_hours(changes)
    _mend_totals(changes)
    _mend_paused(changes, now_ms)
    _mend_debounced(changes, pending)
    _mend_pops(changes)
    _mend_recurring(changes, now_ms)
    return changes


def _mend_halves(changes: Changes, halves: set[bytes], now_ms: int) -> None:
    """Give each half message one check: at once if its check is lost, and at the earlier time if two are noted."""
    planned: dict[bytes, int] = {}
    for key in changes.keys("checks"):
        planned.setdefault(key[8:], int.from_bytes(key[:8]))
    checks: set[bytes] = set()
    for number in changes.keys("halves"):
        if number not in halves:
            sentence = f"half {int.from_bytes(number)}: there is no such half: its row goes"
            changes.make("halves", number, None, sentence)
    for number in sorted(halves):
        noted = changes.get("halves", number)
        noted_ms, made = HALF_VALUE.unpack(noted) if noted is not None else (None, 0)
        told = [ms for ms in (noted_ms, planned.get(number)) if ms is not None]
        check_ms = min(told, default=now_ms)
        sentence = f"half {int.from_bytes(number)}: its producer is asked at {moment(check_ms)}"
        changes.make("halves", number, HALF_VALUE.pack(check_ms, made), sentence)
        checks.add(pack_u64(check_ms) + number)
    for key in changes.keys("checks"):
        if key not in checks:
            sentence = f"half {int.from_bytes(key[8:])}: a check that does not belong to it goes"
            changes.make("checks", key, None, sentence)
    for key in sorted(checks):
        sentence = f"half {int.from_bytes(key[8:])}: is to be checked"
        changes.make("checks", key, b"", f"{sentence} at {moment(key[:8])}")


def _mend_held(changes: Changes) -> None:
    counts = count_spans(changes.keys("timers"))
    for key in {*changes.keys("held"), *counts}:
        count = counts[key]
        value = pack_u64(count) if count else None
        since = moment(int.from_bytes(key[-8:]) * HELD_SPAN_MS)
        sentence = (
            f"held {text(key[:-9])}: {count} due in the {HELD_SPAN_MS // 1_000} s from {since}"
        )
        changes.make("held", key, value, sentence)


def _mend_hours(changes: Changes) -> None:
    counts: Counter[bytes] = Counter()
    for key in changes.keys("held"):
        hour = int.from_bytes(key[-8:]) // HELD_SPANS_OF_AN_HOUR
        counts[hour_key(hour, key[:-9])] += int.from_bytes(changes.get("held", key) or b"")
    for key in {*changes.keys("hours"), *counts}:
        count = counts[key]
        since = moment(int.from_bytes(key[:8]) * HOUR_MS)
        sentence = f"hours {text(key[8:])}: {count} due in the hour from {since}"
        changes.make("hours", key, pack_u64(count) if count else None, sentence)


def _mend_totals(changes: Changes) -> None:
    tables = changes.tables
    totals = sum_topics(changes.txn, timers=tables.timers, waiting=tables.waiting)
    for topic in {*changes.keys("totals"), *totals}:
        count, size = totals.get(topic, (0, 0))
        sentence = f"total of {text(topic)}: {count} messages of {size} bytes"
        changes.make("totals", topic, TOTAL_VALUE.pack(count, size) if count else None, sentence)


def _mend_paused(changes: Changes, now_ms: int) -> None:
    """Keep a topic paused while messages of it wait: an operator may resume it, but nobody could undo the firing."""
    counts = Counter(key[: key.index(0)] for key in changes.keys("waiting"))
    for topic in {*changes.keys("paused"), *counts}:
        noted = changes.get("paused", topic)
        since_ms, _, resumed = PAUSE_VALUE.unpack(noted) if noted else (now_ms, 0, False)
        value = PAUSE_VALUE.pack(since_ms, counts[topic], resumed)
        state = "resumed" if resumed else "paused"
        sentence = f"paused {text(topic)}: is {state}, and {counts[topic]} wait"
        changes.make("paused", topic, value, sentence)


def _mend_debounced(changes: Changes, pending: AbstractSet[int]) -> None:
    """Correct rows of `debounced`. Each names the first message with the key that may be pending; a wrong one is set to
    the first that is pending."""
    for name in changes.keys("debounced"):
        topic, _, key = name.partition(b"\0")
        prefix = key_prefix(topic, key)
        having = [
            int.from_bytes(row[len(prefix) :])
            for row, _ in rows_with_prefix(changes.txn, changes.tables.keys, prefix)
            if len(row) == len(prefix) + 8
        ]
        noted = int.from_bytes(changes.get("debounced", name) or b"")
        first = next((sequence for sequence in having if sequence in pending), None)
        if noted in having and (first is None or first >= noted):
            continue
        found = first or (having[-1] if having else None)
        what = f"begins at message {found}" if found else "no message has the key: it goes"
        value = pack_u64(found) if found else None
        changes.make("debounced", name, value, f"debounced {name!r}: {what}")


def _mend_pops(changes: Changes) -> None:
    for key in changes.keys("pops"):
        back_ms, group, topic, queue, offset = split_pop_key(key)
        place = f"{text(topic)} queue {queue} offset {offset}"
        if offset >= open_queue(changes.txn, changes.tables, topic, queue).next:
            sentence = f"{place}: does not come back to {text(group)}, as it is not there"
            changes.make("pops", key, None, sentence)
            continue
        popped = int.from_bytes(changes.get("pops", key) or b"")
        if popped & ~SUSPENDED > back_ms:
            sentence = f"{place}: was popped by {text(group)} no later than it comes back"
            changes.make("pops", key, pack_u64(back_ms | popped & SUSPENDED), sentence)


def _mend_recurring(changes: Changes, now_ms: int) -> None:
    """Correct recurring messages. One without a known firing time is paused: resuming it plans it anew."""
    planned = {split_planned_key(key)[1]: key[:8] for key in changes.keys("planned")}
    expected: set[bytes] = set()
    for key in {*changes.keys("recurring"), *changes.keys("recurrences")}:
        name = f"recurring {key!r}"
        if changes.get("recurring", key) is None:
            changes.make("recurrences", key, None, f"{name}: has no definition and goes")
            continue
        value = changes.get("recurrences", key)
        if value is None:
            at = planned.get(key)
            next_ms = int.from_bytes(at) if at is not None else now_ms
            value = RECURRENCE_VALUE.pack(next_ms, 0, at is None)
            what = (
                f"fires at {moment(next_ms)}" if at is not None else "is paused until it is resumed"
            )
            changes.make("recurrences", key, value, f"{name}: {what}")
        next_ms, _, paused = RECURRENCE_VALUE.unpack(value)
        if not paused:
            expected.add(planned_key(next_ms, key))
    for key in {*changes.keys("planned"), *expected}:
        next_ms, own = split_planned_key(key)
        what = "fires" if key in expected else "does not fire"
        sentence = f"recurring {own!r}: {what} at {moment(next_ms)}"
        changes.make("planned", key, b"" if key in expected else None, sentence)


def _take_out_wrong_copy(changes: Changes, reader: RecordReader) -> None:
    """Delete a wrong copy of the inbox: the next start recovers the same timers from the messages."""
    copy = changes.get("meta", INBOX_COPY)
    if copy is None or copy[:8] != pack_u64(changes.txn.id() - 1):
        # Something was written since, so the copy is not used.
        return
    found = recover(changes.txn, changes.tables, reader.terms_of)
    if not is_copy_of(changes.txn, changes.tables, found):
        sentence = (
            "the timers that the last stop saved go: the next start finds them in the messages"
        )
        changes.make("meta", INBOX_COPY, None, sentence)


def _take_out_misshapen(changes: Changes, now_ms: int) -> None:
    for table in find_unordered(changes.txn, changes.tables):
        changes.put_in_order(table)
    for table in find_unordered(changes.txn, changes.tables):
        raise lmdb.Error(f"the keys of {table} are not in order")
    for table, key, value in list(find_misshapen(changes.txn, changes.tables)):
        if table == "paused" and is_name(key):
            # The waiting messages are counted later.
            pause = PAUSE_VALUE.pack(now_ms, 0, False)
            sentence = (
                f"paused {text(key)}: is paused until it is resumed, as its row cannot be read"
            )
            changes.make(table, key, pause, sentence)
            continue
        sentence = f"{table} {key!r}: a row that cannot be read, of {len(value)} bytes, goes"
        changes.make(table, key, None, sentence)
