"""Repairs the rows that say where each message belongs: its timer, its row in its queue, its abort, its ids and
keys."""

from __future__ import annotations

from collections import defaultdict

from storage.changes import Changes, moment, text, timed
from storage.evidence import Evidence, Fate, RecordReader, Verdict
from storage.expired import rows_of
from storage.held import count_spans
from storage.keys import (
    ENDS_VALUE,
    HELD_SPAN_MS,
    MARK,
    NEXT_SEQUENCE,
    QUEUE_VALUE,
    TIMER_VALUE,
    IdRow,
    Terms,
    held_key,
    id_key,
    key_prefix,
    pack_u64,
    queue_prefix,
    split_timer_key,
    term,
    timer_key,
    timer_key_of,
    timer_value,
    waiting_key,
    without_mark,
)
from storage.parts import lone_parts
from storage.queue_repairs import Lost, Row, mend_queue
from storage.records import read_record, read_terms, record_in
from storage.sequences import first_free_sequence
from storage.shapes import is_name


class MessageRepairs:
    """Makes all tables agree, for each message, with its record and with what most tables say.

    :param now_ms: the current time, epoch ms. A message that is due later cannot have fired.
    """

    def __init__(self, changes: Changes, reader: RecordReader, now_ms: int) -> None:
        self._changes = changes
        self._reader = reader
        self._now_ms = now_ms
        self.halves: set[bytes] = set()
        """The packed sequences of all half messages, complete after `make`."""
        # By their keys in `timers`.
        self._timers: dict[bytes, bytes] = {}
        self._waiting: dict[bytes, bytes] = {}
        self._in_memory: set[int] = set()
        self._lost: dict[int, tuple[bytes, Lost, Terms]] = {}
        self._behind = first_free_sequence(changes.txn, changes.tables)

    def make(self) -> set[int]:
        """Make the repairs, each table after the tables that it depends on.

        :returns: the sequences of all pending messages.
        """
        self._take_out_unreadable()
        self._mend_mark()
        evidence = Evidence(self._changes.txn, self._changes.tables, self._reader, self._now_ms)
        self._judge_all(evidence)
        self._time_what_was_held()
        self._mend_queues(evidence)
        self._mend_timers()
        self._take_out_strays()
        timed = (*self._timers, *self._waiting)
        return {split_timer_key(key)[2] for key in timed} | self._in_memory

    def _take_out_unreadable(self) -> None:
        messages = self._changes.tables.messages
        unreadable = [
            number
            for number, value in self._changes.txn.cursor(db=messages)
            if not self._terms(record_in(self._changes.txn, self._changes.tables, number, value))
        ]
        for number in unreadable:
            sequence = int.from_bytes(number)
            sentence = (
                f"message {sequence}: its record cannot be read: it is moved to repairs-TIME.jsonl"
            )
            self._changes.make("messages", number, None, sentence)
        keys = self._changes.keys("parts")
        lone = list(lone_parts(self._changes.txn, self._changes.tables, keys))
        for number, parts in lone:
            what = f"message {int.from_bytes(number)}: parts of its record ({len(parts)})"
            sentence = f"{what} are moved to repairs-TIME.jsonl"
            self._changes.remove_all("parts", parts, sentence)
        if unreadable or lone:
            sentence = f"the next message gets the number {self._behind}"
            self._changes.make("meta", NEXT_SEQUENCE, pack_u64(self._behind), sentence)

    def _record(self, number: bytes) -> bytes | None:
        return read_record(self._changes.txn, self._changes.tables, number)

    def _terms(self, record: bytes | None) -> Terms | None:
        """Return a record's terms; None when they cannot be those of a message."""
        terms = read_terms(self._reader.terms_of, record)
        if terms is None:
            return None
        is_place = 0 <= terms.queue < 1 << 31 and 0 <= terms.stored_ms < 1 << 63
        return terms if is_name(terms.topic) and is_place else None

    def _mend_mark(self) -> None:
        """Delete a mark that is behind the next sequence."""
        mark = self._changes.get("meta", MARK)
        if mark is not None and int.from_bytes(mark) > self._behind:
            sentence = "the mark goes: the next start looks for timers in all messages"
            self._changes.make("meta", MARK, None, sentence)

    # -- messages

    def _judge_all(self, evidence: Evidence) -> None:
        aborts: set[bytes] = set()
        expired: list[bytes] = []
        for number in self._changes.keys("messages"):
            record = self._record(number)
            terms = self._terms(record)
            if record is None or terms is None:
                continue
            if self._reader.is_half(record):
                self.halves.add(number)
                continue
            verdict = evidence.judge(
                int.from_bytes(number), record, terms, queue_prefix(terms.topic, terms.queue)
            )
            self._follow(evidence, verdict, number, record, terms)
            if verdict.fate is Fate.ABORTED:
                aborts.add(pack_u64(verdict.id_row.aborted_ms) + number)
            elif verdict.fate is Fate.EXPIRED:
                expired.append(number)
        self._mend_aborted(aborts)
        self._mend_expired(expired)

    def _follow(
        self,
        evidence: Evidence,
        verdict: Verdict,
        number: bytes,
        record: bytes,
        terms: Terms,
    ) -> None:
        sequence = int.from_bytes(number)
        message_id = term(terms.message_id)
        id_row = verdict.id_row
        timer = timer_key(id_row.due_ms, terms.topic, sequence, message_id)
        value = timer_value(terms, id_row, len(record))
        match verdict.fate:
            case Fate.TIMED:
                self._timers[timer] = value
            case Fate.WAITING:
                self._waiting[timer] = value
            case Fate.IN_MEMORY:
                self._in_memory.add(sequence)
            case Fate.FIRED:
                row = verdict.queue_row
                assert row is not None
                row.owner = evidence.lost(sequence, record, terms, verdict)
                row.tag_hash, row.size = terms.tag_hash, len(record)
            case Fate.LOST:
                lost = evidence.lost(sequence, record, terms, verdict)
                self._lost[sequence] = queue_prefix(terms.topic, terms.queue), lost, terms
        self._index(sequence, number, message_id, id_row, terms)

    def _index(
        self, sequence: int, number: bytes, message_id: bytes, id_row: IdRow, terms: Terms
    ) -> None:
        key = id_key(message_id, number)
        noted = self._changes.get("ids", key)
        if noted is None or IdRow.unpack(noted) != id_row:
            sentence = f"message {sequence}: is noted in the ids, {_told(id_row)}"
            self._changes.make("ids", key, id_row.pack(), sentence)
        for one in map(term, terms.keys):
            name = key_prefix(terms.topic, one) + number
            self._changes.make(
                "keys", name, b"", f"message {sequence}: is found by its key {one!r}"
            )

    def _mend_aborted(self, aborts: set[bytes]) -> None:
        for key in self._changes.keys("aborted"):
            if key not in aborts:
                sentence = f"message {int.from_bytes(key[8:])}: is not noted as aborted"
                self._changes.make("aborted", key, None, f"{sentence} at {moment(key[:8])}")
        for key in sorted(aborts):
            sentence = f"message {int.from_bytes(key[8:])}: is noted as aborted"
            self._changes.make("aborted", key, b"", f"{sentence} at {moment(key[:8])}")

    def _mend_expired(self, expired: list[bytes]) -> None:
        """Forget the notes of messages that are not to be removed, or that do not exist."""
        noted = dict(rows_of(expired))
        for key in self._changes.keys("expired"):
            sentence = f"expired {key!r}: messages that are not to be removed are no longer noted"
            self._changes.make("expired", key, noted.get(key), sentence)

    def _time_what_was_held(self) -> None:
        """Let lost messages fire after all where `held` counts more timers in their span of time than there are."""
        missing: defaultdict[bytes, list[int]] = defaultdict(list)
        for sequence, (_, lost, terms) in self._lost.items():
            if not lost.may_wait and lost.since_ms > terms.stored_ms:
                missing[held_key(terms.topic, lost.since_ms // HELD_SPAN_MS)].append(sequence)
        if not missing:
            return
        counted = count_spans(self._timers)
        for span, sequences in missing.items():
            noted = self._changes.get("held", span)
            surplus = (int.from_bytes(noted) if noted is not None else 0) - counted[span]
            if not 0 < surplus <= len(sequences):
                continue
            sequences.sort(key=lambda sequence: self._lost[sequence][1].since_ms)
            for sequence in sequences[-surplus:]:
                _, lost, terms = self._lost.pop(sequence)
                self._let_wait(lost, terms)

    def _let_wait(self, lost: Lost, terms: Terms) -> None:
        timer = timer_key(lost.since_ms, terms.topic, lost.sequence, term(terms.message_id))
        self._timers[timer] = TIMER_VALUE.pack(terms.queue, terms.tag_hash, lost.size)

    # -- queues

    def _mend_queues(self, evidence: Evidence) -> None:
        lost: defaultdict[bytes, list[Lost]] = defaultdict(list)
        for prefix, one, _ in self._lost.values():
            lost[prefix].append(one)
        ends = {
            prefix: ENDS_VALUE.unpack(value)
            for prefix, value in self._changes.txn.cursor(db=self._changes.tables.ends)
        }
        for prefix in sorted({*evidence.queues, *lost, *ends}):
            rows = evidence.queues.get(prefix, [])
            for row in rows:
                if row.owner is None and 0 < row.sequence < self._behind:
                    number = pack_u64(row.sequence)
                    row.is_gone = self._changes.get("messages", number) is None
            self._mend_queue(prefix, rows, ends.get(prefix), lost[prefix])

    def _mend_queue(
        self, prefix: bytes, rows: list[Row], ends: tuple[int, int] | None, lost: list[Lost]
    ) -> None:
        topic, number = prefix[:-5], int.from_bytes(prefix[-4:])
        is_known = self._changes.get("topics", topic) is not None
        mended = mend_queue(rows, ends, lost, is_known=is_known)
        self._in_memory.update(one.sequence for one in mended.waiting)
        place = f"{text(topic)} queue {number}"
        expected = {row.offset: row for row in mended.rows}
        for row in rows:
            if row.offset not in expected:
                key = prefix + pack_u64(row.offset)
                self._changes.make("queues", key, None, f"{place} offset {row.offset}: goes")
        for offset, row in expected.items():
            value = QUEUE_VALUE.pack(row.sequence, row.tag_hash, row.size, row.stored_ms)
            what = f"message {row.sequence}" if row.sequence else "nothing, its message is lost"
            sentence = f"{place} offset {offset}: has {what}"
            self._changes.make("queues", prefix + pack_u64(offset), value, sentence)
        if mended.ends != ends:
            noted = ENDS_VALUE.pack(*mended.ends) if mended.ends is not None else None
            begins = mended.ends[0] if mended.ends is not None else 0
            self._changes.make("ends", prefix, noted, f"{place}: begins at offset {begins}")

    # -- indexes

    def _mend_timers(self) -> None:
        for table, expected, key_of in (
            ("timers", self._timers, lambda key: key),
            ("waiting", self._waiting, timer_key_of),
        ):
            for key in self._changes.keys(table):
                if key_of(key) not in expected:
                    due_ms, _, sequence, _ = split_timer_key(key_of(key))
                    sentence = f"message {sequence}: a timer for {moment(due_ms)} goes"
                    self._changes.make(table, key, None, sentence)
        for key, value in sorted(self._timers.items()):
            self._time("timers", key, value, timed(key))
        for key, value in sorted(self._waiting.items()):
            self._time("waiting", waiting_key(key), value, timed(key))

    def _time(self, table: str, key: bytes, value: bytes, sentence: str) -> None:
        # Timers of formats before 6 have no mark.
        if self._changes.get(table, key) != without_mark(value):
            self._changes.make(table, key, value, sentence)

    def _take_out_strays(self) -> None:
        """Delete rows of `ids` and `keys` that lead to no message, or to another one."""
        for key in self._changes.keys("ids"):
            terms = self._terms_at(key[-8:])
            if terms is None or key[:-9] != term(terms.message_id):
                self._changes.make(
                    "ids", key, None, f"ids {key!r}: leads to no such message and goes"
                )
        for key in self._changes.keys("keys"):
            terms = self._terms_at(key[-8:])
            own = {key_prefix(terms.topic, term(one)) for one in terms.keys} if terms else set()
            if key[:-8] not in own:
                self._changes.make(
                    "keys", key, None, f"keys {key!r}: leads to no such message and goes"
                )

    def _terms_at(self, number: bytes) -> Terms | None:
        """Return the terms of a message; None for a half message, as no index has it."""
        record = self._record(number)
        if record is None or self._reader.is_half(record):
            return None
        return self._terms(record)


def _told(row: IdRow) -> str:
    if row.aborted_ms:
        return f"as aborted at {moment(row.aborted_ms)}"
    return f"due at {moment(row.due_ms)}" if row.due_ms else "without a time"
