"""Messages that get another time before they fire."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from storage import (
    Aborted,
    AbortResult,
    Rescheduled,
    RescheduleResult,
    State,
    Store,
    abort,
    find_by_id,
    fire_due,
    pause_topic,
    reschedule,
    reschedule_sequences,
)
from tests.storage.folder import Folder
from tests.storage.sample import TOPIC, Sample, fire, hold, ids_in, pending_ids, send

MOVED, FIRED, ABORTED, UNKNOWN = Rescheduled


def at(due_ms: int) -> Callable[[int], int]:
    """Return a function that gives this time, whatever the old one was."""
    return lambda _: due_ms


def test_it_fires_at_the_new_time_and_not_at_the_old(store: Store) -> None:
    hold(store, Sample(b"a"), 1_000)
    store.commit()
    assert reschedule(store, b"a", at(5_000), 10) == [RescheduleResult(MOVED, 5_000, 1_000)]
    store.commit()
    assert fire(store, 4_999) == 0
    assert fire(store, 5_000) == 1
    assert ids_in(store) == [b"a"]


def test_an_earlier_time(store: Store) -> None:
    hold(store, Sample(b"a"), 5_000)
    hold(store, Sample(b"b"), 3_000)
    store.commit()
    reschedule(store, b"a", at(2_000), 10)
    store.commit()
    assert store.next_due() == 2_000
    assert pending_ids(store) == [b"a", b"b"]


def test_its_history_is_found(store: Store) -> None:
    hold(store, Sample(b"a"), 1_000)
    store.commit()
    for due_ms, now_ms in ((5_000, 10), (4_000, 20)):
        reschedule(store, b"a", at(due_ms), now_ms)
        store.commit()
    (found,) = find_by_id(store, b"a")
    assert (found.state, found.due_ms) == (State.PENDING, 4_000)
    assert (found.rescheduled_ms, found.due_before_ms) == (20, 5_000)
    fire(store, 4_000)
    (found,) = find_by_id(store, b"a")
    assert (found.state, found.moved_ms) == (State.FIRED, 4_000)
    assert (found.rescheduled_ms, found.due_before_ms) == (20, 5_000)


def test_within_one_batch(store: Store) -> None:
    hold(store, Sample(b"a"), 1_000)
    assert reschedule(store, b"a", at(5_000), 10) == [RescheduleResult(MOVED, 5_000, 1_000)]
    assert abort(store, b"a", 11) == [AbortResult(Aborted.ABORTED, 5_000)]
    assert reschedule(store, b"a", at(6_000), 12) == [RescheduleResult(ABORTED, 5_000, 5_000)]
    store.commit()
    assert pending_ids(store) == []


def test_after_firing_in_the_same_batch(store: Store) -> None:
    hold(store, Sample(b"a"), 1_000)
    store.commit()
    fire_due(store, 1_000, 1_000, 10)
    assert reschedule(store, b"a", at(5_000), 1_000) == [RescheduleResult(FIRED, 1_000, 1_000)]
    store.commit()
    assert ids_in(store) == [b"a"]


def test_what_was_never_timed_or_never_was(store: Store) -> None:
    send(store, Sample(b"a"))
    store.commit()
    assert reschedule(store, b"a", at(5_000), 10) == [RescheduleResult(FIRED, 0, 0)]
    assert reschedule(store, b"b", at(5_000), 10) == [RescheduleResult(UNKNOWN, 0, 0)]
    assert reschedule(store, b"a", at(5_000), 10, b"bills") == [RescheduleResult(UNKNOWN, 0, 0)]


@pytest.mark.parametrize("inbox_size", [0, 1_000])
def test_survives_a_crash(folder: Folder, inbox_size: int) -> None:
    """This includes recently accepted messages, whose timers are only in memory until they move to the table."""
    store = folder.open(inbox_size=inbox_size)
    for name in (b"a", b"b", b"c"):
        hold(store, Sample(name), 1_000)
    store.commit()
    held = dict(store.held.messages), dict(store.held.sizes)
    assert held[0] == {TOPIC: 3}
    reschedule(store, b"b", at(5_000), 10)
    store.commit()
    assert (store.held.messages, store.held.sizes) == held
    store = folder.reopen_after_crash()
    assert pending_ids(store) == [b"a", b"c", b"b"]
    assert (store.held.messages, store.held.sizes) == held


def test_what_waits_in_a_paused_topic_leaves_it(store: Store) -> None:
    hold(store, Sample(b"a"), 1_000)
    pause_topic(store, TOPIC, 1)
    store.commit()
    assert fire(store, 1_000) == 0
    assert reschedule(store, b"a", at(5_000), 1_000) == [RescheduleResult(MOVED, 5_000, 1_000)]
    store.commit()
    assert store.next_due() == 5_000
    assert [pause.waiting for _, pause in store.paused.items()] == [0]


def test_a_refused_batch_leaves_it_as_it_was(store: Store) -> None:
    hold(store, Sample(b"a"), 1_000)
    store.commit()
    reschedule(store, b"a", at(5_000), 10)
    store.abandon()
    (found,) = find_by_id(store, b"a")
    assert (found.due_ms, found.rescheduled_ms) == (1_000, 0)
    assert fire(store, 1_000) == 1


def test_by_a_distance_from_its_time(store: Store) -> None:
    sequence = hold(store, Sample(b"a"), 1_000)
    hold(store, Sample(b"a"), 2_000)
    store.commit()
    later = reschedule(store, b"a", lambda due_ms: due_ms + 100, 10)
    assert later == [RescheduleResult(MOVED, 2_100, 2_000), RescheduleResult(MOVED, 1_100, 1_000)]
    known = reschedule_sequences(store, [sequence, 99], lambda due_ms: due_ms - 50, 11)
    assert known == {sequence: RescheduleResult(MOVED, 1_050, 1_100)}
    store.commit()
    assert [found.due_ms for found in find_by_id(store, b"a")] == [2_100, 1_050]
