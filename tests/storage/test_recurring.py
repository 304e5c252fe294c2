"""Recurring messages: set, planned, due, listed, deleted; and each change with the rest of its batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import (
    Recurring,
    Store,
    back_up,
    count_recurring,
    current_recurring,
    delete_recurring,
    delete_recurring_of,
    due_recurring,
    find_faults,
    find_recurring,
    next_recurring_due,
    plan_recurring,
    put_recurring,
    scan_recurring,
)
from storage.environment import Tables
from storage.keys import (
    RECURRENCE_VALUE,
    pack_u64,
    planned_key,
    recurring_key,
    split_recurring_key,
)
from storage.logged import LoggedTransaction
from tests.storage.folder import Folder, scratch_data
from tests.storage.sample import TOPIC, Sample, send

KEY = recurring_key(TOPIC, b"nightly")
NAMES = st.text(min_size=1, max_size=10).filter(lambda name: "\0" not in name).map(str.encode)


def recurring(
    name: bytes = b"nightly", next_ms: int = 1_000, topic: bytes = TOPIC, *, paused: bool = False
) -> Recurring:
    """A recurring message that has not fired yet."""
    return Recurring(topic, name, next_ms, 0, paused, b"definition of " + name)


def put(store: Store, *several: Recurring) -> None:
    """Set recurring messages, and commit."""
    for one in several:
        put_recurring(store, one)
    store.commit()


def due(store: Store, now_ms: int, limit: int = 100, max_bytes: int = 1 << 20) -> list[bytes]:
    """The names of what is due."""
    return [one.name for one in due_recurring(store, now_ms, limit, max_bytes)]


@given(NAMES, NAMES)
def test_keys_are_read_back(topic: bytes, name: bytes) -> None:
    assert split_recurring_key(recurring_key(topic, name)) == (topic, name)


def test_the_longest_names_are_a_key_of_lmdb(store: Store) -> None:
    longest = recurring(b"n" * 127, topic=b"t" * 255)
    put(store, longest)
    assert find_recurring(store, longest.topic, longest.name) == longest


def test_they_are_due_in_order_over_a_restart(store: Store, reopen: Callable[[], Store]) -> None:
    put(store, recurring(b"c", 30), recurring(b"a", 10), recurring(b"b", 20))
    store = reopen()
    assert next_recurring_due(store) == 10
    assert due(store, 9) == []
    assert due(store, 20) == [b"a", b"b"]
    assert due(store, 30, limit=1) == [b"a"]
    assert due(store, 30, max_bytes=1) == [b"a"]


def test_an_occurrence_and_the_next_time_are_one_commit(folder: Folder) -> None:
    """A lost batch loses both together: no occurrence is lost, and none is there twice."""
    store = folder.open()
    put(store, recurring(next_ms=1_000))
    send(store, Sample(b"occurrence"))
    plan_recurring(store, TOPIC, b"nightly", 2_000, 1, paused=False)
    store = folder.reopen_after_crash()
    assert store.queue(TOPIC, 0).next == 0
    assert next_recurring_due(store) == 1_000
    send(store, Sample(b"occurrence"))
    plan_recurring(store, TOPIC, b"nightly", 2_000, 1, paused=False)
    store.commit()
    store = folder.reopen_after_crash()
    assert store.queue(TOPIC, 0).next == 1
    assert due(store, 1_999) == []
    assert find_recurring(store, TOPIC, b"nightly") == recurring(next_ms=2_000)._replace(fired=1)


def test_a_backup_has_them(folder: Folder, tmp_path: Path) -> None:
    store = folder.open()
    put(store, recurring(), recurring(b"paused", paused=True))
    listed = scan_recurring(store, None, None, 9)
    folder.close()
    back_up(folder.path, tmp_path / "backup")
    copy = Folder(tmp_path / "backup")
    assert scan_recurring(copy.open(), None, None, 9) == listed
    assert len(listed.found) == 2
    copy.check()


def test_one_name_of_a_topic_is_one(store: Store) -> None:
    put(store, recurring(next_ms=10), recurring(next_ms=10, topic=b"other"))
    put(store, recurring(next_ms=20)._replace(definition=b"new"))
    assert count_recurring(store) == 2
    assert due(store, 19) == [b"nightly"]
    found = find_recurring(store, TOPIC, b"nightly")
    assert found is not None
    assert (found.next_ms, found.definition) == (20, b"new")


def test_a_paused_one_is_not_due(store: Store) -> None:
    put(store, recurring(next_ms=10))
    plan_recurring(store, TOPIC, b"nightly", 10, 3, paused=True)
    store.commit()
    assert (due(store, 99), next_recurring_due(store)) == ([], None)
    assert find_recurring(store, TOPIC, b"nightly") == recurring(next_ms=10, paused=True)._replace(
        fired=3
    )
    plan_recurring(store, TOPIC, b"nightly", 10, 3, paused=False)
    store.commit()
    assert due(store, 99) == [b"nightly"]


def test_what_is_forgotten_is_gone(store: Store) -> None:
    put(store, recurring(b"a", 10), recurring(b"b", 20, paused=True), recurring(b"c", 5, b"other"))
    assert delete_recurring(store, TOPIC, b"a")
    assert not delete_recurring(store, TOPIC, b"a")
    assert current_recurring(store, TOPIC, b"a") is None
    store.commit()
    assert find_recurring(store, TOPIC, b"a") is None
    assert delete_recurring_of(store, TOPIC) == 1
    assert delete_recurring_of(store, TOPIC) == 0
    store.commit()
    assert (count_recurring(store), due(store, 99)) == (1, [b"c"])


def test_a_topic_is_not_another_one_that_begins_like_it(store: Store) -> None:
    put(store, recurring(topic=b"orders"), recurring(topic=b"orders-2"), recurring(topic=b"order"))
    page = scan_recurring(store, b"orders", None, 10)
    assert [one.topic for one in page.found] == [b"orders"]
    assert delete_recurring_of(store, b"order") == 1


def test_what_is_refused_is_gone(store: Store) -> None:
    put_recurring(store, recurring())
    assert current_recurring(store, TOPIC, b"nightly") == recurring()
    assert next_recurring_due(store) == 1_000
    store.abandon()
    assert current_recurring(store, TOPIC, b"nightly") is None
    assert next_recurring_due(store) is None
    assert scan_recurring(store, None, None, 10).found == []
    assert count_recurring(store) == 0
    assert find_recurring(store, TOPIC, b"nightly") is None


@given(
    st.sets(st.tuples(st.sampled_from([b"a", b"b", b"b-1"]), NAMES), max_size=12),
    st.integers(1, 5),
    st.sampled_from([None, b"a", b"b", b"b-1", b"none"]),
)
def test_pages_are_the_whole_list(
    places: set[tuple[bytes, bytes]], limit: int, topic: bytes | None
) -> None:
    with scratch_data() as folder:
        store = folder.open()
        put(store, *(recurring(name, topic=of) for of, name in places))
        listed: list[tuple[bytes, bytes]] = []
        cursor = None
        while True:
            page = scan_recurring(store, topic, cursor, limit)
            assert len(page.found) <= limit
            listed += [(one.topic, one.name) for one in page.found]
            cursor = page.cursor
            if cursor is None:
                break
        assert listed == sorted(place for place in places if topic in (None, place[0]))


def test_pages_of_readable_topics_name_no_other(store: Store) -> None:
    topics = (b"a", b"m", b"n", b"z")
    put(store, *(recurring(name, topic=of) for of in topics for name in (b"1", b"2", b"3")))
    listed, cursor = [], None
    while True:
        page = scan_recurring(store, None, cursor, 2, lambda topic: topic in (b"m", b"n"))
        listed += [(one.topic, one.name) for one in page.found]
        cursor = page.cursor
        if cursor is None:
            break
        assert split_recurring_key(cursor)[0] in (b"m", b"n")
    assert listed == [(of, name) for of in (b"m", b"n") for name in (b"1", b"2", b"3")]


Plant = Callable[[LoggedTransaction, Tables], object]

FAULTS: dict[str, tuple[Plant, str]] = {
    "definition": (
        lambda txn, tables: txn.delete(KEY, db=tables.recurring),
        f"recurring {KEY!r}: its definition is missing",
    ),
    "row of the next time": (
        lambda txn, tables: txn.delete(KEY, db=tables.recurrences),
        f"recurring {KEY!r}: nothing says when it fires",
    ),
    "place in time": (
        lambda txn, tables: txn.delete(planned_key(1_000, KEY), db=tables.planned),
        f"planned {planned_key(1_000, KEY)!r} is missing",
    ),
    "second place in time": (
        lambda txn, tables: txn.put(planned_key(2_000, KEY), b"", db=tables.planned),
        f"planned {planned_key(2_000, KEY)!r}: no recurring message says so",
    ),
    "paused and planned": (
        lambda txn, tables: txn.put(
            KEY, RECURRENCE_VALUE.pack(1_000, 0, True), db=tables.recurrences
        ),
        f"planned {planned_key(1_000, KEY)!r}: no recurring message says so",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_check_finds_a_planted_fault_and_nothing_fires_by_it(
    tmp_path: Path, fault: str
) -> None:
    store = Folder(tmp_path / "data").open()
    put(store, recurring(), recurring(b"paused", paused=True))
    assert find_faults(store) == []
    plant, sentence = FAULTS[fault]
    assert plant(store.batch_transaction(), store.tables), "the plant changed nothing"
    store.commit()
    assert sentence in find_faults(store)
    assert due(store, 3_000) == ([b"nightly"] if fault == "second place in time" else [])
    store.commit()
    store.close()


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("planned", bytes(3), b""),
        ("planned", planned_key(5, TOPIC + b"\0\xff"), b""),
        ("recurrences", recurring_key(TOPIC, b"damaged"), b"short"),
        ("recurrences", recurring_key(TOPIC, b"damaged"), pack_u64(5) + b"\xff" * 8 + b"\0"),
        ("recurrences", recurring_key(TOPIC, b"damaged"), b"\xff" * 8 + pack_u64(0) + b"\0"),
    ],
)
def test_a_row_that_cannot_be_read_keeps_no_other_from_firing_or_being_listed(
    folder: Folder, table: str, key: bytes, value: bytes
) -> None:
    """Such a row once made every batch with a recurring message fail, and every list."""
    store = folder.open()
    put(store, recurring(next_ms=10), recurring(b"damaged", 5))
    whole = store.reader().get(key, db=getattr(store.tables, table))
    store = folder.damage(table, key, value)
    assert due(store, 20)[-1] == b"nightly"
    assert find_recurring(store, TOPIC, b"nightly") == recurring(next_ms=10)
    assert scan_recurring(store, None, None, 9).found[-1] == recurring(next_ms=10)
    assert key in store.damaged
    folder.damage(table, key, whole)


def test_one_whose_row_cannot_be_read_can_be_set_anew(folder: Folder) -> None:
    store = folder.open()
    put(store, recurring(next_ms=10))
    store = folder.damage("recurrences", KEY, b"short")
    put(store, recurring(next_ms=10))
    assert due(store, 10) == [b"nightly"]
