"""Rows that the disk has to be waited for are read in parallel. What is found stays the same."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Sequence
from time import sleep
from types import SimpleNamespace

import lmdb
import pytest

from storage import (
    Store,
    abort,
    abort_sequences,
    expire_messages,
    find_by_key,
    read_ahead,
    remove_expired,
    reschedule_sequences,
    scan_aborted,
    scan_fired,
)
from storage.inbox import READ_AT_ONCE
from storage.keys import HELD_SPAN_MS
from storage.parts import LARGE
from storage.pending import PLACES_OF_SPAN, PLACES_READ_AHEAD
from storage.read_ahead import FEW, THREADS, ReadAhead, Rows
from storage.retention import BYTES_AT_ONCE
from tests.storage.faults import no_more_threads
from tests.storage.folder import Folder
from tests.storage.sample import (
    TOPIC,
    Sample,
    clean_up,
    fire,
    hold,
    hold_all,
    ids_in,
    numbered,
    pending_ids,
    pending_page,
    send,
)

MANY = 50


class Disk:
    """Whether reading a row waits for the disk; and how many rows of each table other threads have read."""

    def __init__(self) -> None:
        self.is_waited_for = True
        self.read: Counter[lmdb._Database] = Counter()
        self.threads: set[str] = set()
        self._waits = 0

    def getrusage(self, _who: int) -> SimpleNamespace:
        self._waits += self.is_waited_for
        return SimpleNamespace(ru_majflt=self._waits)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(read_ahead, "getrusage", disk.getrusage)
    read = ReadAhead._read

    def noted(self: ReadAhead, table: lmdb._Database, keys: Sequence[bytes]) -> None:
        disk.read[table] += len(keys)
        disk.threads.add(threading.current_thread().name)
        read(self, table, keys)

    monkeypatch.setattr(ReadAhead, "_read", noted)
    return disk


def test_records_that_are_listed(disk: Disk, store: Store) -> None:
    hold_all(store, numbered(MANY), 10_000)
    assert pending_ids(store) == numbered(MANY)
    assert disk.read == {store.tables.messages: MANY}
    # A thread that is done soon takes the next part as well.
    assert 1 <= len(disk.threads) <= THREADS
    assert threading.current_thread().name not in disk.threads


def test_records_that_are_pulled(disk: Disk, store: Store) -> None:
    hold_all(store, numbered(MANY), 10_000)
    assert fire(store, 10_000) == MANY
    assert ids_in(store) == numbered(MANY)
    assert disk.read == {store.tables.messages: MANY}


def test_no_more_records_than_a_pull_takes(disk: Disk, store: Store) -> None:
    for message_id in numbered(MANY):
        send(store, Sample(message_id, body=bytes(1_000)))
    store.commit()
    queue = store.queue(TOPIC, 0)
    size = len(store.read(queue, 0, 1, 1).messages[0].record)
    page = store.read(queue, 0, 1_000, 20 * size)
    assert len(page.messages) == disk.read[store.tables.messages] == 20


def test_timers_that_move_into_their_table(disk: Disk, folder: Folder) -> None:
    store = folder.open(inbox_size=MANY)
    for message_id in numbered(MANY):
        hold_all(store, [message_id], 10_000)
    disk.read.clear()
    hold_all(store, numbered(MANY, b"next"), 20_000)
    assert disk.read[store.tables.timers] == MANY


def test_keys_of_what_comes_in_and_records_with_a_key(disk: Disk, store: Store) -> None:
    for message_id in numbered(MANY):
        send(store, Sample(message_id, keys=(b"k",)))
    store.commit()
    assert disk.read == {store.tables.keys: MANY}
    assert len(find_by_key(store, [TOPIC], b"k", MANY - 1)) == MANY - 1
    tables = store.tables
    assert disk.read == {tables.keys: MANY, tables.messages: MANY - 1, tables.ids: MANY - 1}


def test_messages_that_are_changed_together(disk: Disk, store: Store) -> None:
    sequences = hold_all(store, numbered(MANY), 10_000)
    tables = store.tables
    disk.read.clear()
    assert len(reschedule_sequences(store, sequences, lambda due_ms: due_ms + 1, 1)) == MANY
    assert disk.read == dict.fromkeys((tables.messages, tables.ids, tables.timers), MANY)
    assert abort_sequences(store, sequences, 2) == set(sequences)
    assert disk.read == dict.fromkeys((tables.messages, tables.ids, tables.timers), 2 * MANY)
    store.commit()
    assert pending_ids(store) == []


def test_a_page_of_what_was_aborted(disk: Disk, store: Store) -> None:
    sequences = hold_all(store, numbered(MANY), 10_000)
    abort_sequences(store, sequences, 2)
    store.commit()
    disk.read.clear()
    page = scan_aborted(store, topic=None, begin_ms=0, end_ms=9, cursor=None, limit=MANY - 1)
    assert [found.sequence for found in page.found] == sequences[:0:-1]
    assert disk.read == dict.fromkeys((store.tables.messages, store.tables.ids), MANY - 1)


def test_a_page_of_what_fired(disk: Disk, store: Store) -> None:
    sequences = hold_all(store, numbered(MANY), 10_000)
    fire(store, 10_000)
    disk.read.clear()
    queues = [store.queue(TOPIC, 0)]
    page = scan_fired(
        store, queues, begin_ms=0, end_ms=1 << 40, tag_hash=None, cursor=None, limit=MANY - 1
    )
    assert [found.sequence for found in page.found] == sequences[:0:-1]
    assert disk.read[store.tables.messages] == disk.read[store.tables.ids] == MANY - 1


def test_large_messages_that_retention_removes(disk: Disk, store: Store) -> None:
    """How large aborted messages are is only known from their records. No more are loaded than a step removes."""
    body = random.Random(1).randbytes(BYTES_AT_ONCE // 2)
    for message_id in numbered(6):
        hold(store, Sample(message_id, body=body), 10_000)
        abort(store, message_id, 1)
    store.commit()
    expire_messages(store, 2, MANY, lambda _: False)
    disk.read.clear()
    assert remove_expired(store, 2, MANY).messages == 2
    assert disk.read[store.tables.parts] <= 2 * (BYTES_AT_ONCE // 2 // LARGE + 2)


def test_messages_that_retention_removes(disk: Disk, store: Store) -> None:
    for message_id in numbered(MANY):
        send(store, Sample(message_id, keys=(b"a", b"b")))
    store.commit()
    disk.read.clear()
    assert clean_up(store, 2, MANY, lambda _: False).messages == MANY
    store.commit()
    tables = store.tables
    assert disk.read == {tables.messages: MANY, tables.ids: MANY, tables.keys: 2 * MANY}
    assert all(store.reader().stat(table)["entries"] == 0 for table in disk.read)


@pytest.mark.parametrize("spans", [FEW, 2 * PLACES_READ_AHEAD])
def test_timers_of_a_topic_within_the_range_that_is_listed(
    spans: int, disk: Disk, folder: Folder
) -> None:
    store = folder.open(inbox_size=0)
    for number in range(3 * PLACES_READ_AHEAD):
        hold_all(store, [b"%d" % number], number * HELD_SPAN_MS + 7)
    disk.read.clear()
    page = pending_page(store, topic=TOPIC, end_ms=spans * HELD_SPAN_MS)
    assert len(page.found) == spans == disk.read[store.tables.timers]


def test_timers_of_a_topic_that_has_many_in_a_span(disk: Disk, folder: Folder) -> None:
    store = folder.open(inbox_size=0)
    spans = PLACES_READ_AHEAD // PLACES_OF_SPAN
    for span in range(spans + 1):
        for number in range(2 * PLACES_OF_SPAN):
            hold_all(store, [b"%d-%d" % (span, number)], span * HELD_SPAN_MS + number)
    disk.read.clear()
    page = pending_page(store, topic=TOPIC, limit=3)
    assert len(page.found) == 3
    assert disk.read[store.tables.timers] == PLACES_READ_AHEAD


def test_a_start_after_a_crash(disk: Disk, folder: Folder) -> None:
    store = folder.open()
    hold_all(store, numbered(MANY), 10_000)
    store = folder.reopen_after_crash()
    # One read is for replaying the log, the other for finding what was in the inbox.
    assert disk.read[store.tables.messages] == MANY + READ_AT_ONCE
    assert disk.read[store.tables.ids] == 2 * MANY
    assert disk.read[store.tables.timers] == MANY
    assert pending_ids(store) == numbered(MANY)


@pytest.mark.parametrize(("count", "is_waited_for"), [(MANY, False), (FEW - 1, True)])
def test_no_thread_is_asked(count: int, is_waited_for: bool, disk: Disk, store: Store) -> None:
    disk.is_waited_for = is_waited_for
    hold_all(store, numbered(count), 10_000)
    assert pending_ids(store) == numbered(count)
    assert not disk.read


@pytest.mark.parametrize("error", [lmdb.ReadersFullError("full"), lmdb.DiskError("broken")])
def test_what_a_thread_cannot_read_is_read_when_it_is_needed(
    error: lmdb.Error, disk: Disk, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_all(store, numbered(MANY), 10_000)

    class Unreadable:
        def begin(self, *, buffers: bool) -> lmdb.Transaction:
            raise error

    monkeypatch.setattr(store.environment.ahead, "_environment", Unreadable())
    assert pending_ids(store) == numbered(MANY)
    assert disk.read


def test_threads_that_cannot_be_started(disk: Disk, store: Store) -> None:
    hold_all(store, numbered(MANY), 10_000)
    with no_more_threads():
        assert pending_ids(store) == numbered(MANY)
    assert not disk.read


def test_no_thread_reads_on_where_some_cannot_be_started(
    disk: Disk, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LMDB's map may grow next, and then is no longer where such a thread reads it."""
    hold_all(store, numbered(MANY), 10_000)
    keys, ahead = numbered(MANY), store.environment.ahead
    read, done = ReadAhead._read, Counter[lmdb._Database]()

    def slowly(self: ReadAhead, table: lmdb._Database, keys: Sequence[bytes]) -> None:
        read(self, table, keys)
        sleep(0.05)
        done[table] += len(keys)

    monkeypatch.setattr(ReadAhead, "_read", slowly)
    with no_more_threads(more=2):
        ahead.touch(store.reader(), Rows(store.tables.messages, keys))
        assert 0 < disk.read.total() == done.total()
    before = done.total()
    ahead.touch(store.reader(), Rows(store.tables.messages, keys))
    assert disk.read.total() == done.total() == before + MANY


def test_rows_that_there_are_not(disk: Disk, store: Store) -> None:
    keys = numbered(MANY)
    store.environment.ahead.touch(store.reader(), Rows(store.tables.messages, keys))
    assert disk.read == {store.tables.messages: MANY}
