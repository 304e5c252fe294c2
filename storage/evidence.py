"""Collects what the tables of a damaged folder say about each message, and decides what to believe if they disagree.

One damaged row leaves traces in sound ones. A timer's due time is also in `ids` and mostly in the record. A fired
message is in its queue, and an abort is in two tables. The majority is believed. If nothing can be decided, a message
fires again rather than not at all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

import lmdb

from storage.environment import Tables
from storage.expired import is_expired
from storage.keys import (
    HELD_SPAN_MS,
    MARK,
    QUEUE_VALUE,
    IdRow,
    Terms,
    TermsOf,
    held_key,
    id_key,
    pack_u64,
    split_timer_key,
    term,
    timer_key,
    timer_key_of,
)
from storage.queue_repairs import Lost, Row


class RecordReader(NamedTuple):
    """Reads records and settings, whose layout only the caller knows.

    :param terms_of: see `Store`.
    :param due_of: the due time that a message asked for, epoch ms; 0 if it has none. A rescheduled message fires at
        another time.
    :param is_half: whether a record is a waiting half message of a transaction.
    :param is_readable: whether a row of a table, `topics`, `groups` or `recurring`, can be read, by its key and value.
    """

    terms_of: TermsOf
    due_of: Callable[[bytes], int]
    is_half: Callable[[bytes], bool]
    is_readable: Callable[[str, bytes, bytes], bool]


class Fate(Enum):
    """Where a message belongs: in `timers`, in `waiting`, in memory, in its queue, among the aborted messages, or among
    those that are to be removed. A LOST message is in no table, and belongs in its queue if it fits there."""

    TIMED = "timed"
    WAITING = "waiting"
    IN_MEMORY = "in memory"
    FIRED = "fired"
    ABORTED = "aborted"
    EXPIRED = "expired"
    LOST = "lost"


class Verdict(NamedTuple):
    """What is believed about a message: its row for `ids`, and its row in its queue if it has fired."""

    fate: Fate
    id_row: IdRow
    queue_row: Row | None = None


class Evidence:
    """The rows of all tables that lead to a message, by its sequence.

    :param now_ms: a message that is due later cannot have fired.
    """

    def __init__(
        self, txn: lmdb.Transaction, tables: Tables, reader: RecordReader, now_ms: int
    ) -> None:
        self._txn = txn
        self._tables = tables
        self._reader = reader
        self._now_ms = now_ms
        mark = txn.get(MARK, db=tables.meta)
        self._mark = int.from_bytes(mark) if mark is not None else 0
        self._paused = set(txn.cursor(db=tables.paused).iternext(values=False))
        self._timers: defaultdict[int, list[bytes]] = defaultdict(list)
        for key in txn.cursor(db=tables.timers).iternext(values=False):
            self._timers[split_timer_key(key)[2]].append(key)
        self._waiting: defaultdict[int, list[bytes]] = defaultdict(list)
        for key in txn.cursor(db=tables.waiting).iternext(values=False):
            timer = timer_key_of(key)
            self._waiting[split_timer_key(timer)[2]].append(timer)
        self._aborts: defaultdict[int, list[int]] = defaultdict(list)
        for key in txn.cursor(db=tables.aborted).iternext(values=False):
            self._aborts[int.from_bytes(key[8:])].append(int.from_bytes(key[:8]))
        self.queues: defaultdict[bytes, list[Row]] = defaultdict(list)
        """All rows of each queue, by its prefix."""
        self._rows: defaultdict[int, list[tuple[bytes, Row]]] = defaultdict(list)
        for key, value in txn.cursor(db=tables.queues):
            row = Row(int.from_bytes(key[-8:]), *QUEUE_VALUE.unpack(value))
            self.queues[key[:-8]].append(row)
            if row.sequence:
                self._rows[row.sequence].append((key[:-8], row))

    def judge(self, sequence: int, record: bytes, terms: Terms, prefix: bytes) -> Verdict:
        """Decide what to believe about a message.

        :param prefix: of its queue's rows.
        """
        message_id = term(terms.message_id)
        noted = self._txn.get(id_key(message_id, pack_u64(sequence)), db=self._tables.ids)
        id_row = IdRow.unpack(noted) if noted is not None else None
        asked_ms = self._reader.due_of(record)
        aborts = self._aborts.get(sequence, [])
        if id_row is not None and id_row.aborted_ms and id_row.aborted_ms in aborts:
            return Verdict(Fate.ABORTED, id_row)
        timers = [
            key
            for key in (*self._timers.get(sequence, ()), *self._waiting.get(sequence, ()))
            if key == timer_key(int.from_bytes(key[:8]), terms.topic, sequence, message_id)
        ]
        times = {int.from_bytes(key[:8]) for key in timers}
        due_ms = self._believed_time(terms.topic, times, id_row, asked_ms)
        rows = [
            row
            for place, row in self._rows.get(sequence, ())
            if place == prefix
            and not self._is_named_wrongly(row, sequence, bool(timers), due_ms, id_row, asked_ms)
        ]
        # If two rows name the message, prefer the one it can have entered by, and the one soonest after its due time.
        since_ms = max(due_ms, terms.stored_ms)
        rows.sort(key=lambda row: (row.stored_ms < since_ms, abs(row.stored_ms - since_ms)))
        columns = (terms.tag_hash, len(record))
        for row in rows:
            if (row.tag_hash, row.size) == columns:
                return _fired(id_row, asked_ms, row, terms)
        pending = _with_time(id_row, due_ms)
        if timers:
            waits = timer_key(due_ms, terms.topic, sequence, message_id) in self._waiting.get(
                sequence, ()
            )
            return Verdict(Fate.WAITING if waits else Fate.TIMED, pending)
        known = id_row or IdRow(asked_ms)
        if not aborts and is_expired(self._txn, self._tables, pack_u64(sequence), terms, known):
            return Verdict(Fate.EXPIRED, known)
        aborted_ms = self._abort(sequence, id_row, aborts)
        if aborted_ms:
            return Verdict(Fate.ABORTED, known._replace(aborted_ms=aborted_ms))
        if rows:
            return _fired(id_row, asked_ms, rows[0], terms)
        return self._judge_unknown(sequence, terms, pending, asked_ms)

    def lost(self, sequence: int, record: bytes, terms: Terms, verdict: Verdict) -> Lost:
        """Describe a message for which its queue must find a place."""
        due_ms = verdict.id_row.due_ms
        may_wait = verdict.fate is Fate.LOST and due_ms > 0 and sequence >= self._mark
        since_ms = max(due_ms, terms.stored_ms)
        return Lost(sequence, since_ms, terms.tag_hash, len(record), may_wait)

    def _believed_time(
        self, topic: bytes, times: set[int], id_row: IdRow | None, asked_ms: int
    ) -> int:
        """Decide when a message is due, from all sources; 0 for never."""
        noted_ms = id_row.due_ms if id_row is not None else 0
        if not times or noted_ms in times:
            return noted_ms or (asked_ms if id_row is None else 0)
        if asked_ms in times:
            return asked_ms
        if noted_ms and noted_ms == asked_ms:
            return noted_ms
        said = sorted({noted_ms, *times} - {0})
        counted = [ms for ms in said if self._is_counted(topic, ms)]
        return counted[0] if len(counted) == 1 else min(times)

    def _is_counted(self, topic: bytes, due_ms: int) -> bool:
        key = held_key(topic, due_ms // HELD_SPAN_MS)
        return self._txn.get(key, db=self._tables.held) is not None

    def _is_named_wrongly(
        self,
        row: Row,
        sequence: int,
        is_timed: bool,
        due_ms: int,
        id_row: IdRow | None,
        asked_ms: int,
    ) -> bool:
        """Whether a message cannot have fired although a row of its queue names it."""
        if row.stored_ms >= due_ms:
            return False
        if is_timed:
            return True
        is_sure = id_row is not None and (id_row.rescheduled_ms > 0 or asked_ms == id_row.due_ms)
        return is_sure and sequence >= self._mark and due_ms > self._now_ms

    def _abort(self, sequence: int, id_row: IdRow | None, aborts: list[int]) -> int:
        """Return when a message that no timer and no queue names was aborted; 0 when it was not."""
        if id_row is not None and id_row.aborted_ms:
            return id_row.aborted_ms
        in_memory = id_row is not None and id_row.due_ms and sequence >= self._mark
        return aborts[0] if aborts and not in_memory else 0

    def _judge_unknown(self, sequence: int, terms: Terms, id_row: IdRow, asked_ms: int) -> Verdict:
        if not id_row.due_ms and asked_ms > self._now_ms:
            id_row = IdRow(asked_ms)
        waits = id_row.due_ms > self._now_ms or (id_row.due_ms and terms.topic in self._paused)
        if not waits:
            return Verdict(Fate.LOST, id_row)
        return Verdict(Fate.IN_MEMORY if sequence >= self._mark else Fate.TIMED, id_row)


def _with_time(id_row: IdRow | None, due_ms: int) -> IdRow:
    """Return the row for `ids` of a message that was not aborted."""
    if id_row is None:
        return IdRow(due_ms)
    return id_row._replace(due_ms=due_ms, aborted_ms=0)


def _fired(id_row: IdRow | None, asked_ms: int, row: Row, terms: Terms) -> Verdict:
    """Return the verdict for a message that is in its queue, which it entered no earlier than it was due."""
    due_ms = id_row.due_ms if id_row is not None else 0
    if id_row is not None and due_ms and due_ms == asked_ms:
        # Then the queue's time is the wrong one if the two disagree.
        row.stored_ms = max(row.stored_ms, due_ms)
    if id_row is not None and not id_row.aborted_ms and due_ms <= row.stored_ms:
        return Verdict(Fate.FIRED, id_row, row)
    if terms.stored_ms < asked_ms <= row.stored_ms:
        return Verdict(Fate.FIRED, IdRow(asked_ms), row)
    return Verdict(Fate.FIRED, IdRow(row.stored_ms if due_ms else 0), row)
