"""How many messages are held, and how many bytes they have."""

from __future__ import annotations

import pytest

from storage import StorageError, Store, abort, pause_topic
from tests.storage.faults import commits_fail
from tests.storage.folder import Folder
from tests.storage.sample import TOPIC, Sample, fire, hold, hold_all, id_of, send


def test_held_counts_every_topic_over_all_seconds(store: Store) -> None:
    for due_ms in (500, 999, 1_000, 90_000):
        hold(store, Sample(b"a", b"t1"), due_ms)
    hold(store, Sample(b"b", b"t2"), 500)
    store.commit()
    assert store.held_totals() == {b"t1": 4, b"t2": 1}
    fire(store, 999)
    assert store.held_totals() == {b"t1": 2}
    abort(store, b"a", 1_000)
    store.commit()
    assert store.held_totals() == {}


def test_the_bytes_that_are_held_are_right_over_a_restart(folder: Folder) -> None:
    """A new timer of the same topic leaves the number of messages as it was: only the bytes change."""
    store = folder.open(inbox_size=0)
    hold(store, Sample(b"short"), 1_000)
    store.commit()
    abort(store, b"short", 5)
    long = Sample(b"long", body=b"x" * 100)
    hold(store, long, 1_000)
    store.commit()
    for _ in range(2):
        assert store.held.sizes == {TOPIC: len(long.record(1))}
        store = folder.open()


def test_how_much_is_held_is_counted_anew_where_its_row_cannot_be_read(folder: Folder) -> None:
    """A start does not fail because of the row, and the next change repairs it."""
    store = folder.open(inbox_size=0)
    hold_all(store, [b"a", b"b"], 1_000)
    hold_all(store, [b"c"], 1_000, b"bills")
    pause_topic(store, TOPIC, 900)
    store.commit()
    assert fire(store, 1_000) == 1
    hold_all(store, [b"d", b"e"], 2_000)
    held = dict(store.held.messages), dict(store.held.sizes)
    assert held[0] == {TOPIC: 4}
    folder.damage("timers", b"no timer", b"")
    store = folder.damage("totals", TOPIC, b"short")
    assert store.damaged == {TOPIC}
    assert (store.held.messages, store.held.sizes) == held
    abort(store, b"d", 1_001)
    abort(store, b"a", 1_001)
    with commits_fail(store), pytest.raises(StorageError):
        store.commit()
    abort(store, b"d", 1_001)
    store.commit()
    assert store.held.messages == {TOPIC: 3}
    folder.damage("timers", b"no timer", None)


def test_the_oldest_message_and_the_number_of_pending_ones(store: Store) -> None:
    assert store.oldest_record() is None
    assert store.pending_count() == 0
    hold(store, Sample(b"m1"), 5_000, 1_000)
    send(store, Sample(b"m2"), 1_001)
    hold(store, Sample(b"m3"), 6_000, 1_002)
    store.commit()
    oldest = store.oldest_record()
    assert oldest is not None
    assert id_of(oldest) == b"m1"
    assert store.pending_count() == 2
