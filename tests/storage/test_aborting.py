"""Messages that are aborted before they fire."""

from __future__ import annotations

from collections.abc import Callable

from storage import Aborted, AbortResult, Fired, Store, abort, find_by_id, fire_due
from tests.storage.sample import (
    TOPIC,
    Sample,
    fire,
    hold,
    hold_all,
    ids_in,
    numbered,
    pending_ids,
    send,
    states,
)


def test_a_pending_message_is_taken_back(store: Store) -> None:
    hold(store, Sample(b"a"), 1_000)
    store.commit()
    assert abort(store, b"a", 500) == [AbortResult(Aborted.ABORTED, 1_000)]
    store.commit()
    assert states(store, b"a") == ["aborted"]
    assert store.next_due() is None
    assert fire(store, 1 << 60) == 0
    assert ids_in(store) == []


def test_a_fired_message_is_not(store: Store) -> None:
    hold(store, Sample(b"a"), 1_000)
    store.commit()
    fire(store, 1_000)
    assert abort(store, b"a", 1_001) == [AbortResult(Aborted.ALREADY_FIRED, 1_000)]
    store.commit()
    assert ids_in(store) == [b"a"]
    assert states(store, b"a") == ["fired"]


def test_a_message_is_taken_back_once(store: Store) -> None:
    hold(store, Sample(b"a"), 1_000)
    store.commit()
    abort(store, b"a", 500)
    assert abort(store, b"a", 501) == [AbortResult(Aborted.ALREADY_ABORTED, 1_000)]
    store.commit()
    assert abort(store, b"a", 502) == [AbortResult(Aborted.ALREADY_ABORTED, 1_000)]
    store.commit()
    assert [found.moved_ms for found in find_by_id(store, b"a")] == [500]


def test_nobody_has_heard_of_it(store: Store) -> None:
    hold(store, Sample(b"ab"), 1_000)
    store.commit()
    for stranger in (b"a", b"abc", b"", b"ab\0"):
        assert abort(store, stranger, 500) == [AbortResult(Aborted.UNKNOWN, 0)]
    store.commit()
    assert states(store, b"ab") == ["pending"]


def test_a_message_sent_without_delay_has_fired_already(store: Store) -> None:
    send(store, Sample(b"a"))
    store.commit()
    assert abort(store, b"a", 500) == [AbortResult(Aborted.ALREADY_FIRED, 0)]


def test_in_the_batch_that_schedules_it(store: Store) -> None:
    hold(store, Sample(b"a"), 1_000)
    assert abort(store, b"a", 1) == [AbortResult(Aborted.ABORTED, 1_000)]
    hold(store, Sample(b"b"), 1_000)
    store.commit()
    assert states(store, b"a") == ["aborted"]
    assert states(store, b"b") == ["pending"]
    assert store.held_totals() == {TOPIC: 1}


def test_in_the_batch_that_fires_it(store: Store) -> None:
    hold(store, Sample(b"a"), 1_000)
    hold(store, Sample(b"b"), 1_000)
    store.commit()
    assert abort(store, b"a", 1_000)[0].outcome is Aborted.ABORTED
    assert fire_due(store, 1_000, 1_000, 10) == Fired(1, more=False)
    assert abort(store, b"b", 1_000)[0].outcome is Aborted.ALREADY_FIRED
    store.commit()
    assert ids_in(store) == [b"b"]


def test_every_message_with_the_id_the_newest_first(store: Store) -> None:
    hold(store, Sample(b"a"), 1_000)
    store.commit()
    fire(store, 1_000)
    for due_ms in (4_000, 3_000):
        hold(store, Sample(b"a"), due_ms)
    send(store, Sample(b"a"), stored_ms=1_000)
    store.commit()
    assert abort(store, b"a", 2_000) == [
        AbortResult(Aborted.ALREADY_FIRED, 0),
        AbortResult(Aborted.ABORTED, 3_000),
        AbortResult(Aborted.ABORTED, 4_000),
        AbortResult(Aborted.ALREADY_FIRED, 1_000),
    ]
    store.commit()
    assert states(store, b"a") == ["untimed", "aborted", "aborted", "fired"]


def test_only_of_the_topic_that_is_named(store: Store) -> None:
    hold(store, Sample(b"a", b"mine"), 1_000)
    hold(store, Sample(b"a", b"theirs"), 2_000)
    store.commit()
    assert abort(store, b"a", 5, b"mine") == [AbortResult(Aborted.ABORTED, 1_000)]
    assert abort(store, b"a", 5, b"nobody's") == [AbortResult(Aborted.UNKNOWN, 0)]
    store.commit()
    assert store.held_totals() == {b"theirs": 1}


def test_long_ids_that_only_differ_in_their_end_are_two(store: Store) -> None:
    long = b"x" * 300
    hold(store, Sample(long + b"1"), 1_000)
    hold(store, Sample(long + b"2"), 1_000)
    store.commit()
    assert abort(store, long + b"1", 5) == [AbortResult(Aborted.ABORTED, 1_000)]
    store.commit()
    assert pending_ids(store) == [long + b"2"]


def test_an_id_that_holds_another_one_and_a_zero_byte(store: Store) -> None:
    for message_id in (b"a", b"a\0", b"a\0bcdefgh", b"a\0bcdefghijklmnopq"):
        hold(store, Sample(message_id), 1_000)
    store.commit()
    assert abort(store, b"a", 5) == [AbortResult(Aborted.ABORTED, 1_000)]
    store.commit()
    assert len(pending_ids(store)) == 3


def test_an_abort_survives_a_restart(store: Store, reopen: Callable[[], Store]) -> None:
    hold_all(store, numbered(3), 1_000)
    abort(store, b"m00001", 5)
    store.commit()
    store = reopen()
    assert states(store, b"m00001") == ["aborted"]
    assert fire(store, 1_000) == 2
    assert ids_in(store) == [b"m00000", b"m00002"]
