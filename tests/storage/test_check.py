"""The check finds every kind of contradiction between two tables: each is planted and found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from storage import Store, abort, find_faults, fire_due
from storage.environment import Tables
from storage.keys import (
    ENDS_VALUE,
    HELD_SPAN_MS,
    PAUSE_VALUE,
    QUEUE_VALUE,
    TIMER_VALUE,
    TOTAL_VALUE,
    IdRow,
    debounce_key,
    held_key,
    hour_key,
    key_prefix,
    pack_u64,
    queue_prefix,
    timer_key,
    waiting_key,
)
from storage.logged import LoggedTransaction
from tests.storage.folder import Folder
from tests.storage.sample import TOPIC, Sample, clean_up, hold, send

SENT, FIRED, PENDING, TAKEN, REMOVED, UNKNOWN = (pack_u64(number) for number in (1, 2, 3, 4, 5, 99))
PENDING_ROW = timer_key(2_000, TOPIC, 3, b"pending")
QUEUE = queue_prefix(TOPIC, 0)
EMPTIED = queue_prefix(b"emptied", 0)
SIZE = len(Sample(b"sent", keys=(b"k",)).record(1))
PENDING_SIZE = len(Sample(b"pending", keys=(b"k",)).record(1))

Plant = Callable[[LoggedTransaction, Tables], object]

FAULTS: dict[str, tuple[Plant, str]] = {
    "message of a timer missing": (
        lambda txn, tables: txn.delete(PENDING, db=tables.messages),
        "timer of message 3: the message is missing",
    ),
    "size in a timer": (
        lambda txn, tables: txn.put(PENDING_ROW, TIMER_VALUE.pack(0, 0, 1), db=tables.timers),
        "timer of message 3: its size is wrong",
    ),
    "id in a timer": (
        lambda txn, tables: txn.put(
            timer_key(2_000, TOPIC, 3, b"stranger"),
            txn.pop(PENDING_ROW, db=tables.timers) or b"",
            db=tables.timers,
        ),
        "timer of message 3: its id is wrong",
    ),
    "mark of a timer": (
        lambda txn, tables: txn.put(
            b"pending\0" + PENDING, IdRow(2_000, 0, 500, 1_000).pack(), db=tables.ids
        ),
        "timer of message 3: says that it was never moved",
    ),
    "timer's time": (
        lambda txn, tables: txn.put(
            timer_key(2_001, TOPIC, 3, b"pending"),
            txn.pop(PENDING_ROW, db=tables.timers) or b"",
            db=tables.timers,
        ),
        "message 3: ids and timers disagree",
    ),
    "timer's queue": (
        lambda txn, tables: txn.put(
            PENDING_ROW,
            TIMER_VALUE.pack(7, 0, len(txn.get(PENDING, db=tables.messages) or b"")),
            db=tables.timers,
        ),
        "message 3 is in b'orders' queue 7",
    ),
    "two timers": (
        lambda txn, tables: txn.put(
            timer_key(2_001, TOPIC, 3, b"pending"),
            txn.get(PENDING_ROW, db=tables.timers) or b"",
            db=tables.timers,
        ),
        "message 3 is timed twice",
    ),
    "timer lost": (
        lambda txn, tables: txn.delete(PENDING_ROW, db=tables.timers),
        "message 3 is in 0 states",
    ),
    "timer of a sent message": (
        lambda txn, tables: txn.put(
            timer_key(2_000, TOPIC, 1, b"sent"), TIMER_VALUE.pack(0, 0, SIZE), db=tables.timers
        ),
        "message 1 is in 2 states",
    ),
    "held counted wrong": (
        lambda txn, tables: txn.put(
            held_key(TOPIC, 2_000 // HELD_SPAN_MS), pack_u64(5), db=tables.held
        ),
        "5 noted, 1 counted",
    ),
    "held not counted": (
        lambda txn, tables: txn.delete(held_key(TOPIC, 2_000 // HELD_SPAN_MS), db=tables.held),
        "0 noted, 1 counted",
    ),
    "held left over": (
        lambda txn, tables: txn.put(held_key(TOPIC, 3), pack_u64(1), db=tables.held),
        "1 noted, 0 counted",
    ),
    "hour counted wrong": (
        lambda txn, tables: txn.put(hour_key(0, TOPIC), pack_u64(5), db=tables.hours),
        "5 noted, 1 counted",
    ),
    "hour not counted": (
        lambda txn, tables: txn.delete(hour_key(0, TOPIC), db=tables.hours),
        "0 noted, 1 counted",
    ),
    "hour left over": (
        lambda txn, tables: txn.put(hour_key(7, TOPIC), pack_u64(1), db=tables.hours),
        "1 noted, 0 counted",
    ),
    "total counted wrong": (
        lambda txn, tables: txn.put(TOPIC, TOTAL_VALUE.pack(1, 7), db=tables.totals),
        f"1 messages of 7 bytes noted, 1 messages of {PENDING_SIZE} bytes counted",
    ),
    "total missing": (
        lambda txn, tables: txn.delete(TOPIC, db=tables.totals),
        f"none noted, 1 messages of {PENDING_SIZE} bytes counted",
    ),
    "total left over": (
        lambda txn, tables: txn.put(b"nobody", TOTAL_VALUE.pack(1, 7), db=tables.totals),
        "1 messages of 7 bytes noted, 0 messages of 0 bytes counted",
    ),
    "gap in a queue": (
        lambda txn, tables: txn.delete(QUEUE + pack_u64(0), db=tables.queues),
        "offset 1: offset 0 should come before it",
    ),
    "head of a shortened queue": (
        lambda txn, tables: txn.put(QUEUE, ENDS_VALUE.pack(1, 2), db=tables.ends),
        "offset 0: offset 1 should come before it",
    ),
    "ends of an empty queue": (
        lambda txn, tables: txn.put(EMPTIED, ENDS_VALUE.pack(0, 1), db=tables.ends),
        "0 to 1 noted, but the queue is empty",
    ),
    "ends behind the last row": (
        lambda txn, tables: txn.put(QUEUE, ENDS_VALUE.pack(0, 9), db=tables.ends),
        "0 to 9 noted, but the queue ends before 2",
    ),
    "tag in a timer": (
        lambda txn, tables: txn.put(
            PENDING_ROW,
            TIMER_VALUE.pack(0, 7, len(txn.get(PENDING, db=tables.messages) or b"")),
            db=tables.timers,
        ),
        "message 3: the hash of its tag is wrong",
    ),
    "tag in a queue": (
        lambda txn, tables: txn.put(
            QUEUE + pack_u64(0), QUEUE_VALUE.pack(1, 7, SIZE, 1), db=tables.queues
        ),
        "message 1: the hash of its tag is wrong",
    ),
    "fired before its time": (
        lambda txn, tables: txn.put(b"fired\0" + FIRED, pack_u64(1_001), db=tables.ids),
        "message 2: the ids say that it is due after it fired",
    ),
    "time in a queue": (
        lambda txn, tables: txn.put(
            QUEUE + pack_u64(0), QUEUE_VALUE.pack(1, 0, SIZE, 9_000), db=tables.queues
        ),
        "offset 1: its time is before that of the offset before it",
    ),
    "size in a queue": (
        lambda txn, tables: txn.put(
            QUEUE + pack_u64(0), QUEUE_VALUE.pack(1, 0, 1, 1), db=tables.queues
        ),
        "offset 0: message 1 is not as noted",
    ),
    "message of a queue missing": (
        lambda txn, tables: txn.delete(SENT, db=tables.messages),
        "offset 0 with message 1: the message is missing",
    ),
    "queued twice": (
        lambda txn, tables: txn.put(
            QUEUE + pack_u64(2), QUEUE_VALUE.pack(1, 0, SIZE, 9_000), db=tables.queues
        ),
        "message 1 is queued twice",
    ),
    "wrong queue": (
        lambda txn, tables: txn.put(
            queue_prefix(TOPIC, 4) + pack_u64(0),
            txn.pop(QUEUE + pack_u64(1), db=tables.queues) or b"",
            db=tables.queues,
        ),
        "message 2 is in b'orders' queue 4",
    ),
    "abort not noted in ids": (
        lambda txn, tables: txn.put(b"taken\0" + TAKEN, pack_u64(3_000), db=tables.ids),
        "message 4: ids and aborted disagree",
    ),
    "abort noted with another time": (
        lambda txn, tables: txn.put(
            b"taken\0" + TAKEN, pack_u64(3_000) + pack_u64(501), db=tables.ids
        ),
        "message 4: ids and aborted disagree",
    ),
    "abort of a pending message in ids": (
        lambda txn, tables: txn.put(
            b"pending\0" + PENDING, pack_u64(2_000) + pack_u64(500), db=tables.ids
        ),
        "message 3: ids and aborted disagree",
    ),
    "abort lost": (
        lambda txn, tables: txn.delete(pack_u64(500) + TAKEN, db=tables.aborted),
        "message 4 is in 0 states",
    ),
    "abort of a rescheduled message in ids": (
        lambda txn, tables: txn.put(
            b"pending\0" + PENDING, IdRow(2_000, 500, 400, 1_000).pack(), db=tables.ids
        ),
        "message 3: ids and aborted disagree",
    ),
    "rescheduled only in ids": (
        lambda txn, tables: txn.put(
            b"pending\0" + PENDING, IdRow(2_001, 0, 400, 2_000).pack(), db=tables.ids
        ),
        "message 3: ids and timers disagree",
    ),
    "rescheduled only in timers": (
        lambda txn, tables: txn.put(
            timer_key(2_500, TOPIC, 3, b"pending"),
            txn.get(PENDING_ROW, db=tables.timers) or b"",
            db=tables.timers,
        ),
        "message 3 is timed twice",
    ),
    "waits, and is timed as well": (
        lambda txn, tables: (
            txn.put(
                waiting_key(PENDING_ROW),
                txn.get(PENDING_ROW, db=tables.timers) or b"",
                db=tables.waiting,
            )
            and txn.put(TOPIC, PAUSE_VALUE.pack(1, 1, False), db=tables.paused)
        ),
        "message 3 is timed twice",
    ),
    "waits for nothing": (
        lambda txn, tables: txn.put(
            waiting_key(PENDING_ROW),
            txn.pop(PENDING_ROW, db=tables.timers) or b"",
            db=tables.waiting,
        ),
        "waiting b'orders': 1 wait, but it is not paused",
    ),
    "number of those that wait": (
        lambda txn, tables: txn.put(TOPIC, PAUSE_VALUE.pack(1, 7, False), db=tables.paused),
        "paused b'orders': 7 noted, 0 wait",
    ),
    "debounced past a pending message": (
        lambda txn, tables: txn.put(debounce_key(TOPIC, b"k"), TAKEN, db=tables.debounced),
        "message 3 is pending before 4",
    ),
    "debounced by an unknown message": (
        lambda txn, tables: txn.put(debounce_key(TOPIC, b"k"), UNKNOWN, db=tables.debounced),
        "message 99 does not have the key",
    ),
    "two aborts": (
        lambda txn, tables: txn.put(pack_u64(501) + TAKEN, b"", db=tables.aborted),
        "message 4 is aborted twice",
    ),
    "expired message missing": (
        lambda txn, tables: txn.put(UNKNOWN[:7], (1 << 99).to_bytes(32), db=tables.expired),
        "expired message 99 is missing",
    ),
    "expired and pending": (
        lambda txn, tables: txn.put(bytes(7), (1 << 3).to_bytes(32), db=tables.expired),
        "message 3 is in 2 states",
    ),
    "aborted message missing": (
        lambda txn, tables: txn.put(pack_u64(500) + UNKNOWN, b"", db=tables.aborted),
        "aborted message 99 is missing",
    ),
    "not in ids": (
        lambda txn, tables: txn.delete(b"sent\0" + SENT, db=tables.ids),
        "message 1 is missing from the ids",
    ),
    "id of nothing": (
        lambda txn, tables: txn.put(b"sent\0" + UNKNOWN, pack_u64(0), db=tables.ids),
        "the message is missing",
    ),
    "id of another message": (
        lambda txn, tables: txn.put(b"stranger\0" + SENT, pack_u64(0), db=tables.ids),
        "the message has another id",
    ),
    "not in keys": (
        lambda txn, tables: txn.delete(key_prefix(TOPIC, b"k") + SENT, db=tables.keys),
        "message 1 is missing from the keys",
    ),
    "key of nothing": (
        lambda txn, tables: txn.put(key_prefix(TOPIC, b"k") + UNKNOWN, b"", db=tables.keys),
        "the message is missing",
    ),
    "key of another message": (
        lambda txn, tables: txn.put(key_prefix(TOPIC, b"x") + SENT, b"", db=tables.keys),
        "the message has another key",
    ),
    "a message from nowhere": (
        lambda txn, tables: txn.put(UNKNOWN, Sample(b"ghost").record(1), db=tables.messages),
        "message 99 is in 0 states",
    ),
}


@pytest.fixture
def sound(tmp_path: Path) -> Store:
    """A store with a message in each state, and a queue that retention emptied. No check follows the test."""
    store = Folder(tmp_path / "data").open(inbox_size=0)
    send(store, Sample(b"sent", keys=(b"k",)))
    hold(store, Sample(b"fired", keys=(b"k",)), 1_000)
    hold(store, Sample(b"pending", keys=(b"k",)), 2_000)
    hold(store, Sample(b"taken", keys=(b"k",)), 3_000)
    send(store, Sample(b"removed", b"emptied", keys=(b"k",)))
    abort(store, b"taken", 500)
    fire_due(store, 1_000, 1_000, 10)
    store.commit()
    clean_up(store, 0, 10, lambda topic: topic == b"emptied")
    store.commit()
    return store


def test_a_sound_store_has_no_faults(sound: Store) -> None:
    assert find_faults(sound) == []
    sound.close()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(sound: Store, fault: str) -> None:
    plant, sentence = FAULTS[fault]
    assert plant(sound.batch_transaction(), sound.tables), "the plant changed nothing"
    sound.commit()
    assert [one for one in find_faults(sound) if one.endswith(sentence)] != []
    sound.close()


@pytest.mark.parametrize(
    "fault", ["held left over", "hour left over", "id of another message", "key of another message"]
)
def test_a_row_too_many_is_the_only_fault(sound: Store, fault: str) -> None:
    """After one fault the check goes through the whole table, but reports none of its sound rows."""
    plant, sentence = FAULTS[fault]
    plant(sound.batch_transaction(), sound.tables)
    sound.commit()
    (found,) = find_faults(sound)
    assert found.endswith(sentence)
    sound.close()


def test_an_offset_without_a_message_is_none(sound: Store) -> None:
    """A repair leaves such a row where a message is lost."""
    txn = sound.batch_transaction()
    txn.put(QUEUE + pack_u64(2), QUEUE_VALUE.pack(0, 0, 0, 1_000), db=sound.tables.queues)
    sound.commit()
    assert find_faults(sound) == []
    sound.close()


def test_a_fault_of_a_batch_that_is_refused_is_not_found(sound: Store) -> None:
    sound.batch_transaction().delete(SENT, db=sound.tables.messages)
    sound.abandon()
    assert find_faults(sound) == []
    sound.close()
