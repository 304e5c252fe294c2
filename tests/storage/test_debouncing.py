"""Debounce: the last message with a key takes the place of those before it."""

from __future__ import annotations

import pytest

import storage.debouncing
from storage import (
    Store,
    count_candidates,
    note_older,
    put_half,
    replace_pending,
    take_half,
)
from tests.storage.folder import Folder
from tests.storage.sample import TOPIC, Sample, clean_up, fire, hold, pending_ids, states

KEY = b"k"
HALF = Sample(b"half", keys=(KEY,))


def debounce(store: Store, name: bytes, due_ms: int, now_ms: int) -> int:
    """Hold a message in place of the others with the key, and return how many those were."""
    replaced = replace_pending(store, TOPIC, KEY, store.next_sequence, now_ms)
    hold(store, Sample(name, keys=(KEY,)), due_ms, now_ms)
    return replaced


def commit_half(store: Store, sequence: int) -> None:
    take_half(store, sequence)
    note_older(store, TOPIC, [KEY], sequence)
    store.schedule(2_000, TOPIC, 0, sequence, HALF.record(1), 0, b"half", [KEY])
    store.commit()


def test_the_last_one_wins(store: Store) -> None:
    assert debounce(store, b"a", 1_000, 1) == 0
    store.commit()
    assert debounce(store, b"b", 1_100, 2) == 1
    assert debounce(store, b"c", 1_200, 3) == 1
    store.commit()
    assert pending_ids(store) == [b"c"]
    assert states(store, b"a") == states(store, b"b") == ["aborted"]


def test_those_that_came_without_debounce_are_replaced_too(store: Store) -> None:
    for name in (b"a", b"b"):
        hold(store, Sample(name, keys=(b"x", KEY)), 1_000)
    hold(store, Sample(b"other key", keys=(b"kk",)), 1_000)
    hold(store, Sample(b"other topic", b"bills", keys=(KEY,)), 1_000)
    assert debounce(store, b"c", 1_200, 3) == 2
    hold(store, Sample(b"d", keys=(KEY,)), 1_000)
    assert debounce(store, b"e", 1_200, 4) == 2
    store.commit()
    assert sorted(pending_ids(store)) == [b"e", b"other key", b"other topic"]


def test_what_has_fired_begins_anew(store: Store) -> None:
    debounce(store, b"a", 1_000, 1)
    fire(store, 1_000)
    assert debounce(store, b"b", 2_000, 1_500) == 0
    store.commit()
    assert states(store, b"a") == ["fired"]


def test_each_one_looks_at_what_came_since_the_last(store: Store) -> None:
    """A debounce does not go through the key's whole history again, however often the key was debounced."""
    storage.debouncing.MAX_LOOKED_AT, before = 3, storage.debouncing.MAX_LOOKED_AT
    try:
        for number in range(20):
            assert count_candidates(store, TOPIC, KEY) == min(number, 1)
            debounce(store, b"%d" % number, 1_000, number)
        for number in range(2):
            hold(store, Sample(b"x%d" % number, keys=(KEY,)), 1_000)
        assert count_candidates(store, TOPIC, KEY) == 3
        for number in range(2, 9):
            hold(store, Sample(b"x%d" % number, keys=(KEY,)), 1_000)
        assert count_candidates(store, TOPIC, KEY) == 4
    finally:
        storage.debouncing.MAX_LOOKED_AT = before


def test_a_half_that_is_committed_late_is_found_all_the_same(store: Store) -> None:
    sequence = store.new_sequence()
    put_half(store, sequence, HALF.record(1), 60_000)
    store.commit()
    debounce(store, b"a", 1_000, 1)
    store.commit()
    commit_half(store, sequence)
    assert debounce(store, b"b", 1_100, 2) == 2
    store.commit()
    assert pending_ids(store) == [b"b"]


def test_a_half_that_came_later_hides_nothing_that_came_before_it(store: Store) -> None:
    debounce(store, b"a", 1_000, 1)
    hold(store, Sample(b"without", keys=(KEY,)), 1_000)
    sequence = store.new_sequence()
    put_half(store, sequence, HALF.record(1), 60_000)
    store.commit()
    commit_half(store, sequence)
    assert debounce(store, b"b", 1_100, 2) == 3
    store.commit()
    assert pending_ids(store) == [b"b"]


def test_a_key_that_is_too_long_for_an_index(store: Store) -> None:
    key = b"k" * 400
    for number, name in enumerate((b"a", b"b")):
        assert count_candidates(store, TOPIC, key) == number
        replaced = replace_pending(store, TOPIC, key, store.next_sequence, 1)
        hold(store, Sample(name, keys=(key,)), 1_000)
    assert replaced == 1
    store.commit()
    assert pending_ids(store) == [b"b"]


def test_a_half_that_could_not_replace_all_is_not_forgotten(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage.debouncing, "MAX_LOOKED_AT", 3)
    sequence = store.new_sequence()
    message = Sample(b"half", keys=(KEY,))
    put_half(store, sequence, message.record(1), 60_000)
    for number in range(5):
        hold(store, Sample(b"x%d" % number, keys=(KEY,)), 1_000)
    store.commit()
    take_half(store, sequence)
    note_older(store, TOPIC, [KEY], sequence)
    assert replace_pending(store, TOPIC, KEY, sequence, 1) == 3
    store.schedule(2_000, TOPIC, 0, sequence, message.record(1), 0, b"half", [KEY])
    store.commit()
    assert sorted(pending_ids(store)) == [b"half", b"x3", b"x4"]
    # A send would be refused now. Another half, which cannot be refused, replaces messages.
    assert count_candidates(store, TOPIC, KEY) == 4
    debounce(store, b"other half", 1_100, 2)
    store.commit()
    assert sorted(pending_ids(store)) == [b"other half", b"x3", b"x4"]


def test_its_row_goes_with_the_message(store: Store, folder: Folder) -> None:
    debounce(store, b"a", 1_000, 1)
    fire(store, 1_000)
    assert clean_up(store, 5_000, 10, lambda _: False).messages == 1
    store.commit()
    txn = store.settled_reader()
    assert txn.stat(store.tables.debounced)["entries"] == 0
    assert debounce(folder.open(), b"b", 9_000, 6_000) == 0


def test_retention_notes_no_key_that_was_not_debounced(store: Store) -> None:
    for number in range(3):
        hold(store, Sample(b"%d" % number, keys=(KEY,)), 1_000 + number)
    store.commit()
    assert fire(store, 1_001) == 2
    assert clean_up(store, 5_000, 10, lambda _: False).messages == 2
    store.commit()
    assert store.settled_reader().stat(store.tables.debounced)["entries"] == 0


@pytest.mark.parametrize("later", [b"", b"later"])
def test_what_is_kept_longer_does_not_count_again(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, later: bytes
) -> None:
    """The topic's own retention removes the last message long before those that it replaced, which were aborted."""
    monkeypatch.setattr(storage.debouncing, "MAX_LOOKED_AT", 3)
    store = folder.open()
    for number in range(9):
        debounce(store, b"%d" % number, 1_000, number)
    assert fire(store, 1_000) == 1
    if later:
        hold(store, Sample(later, keys=(KEY,)), 9_000)
        store.commit()
    assert clean_up(store, 0, 10, lambda _: False, lambda _: 5_000).messages == 1
    store.commit()
    assert count_candidates(store, TOPIC, KEY) <= 3
    assert debounce(store, b"next", 9_000, 6_000) == len(later) // 5
    store.commit()
    folder.check()
    store = folder.open()
    assert fire(store, 9_000) == 1
    while clean_up(store, 99_999, 10, lambda _: False).messages:
        store.commit()
    assert store.settled_reader().stat(store.tables.debounced)["entries"] == 0


def test_survives_a_crash(store: Store, folder: Folder) -> None:
    debounce(store, b"a", 1_000, 1)
    store.commit()
    debounce(store, b"lost", 1_000, 2)
    store = folder.reopen_after_crash()
    assert debounce(store, b"b", 1_000, 3) == 1
    store.commit()
    assert pending_ids(store) == [b"b"]
