"""Popped messages: noted, acknowledged and due again; and the progress that goes with them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import (
    Pop,
    StorageError,
    Store,
    due_pops,
    find_faults,
    put_pops,
    take_pop,
)
from storage.keys import MAX_POP_NAMES, pack_u64, pop_key, split_pop_key
from tests.storage.faults import commits_fail
from tests.storage.folder import Folder
from tests.storage.sample import TOPIC, Sample, send

NAMES = st.binary(min_size=1, max_size=40).filter(lambda name: b"\0" not in name)


@given(
    st.integers(0, 1 << 62), NAMES, NAMES, st.integers(0, (1 << 32) - 1), st.integers(0, 1 << 62)
)
def test_keys_are_read_back(
    back_ms: int, group: bytes, topic: bytes, queue: int, offset: int
) -> None:
    pop = (back_ms, group, topic, queue, offset)
    assert split_pop_key(pop_key(*pop)) == pop


def test_the_longest_names_are_a_key_of_lmdb() -> None:
    assert len(pop_key(0, b"g" * 200, b"t" * (MAX_POP_NAMES - 200), 0, 0)) == 511


def popped(store: Store, offset: int, back_ms: int) -> Pop:
    """Pop a message and commit that."""
    pop = Pop(back_ms, b"G", TOPIC, 0, offset)
    put_pops(store, [pop], 5)
    store.commit()
    return pop


def test_they_are_due_in_order_over_a_restart(folder: Folder) -> None:
    store = folder.open()
    for _ in range(3):
        send(store, Sample(b"m"))
    store.commit()
    third, first, second = (popped(store, n, ms) for n, ms in ((0, 30), (1, 10), (2, 20)))
    store = folder.open()
    assert due_pops(store, 9, 9) == []
    assert [due.pop for due in due_pops(store, 20, 1)] == [first]
    assert [due.pop for due in due_pops(store, 20, 9)] == [first, second]
    assert take_pop(store, first)
    assert take_pop(store, second)
    assert [(due.pop, due.popped_ms) for due in due_pops(store, 30, 9)] == [(third, 5)]
    store.commit()
    assert due_pops(store, 29, 9) == []


def test_whether_one_was_put_off_is_kept(folder: Folder) -> None:
    store = folder.open()
    send(store, Sample(b"m"))
    put_pops(store, [Pop(10, b"G", TOPIC, 0, 0)], 5, suspended=True)
    put_pops(store, [Pop(11, b"G", TOPIC, 0, 0)], 6)
    store.commit()
    store = folder.open()
    assert [due[1:] for due in due_pops(store, 20, 9)] == [(5, True), (6, False)]
    assert find_faults(store) == []


def test_an_acknowledged_one_is_gone(store: Store) -> None:
    send(store, Sample(b"m"))
    store.commit()
    pop = popped(store, 0, 10)
    assert take_pop(store, pop)
    assert not take_pop(store, pop)
    store.commit()
    assert due_pops(store, 1 << 60, 9) == []


def test_progress_of_a_refused_batch_is_taken_back(store: Store) -> None:
    send(store, Sample(b"m"))
    store.commit()
    store.progress.note(b"G", TOPIC, 1, 7)
    put_pops(store, [Pop(10, b"G", TOPIC, 0, 0)], 5)
    store.progress.advance(b"G", TOPIC, 0, 1)
    store.progress.advance(b"G", TOPIC, 1, 8)
    store.progress.advance(b"G", TOPIC, 1, 9)
    with commits_fail(store), pytest.raises(StorageError):
        store.commit()
    assert store.progress.get(b"G", TOPIC, 0) is None
    assert store.progress.get(b"G", TOPIC, 1) == 7
    assert due_pops(store, 1 << 60, 9) == []


def test_faults_are_found(store: Store) -> None:
    txn = store.batch_transaction()
    txn.put(pop_key(10, b"G", TOPIC, 0, 3), pack_u64(11), db=store.tables.pops)
    assert len(find_faults(store)) == 2
    assert take_pop(store, Pop(10, b"G", TOPIC, 0, 3))
    assert find_faults(store) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"\0\0\1", pack_u64(5)),
        (pop_key(5, b"G", TOPIC, 0, 0), b"short"),
        (pop_key(5, b"\xff", TOPIC, 0, 0), pack_u64(5)),
        (pop_key(5, b"G", TOPIC, 0, 0) + b"\xfe", pack_u64(5)),
    ],
)
def test_a_row_that_cannot_be_read_keeps_no_other_from_coming_back(
    folder: Folder, key: bytes, value: bytes
) -> None:
    """Such a row once made every round fail, with a traceback each second."""
    store = folder.open()
    for _ in range(2):
        send(store, Sample(b"m"))
    store.commit()
    pop = popped(store, 1, 10)
    store = folder.damage("pops", key, value)
    assert [due.pop for due in due_pops(store, 20, 9)] == [pop]
    assert take_pop(store, pop)
    store.commit()
    assert due_pops(store, 1 << 60, 9) == []
    assert store.damaged == {key}
    folder.damage("pops", key, None)
