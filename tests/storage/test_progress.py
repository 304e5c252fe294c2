"""Consumers' offsets: visible at once, and on disk when they are part of a batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from storage import Store
from storage.keys import pack_u64
from tests.storage.folder import Folder
from tests.storage.sample import TOPIC, Sample, send


def test_is_known_at_once_and_kept_by_a_commit_that_includes_it(
    store: Store, reopen: Callable[[], Store]
) -> None:
    assert store.progress.get(b"g", TOPIC, 0) is None
    store.progress.note(b"g", TOPIC, 0, 5)
    store.progress.note(b"g", TOPIC, 1, 0)
    store.progress.note(b"g", TOPIC, 0, 7)
    store.progress.note(b"h", b"t", 0, (1 << 63) - 1)
    assert store.progress.get(b"g", TOPIC, 0) == 7
    assert (store.has_changes, store.progress.has_changes) == (False, True)
    store.commit()
    assert store.progress.has_changes
    store.progress.include()
    assert store.has_changes
    store.commit()
    assert not store.progress.has_changes
    expected = [
        (b"g", TOPIC, 0, 7),
        (b"g", TOPIC, 1, 0),
        (b"h", b"t", 0, (1 << 63) - 1),
    ]
    assert sorted(store.progress.rows()) == expected
    assert sorted(reopen().progress.rows()) == expected


def test_closing_writes_it(store: Store, reopen: Callable[[], Store]) -> None:
    store.progress.note(b"g", TOPIC, 0, 5)
    assert reopen().progress.get(b"g", TOPIC, 0) == 5


def test_the_same_again_is_no_change(store: Store) -> None:
    store.progress.note(b"g", TOPIC, 0, 5)
    store.progress.include()
    store.commit()
    store.progress.note(b"g", TOPIC, 0, 5)
    assert not store.progress.has_changes


def test_may_go_back(store: Store, reopen: Callable[[], Store]) -> None:
    for offset in (9, 3):
        store.progress.note(b"g", TOPIC, 0, offset)
        store.progress.include()
        store.commit()
    assert reopen().progress.get(b"g", TOPIC, 0) == 3


def test_is_kept_when_a_batch_is_abandoned(store: Store, reopen: Callable[[], Store]) -> None:
    store.progress.note(b"g", TOPIC, 0, 5)
    store.progress.include()
    send(store, Sample(b"a"))
    store.abandon()
    assert store.progress.has_changes
    store.commit()
    assert not store.progress.has_changes
    assert reopen().progress.get(b"g", TOPIC, 0) == 5


def test_a_batch_takes_those_that_have_waited_longest_and_no_more_than_it_may(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.progress.PLACES_AT_ONCE", 2)

    def on_disk() -> set[int]:
        return {queue for _, _, queue, _ in folder.reopen_after_crash().progress.rows()}

    store = folder.open()
    for queue in (4, 0, 3, 1, 2):
        store.progress.note(b"g", TOPIC, queue, 5)
    store.progress.note(b"g", TOPIC, 4, 6)
    assert store.progress.include() == 3
    store.abandon()
    store.commit()
    assert (store.has_changes, store.progress.has_changes) == (False, True)
    assert store.progress.include() == 2
    store.progress.advance(b"g", TOPIC, 9, 5)
    store.progress.advance(b"g", TOPIC, 2, 6)
    store.commit()
    assert store.progress.include() == 0
    assert on_disk() == {0, 1, 2, 3, 4, 9}


def test_closing_writes_all_of_it(
    store: Store, reopen: Callable[[], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.progress.PLACES_AT_ONCE", 2)
    for queue in range(5):
        store.progress.note(b"g", TOPIC, queue, 5)
    assert len(list(reopen().progress.rows())) == 5


def test_a_group_is_forgotten_and_others_with_similar_names_are_not(
    store: Store, reopen: Callable[[], Store]
) -> None:
    for group in (b"g", b"gg", b"h"):
        for topic in (b"t1", b"t2"):
            store.progress.note(group, topic, 0, 5)
    store.progress.include()
    store.commit()
    list(store.progress.forget_group(b"g"))
    assert store.progress.get(b"g", b"t1", 0) is None
    store.progress.note(b"g", b"t2", 0, 1)
    store.commit()
    expected = {(b"g", b"t2"), (b"gg", b"t1"), (b"gg", b"t2"), (b"h", b"t1"), (b"h", b"t2")}
    assert {(group, topic) for group, topic, _, _ in store.progress.rows()} == expected
    assert {(group, topic) for group, topic, _, _ in reopen().progress.rows()} == expected


def test_a_group_is_known_by_its_progress_alone(store: Store) -> None:
    store.progress.note(b"kept", TOPIC, 0, 5)
    store.progress.advance(b"refused", TOPIC, 0, 5)
    store.abandon()
    assert list(store.progress.groups()) == [b"kept"]
    assert store.progress.of_group(b"kept") == {TOPIC: {0: 5}}
    assert store.progress.of_group(b"refused") == {}
    list(store.progress.forget_topics(TOPIC))
    assert list(store.progress.groups()) == []
    store.abandon()
    assert store.progress.of_group(b"kept") == {TOPIC: {0: 5}}
    list(store.progress.forget_group(b"kept"))
    assert list(store.progress.groups()) == []


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_refused_batch_takes_back_only_its_own(store: Store, is_stored: bool) -> None:
    store.progress.advance(b"g", TOPIC, 0, 5)
    if is_stored:
        store.commit()
    else:
        store.abandon()
    store.progress.note(b"g", TOPIC, 0, 7)
    store.abandon()
    assert store.progress.get(b"g", TOPIC, 0) == 7


def test_what_is_forgotten_does_not_come_back_though_other_progress_is_noted(
    folder: Folder,
) -> None:
    store = folder.open()
    store.progress.note(b"g", TOPIC, 0, 5)
    store.progress.include()
    store.commit()
    store.progress.note(b"h", TOPIC, 0, 7)
    list(store.progress.forget_group(b"g"))
    store.commit()
    assert list(folder.reopen_after_crash().progress.rows()) == [(b"h", TOPIC, 0, 7)]


@pytest.mark.parametrize(
    ("group", "topic", "queue", "offset"),
    [
        (b"g", TOPIC, 0, -1),
        (b"g", TOPIC, 0, 1 << 63),
        (b"g", TOPIC, -1, 5),
        (b"g", TOPIC, 1 << 32, 5),
        (b"g\0h", TOPIC, 0, 5),
        (b"g", b"t\0u", 0, 5),
        (b"g" * 255, b"t" * 251, 0, 5),
    ],
)
def test_what_can_never_be_stored_is_refused_and_fails_no_batch(
    store: Store,
    reopen: Callable[[], Store],
    group: bytes,
    topic: bytes,
    queue: int,
    offset: int,
) -> None:
    with pytest.raises(ValueError, match="is not a"):
        store.progress.note(group, topic, queue, offset)
    assert store.progress.get(group, topic, queue) is None
    send(store, Sample(b"a"))
    store.commit()
    assert list(reopen().progress.rows()) == []


def test_the_longest_names(store: Store, reopen: Callable[[], Store]) -> None:
    store.progress.note(b"g" * 255, b"t" * 250, (1 << 32) - 1, 5)
    store.progress.include()
    store.commit()
    assert reopen().progress.get(b"g" * 255, b"t" * 250, (1 << 32) - 1) == 5


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"short", pack_u64(1)),
        (b"\xff\0orders\0\0\0\0\0", pack_u64(1)),
        (b"G\0orders\0\0\0\0\1", b"short"),
        (b"G\0orders\0\0\0\0\1", b"\xff" * 8),
    ],
)
def test_a_row_that_cannot_be_read_keeps_no_other_from_being_known(
    folder: Folder, key: bytes, value: bytes
) -> None:
    """Such a folder once could not be opened."""
    store = folder.open()
    store.progress.note(b"G", b"orders", 0, 7)
    store.progress.include()
    store.commit()
    store = folder.damage("offsets", key, value)
    assert list(store.progress.rows()) == [(b"G", b"orders", 0, 7)]
    assert store.damaged == {key}
    folder.damage("offsets", key, None)


def test_a_topics_progress_is_forgotten_for_all_groups(folder: Folder) -> None:
    store = folder.open()
    store.progress.note(b"g1", b"gone", 0, 5)
    store.progress.note(b"g2", b"gone", 1, 6)
    store.progress.note(b"g1", b"kept", 0, 7)
    store.progress.include()
    store.commit()
    list(store.progress.forget_topics(b"gone"))
    store.commit()
    expected = [(b"g1", b"kept", 0, 7)]
    assert list(store.progress.rows()) == expected
    assert list(folder.open().progress.rows()) == expected
