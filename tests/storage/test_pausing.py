"""Topics whose firing is paused, and resumed."""

from __future__ import annotations

import pytest

from storage import (
    HELD_SPAN_MS,
    Aborted,
    AbortResult,
    Columns,
    Fired,
    Store,
    abort,
    count_due,
    fire_due,
    fire_resumed,
    pause_topic,
    read_pending,
    resume_topic,
)
from storage.keys import PAUSE_VALUE
from tests.storage.folder import Folder, change_table
from tests.storage.sample import (
    TOPIC,
    Sample,
    fire,
    hold,
    hold_all,
    id_of,
    ids_in,
    numbered,
    pending_ids,
    pending_page,
    states,
    terms_of,
)

OTHER = b"bills"


@pytest.fixture
def paused(store: Store) -> Store:
    """A store whose topic is paused, with five waiting messages due at 1000 to 1004."""
    for number, name in enumerate(numbered(5)):
        hold(store, Sample(name), 1_000 + number)
    pause_topic(store, TOPIC, 900)
    store.commit()
    assert fire(store, 2_000) == 0
    return store


def test_what_waits_is_pending(paused: Store) -> None:
    assert states(paused, numbered(1)[0]) == ["pending"]
    assert pending_ids(paused) == pending_ids(paused, topic=TOPIC) == numbered(5)
    assert dict(paused.held_totals()) == {TOPIC: 5}
    assert paused.pending_count() == 5
    assert paused.next_due() is None
    assert ids_in(paused) == []


def test_what_waits_in_one_topic_is_none_of_another(paused: Store) -> None:
    hold(paused, Sample(b"b", OTHER), 1_002)
    pause_topic(paused, OTHER, 900)
    paused.commit()
    assert fire(paused, 2_000) == 0
    assert pending_ids(paused, topic=OTHER) == [b"b"]
    assert pending_ids(paused, topic=TOPIC) == numbered(5)
    assert sorted(pending_ids(paused)) == [b"b", *numbered(5)]


def test_other_topics_fire(paused: Store) -> None:
    hold(paused, Sample(b"b", OTHER), 2_001)
    paused.commit()
    assert paused.next_due() == 2_001
    assert fire(paused, 2_001) == 1
    assert ids_in(paused, OTHER) == [b"b"]


def test_firing_looks_at_each_message_once(paused: Store) -> None:
    """Waiting messages, however many, no longer hinder a step of one message."""
    hold(paused, Sample(b"b", OTHER), 2_001)
    paused.commit()
    assert fire_due(paused, 2_001, 2_001, 1) == Fired(1, more=False)


def test_a_step_is_bounded_also_while_it_moves_aside(store: Store) -> None:
    hold_all(store, numbered(5), 1_000)
    pause_topic(store, TOPIC, 900)
    for _ in range(2):
        assert fire_due(store, 1_000, 1_000, 2) == Fired(0, more=True)
    assert fire_due(store, 1_000, 1_000, 2) == Fired(0, more=False)


def test_a_listing_goes_on_across_both_tables(paused: Store) -> None:
    hold(paused, Sample(b"late"), 1_002)
    hold(paused, Sample(b"other", OTHER), 1_003)
    hold(paused, Sample(b"last"), 9_000)
    paused.commit()
    names = numbered(5)
    expected = [*names[:3], b"late", b"other", *names[3:], b"last"]
    for topic, wanted in ((None, expected), (TOPIC, [one for one in expected if one != b"other"])):
        seen: list[bytes] = []
        cursor = None
        while len(seen) < len(wanted):
            page = pending_page(paused, topic=topic, cursor=cursor, limit=2)
            seen += [id_of(found.record) for found in page.found]
            cursor = page.cursor
        assert sorted(seen) == sorted(wanted)
    ranged = pending_page(paused, topic=TOPIC, begin_ms=1_003, end_ms=1_004)
    assert [id_of(found.record) for found in ranged.found] == [names[3]]


def test_what_waits_can_be_aborted(paused: Store) -> None:
    name = numbered(3)[2]
    assert abort(paused, name, 2_000) == [AbortResult(Aborted.ABORTED, 1_002)]
    paused.commit()
    assert states(paused, name) == ["aborted"]
    assert dict(paused.held_totals()) == {TOPIC: 4}


def test_resuming_fires_in_the_order_of_due_times_in_steps(paused: Store) -> None:
    assert resume_topic(paused, TOPIC)
    assert fire_resumed(paused, 2_000, 2_000, 2) == Fired(2, more=True)
    assert [pause.waiting for _, pause in paused.paused.items()] == [3]
    # A message that becomes due meanwhile takes its place behind them.
    hold(paused, Sample(b"late"), 2_000)
    assert fire_due(paused, 2_000, 2_000, 10) == Fired(0, more=False)
    assert fire_resumed(paused, 2_000, 2_000, 3) == Fired(3, more=True)
    assert fire_resumed(paused, 2_000, 2_000, 3) == Fired(1, more=False)
    paused.commit()
    assert ids_in(paused) == [*numbered(5), b"late"]
    assert paused.paused.items() == []
    assert dict(paused.held_totals()) == {}
    hold(paused, Sample(b"later"), 2_001)
    assert fire(paused, 2_001) == 1


def test_resumed_topics_share_a_step(paused: Store) -> None:
    hold_all(paused, numbered(3), 1_000, OTHER)
    pause_topic(paused, OTHER, 900)
    paused.commit()
    assert fire(paused, 2_000) == 0
    for topic in (TOPIC, OTHER):
        resume_topic(paused, topic)
    assert fire_resumed(paused, 2_000, 2_000, 5) == Fired(4, more=True)
    assert fire_resumed(paused, 2_000, 2_000, 1) == Fired(1, more=True)
    assert fire_resumed(paused, 2_000, 2_000, 5) == Fired(3, more=False)
    paused.commit()
    assert (ids_in(paused), ids_in(paused, OTHER)) == (numbered(5), numbered(3))


@pytest.mark.parametrize("other", [b"a", b"z"])
def test_resuming_a_topic_fires_nothing_of_another_that_is_paused(
    paused: Store, other: bytes
) -> None:
    pause_topic(paused, other, 900)
    hold(paused, Sample(b"kept", other), 1_000)
    assert fire(paused, 2_000) == 0
    resume_topic(paused, TOPIC)
    assert fire_resumed(paused, 2_000, 2_000, 9) == Fired(5, more=False)
    paused.commit()
    assert ids_in(paused) == numbered(5)
    assert pending_ids(paused) == [b"kept"]
    assert [topic for topic, _ in paused.paused.items()] == [other]


def test_what_is_not_due_any_more_waits_for_its_time(paused: Store) -> None:
    resume_topic(paused, TOPIC)
    assert fire_resumed(paused, 1_002, 2_000, 4) == Fired(3, more=True)
    assert fire_resumed(paused, 1_002, 2_000, 4) == Fired(0, more=False)
    paused.commit()
    assert ids_in(paused) == numbered(5)[:3]
    assert pending_ids(paused) == numbered(5)[3:]
    assert dict(paused.held_totals()) == {TOPIC: 2}
    assert paused.paused.items() == []
    assert paused.next_due() == 1_003
    assert fire(paused, 2_000) == 2


def test_the_answers_are_true(store: Store) -> None:
    assert not resume_topic(store, TOPIC)
    assert pause_topic(store, TOPIC, 1)
    assert not pause_topic(store, TOPIC, 2)
    assert resume_topic(store, TOPIC)
    assert not resume_topic(store, TOPIC)
    # The topic is paused again before all of it has fired.
    assert pause_topic(store, TOPIC, 3)
    [(_, pause)] = store.paused.items()
    assert (pause.since_ms, pause.resumed) == (3, False)


@pytest.mark.parametrize("inbox_size", [0, 1_000])
def test_survives_crashes(folder: Folder, inbox_size: int) -> None:
    store = folder.open(inbox_size=inbox_size)
    hold_all(store, numbered(4), 1_000)
    pause_topic(store, TOPIC, 900)
    store.commit()
    fire(store, 1_000)
    store = folder.reopen_after_crash()
    assert pending_ids(store) == numbered(4)
    assert dict(store.held_totals()) == {TOPIC: 4}
    assert fire(store, 1_500) == 0
    resume_topic(store, TOPIC)
    assert fire_resumed(store, 1_500, 1_500, 1) == Fired(1, more=True)
    store.commit()
    store = folder.reopen_after_crash()
    assert fire_resumed(store, 1_600, 1_600, 10) == Fired(3, more=False)
    store.commit()
    assert ids_in(store) == numbered(4)


def test_a_refused_batch_changes_nothing(paused: Store) -> None:
    resume_topic(paused, TOPIC)
    fire_resumed(paused, 2_000, 2_000, 2)
    paused.abandon()
    [(_, pause)] = paused.paused.items()
    assert (pause.waiting, pause.resumed) == (5, False)
    assert pending_ids(paused) == numbered(5)
    pause_topic(paused, OTHER, 2_000)
    paused.abandon()
    assert [topic for topic, _ in paused.paused.items()] == [TOPIC]


def test_resumed_topics_are_told_with_the_fewest_waiting_first(
    paused: Store, folder: Folder
) -> None:
    pause_topic(paused, OTHER, 900)
    hold(paused, Sample(b"x", OTHER), 1_000)
    paused.commit()
    assert fire(paused, 2_000) == 0
    assert paused.paused.resumed() == []
    resume_topic(paused, TOPIC)
    paused.commit()
    resume_topic(paused, OTHER)
    assert paused.paused.resumed() == [OTHER, TOPIC]
    paused.abandon()
    assert paused.paused.resumed() == [TOPIC]
    pause_topic(paused, TOPIC, 2_000)
    assert paused.paused.resumed() == []
    paused.abandon()
    resume_topic(paused, OTHER)
    paused.commit()
    store = folder.open()
    assert store.paused.resumed() == [OTHER, TOPIC]
    assert fire_resumed(store, 2_000, 2_000, 4) == Fired(3, more=True)
    assert store.paused.resumed() == [TOPIC]
    store.abandon()
    assert store.paused.resumed() == [OTHER, TOPIC]


def test_a_copy_has_what_waits(paused: Store, folder: Folder) -> None:
    folder.close()
    assert [one.due_ms for one in read_pending(folder.path, terms_of)] == list(range(1_000, 1_005))


@pytest.mark.parametrize(
    ("key", "value"), [(b"", b""), (b"\0" * 17 + b"x", b"short"), (b"\0short", bytes(12))]
)
def test_a_row_that_cannot_be_read_keeps_no_other_from_being_shown_or_let_go(
    folder: Folder, paused: Store, key: bytes, value: bytes
) -> None:
    row = TOPIC + key
    folder.close()
    change_table(folder.path, "waiting", lambda txn, rows: txn.put(row, value, db=rows))
    store = folder.open()
    assert pending_ids(store) == numbered(5)
    assert sum(count_due(store, Columns(0, HELD_SPAN_MS, 10)).counts.values()) == 5
    resume_topic(store, TOPIC)
    assert fire_resumed(store, 3_000, 3_000, 100) == Fired(5, more=False)
    store.commit()
    assert ids_in(store) == numbered(5)
    folder.close()
    change_table(folder.path, "waiting", lambda txn, rows: txn.delete(row, db=rows))


def test_a_row_that_cannot_be_read_takes_no_turn_of_those_behind_it(
    folder: Folder, paused: Store
) -> None:
    """A step fires one message of each topic where very many were resumed."""
    row = TOPIC + bytes(17) + b"x"
    store = folder.damage("waiting", row, b"short")
    resume_topic(store, TOPIC)
    assert sum(fire_resumed(store, 3_000, 3_000, 1).messages for _ in range(5)) == 5
    store.commit()
    folder.damage("waiting", row, None)


@pytest.mark.parametrize("counted", [0, (1 << 64) - 1])
def test_a_wrong_count_of_what_waits_has_no_batch_refused(
    folder: Folder, paused: Store, counted: int
) -> None:
    """Without this, the gateway could store nothing more, as each batch also fired what waited."""
    store = folder.damage("paused", TOPIC, PAUSE_VALUE.pack(900, counted, False))
    hold_all(store, [b"late"], 2_001)
    fire(store, 2_001)
    abort(store, b"m00000", 2_002)
    store.commit()
    resume_topic(store, TOPIC)
    while fire_resumed(store, 2_003, 2_003, 1).more:
        store.commit()
    store.commit()
    assert ids_in(store) == [*numbered(5)[1:], b"late"]


@pytest.mark.parametrize("value", [b"short", b"\xff" * 17])
def test_a_topic_whose_row_cannot_be_read_stays_paused(
    folder: Folder, paused: Store, value: bytes
) -> None:
    """Such a folder once could not be opened."""
    whole = paused.reader().get(TOPIC, db=paused.tables.paused)
    store = folder.damage("paused", TOPIC, value)
    pause = store.paused.get(TOPIC)
    assert pause is not None
    assert (pause.waiting, pause.resumed) == (5, False)
    assert store.damaged == {TOPIC}
    folder.damage("paused", TOPIC, whole)


def test_a_row_that_is_of_no_topic_is_passed_over(folder: Folder, paused: Store) -> None:
    whole = paused.paused.items()
    store = folder.damage("paused", b"\xff", bytes(17))
    assert store.paused.items() == whole
    folder.damage("paused", b"\xff", None)
