"""Records that are too large to share a page are cut into parts, which fill pages."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable

import lmdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import (
    Store,
    abort,
    find_by_id,
    find_faults,
    put_half,
    read_pending,
    remove_expired,
    take_half,
)
from storage.keys import PART_KEY, pack_u64
from storage.parts import LARGE, Cutter, is_cut, touch_records
from storage.read_ahead import Rows
from tests.storage.folder import Folder
from tests.storage.sample import (
    FOREVER_MS,
    TOPIC,
    Sample,
    body_of,
    fire,
    hold,
    hold_all,
    ids_in,
    numbered,
    pending_ids,
    send,
    terms_of,
)

PAGE = 4_096
NUMBER = pack_u64(7)


def noise(size: int) -> bytes:
    """Return a body that cannot be packed."""
    return random.Random(size).randbytes(size)


def entries(store: Store, table: lmdb._Database) -> int:
    return store.reader().stat(table)["entries"]


def no_topic(_topic: bytes) -> bool:
    return False


SIZES = pytest.mark.parametrize("size", [1_900, 2_021, 2_100, 4_300, 70_000, 4 << 20])


@given(st.lists(st.integers(min_value=1, max_value=20_000), min_size=1, max_size=20))
def test_parts_have_all_bytes_in_order(sizes: list[int]) -> None:
    cutter = Cutter(PAGE)
    for number, size in enumerate(sizes):
        record = noise(size)
        value, rows = cutter.cut(pack_u64(number), record)
        assert is_cut(value)
        assert b"".join(part for _, part in rows) == record
        assert [PART_KEY.unpack(key) for key, _ in rows] == [
            (number, part) for part in range(len(rows))
        ]


@pytest.mark.parametrize("size", [2_100, 4_300, 5_000, 9_000, 70_000])
def test_pages_are_full(store: Store, size: int) -> None:
    for message_id in numbered(300):
        hold(store, Sample(message_id, body=noise(size)), 5_000)
    store.commit()
    assert store.reader().stat(store.tables.messages)["overflow_pages"] == 0
    stat = store.reader().stat(store.tables.parts)
    assert stat["overflow_pages"] == 0
    parts = store.reader().cursor(db=store.tables.parts).iternext(keys=False)
    assert sum(map(len, parts)) > 0.97 * PAGE * stat["leaf_pages"]


@pytest.mark.parametrize("size", [4_300, 70_000])
def test_pages_are_full_after_a_crash(folder: Folder, size: int) -> None:
    store = folder.open()
    for message_id in numbered(100):
        hold(store, Sample(message_id, body=noise(size)), 5_000)
        store.commit()
    store = folder.reopen_after_crash()
    parts = store.reader().cursor(db=store.tables.parts).iternext(keys=False)
    pages = store.reader().stat(store.tables.parts)["leaf_pages"]
    assert sum(map(len, parts)) > 0.97 * PAGE * pages


def test_what_fits_into_a_shared_page_is_not_cut(store: Store) -> None:
    most = store.cutter.most_whole
    record = Sample(b"a", body=noise(most)).record(1)
    for message_id, size in ((b"a", 2 * most - len(record)), (b"b", 2 * most - len(record) + 1)):
        send(store, Sample(message_id, body=noise(size)))
        store.commit()
        is_one_row = message_id == b"a"
        assert (entries(store, store.tables.parts) == 0) is is_one_row
        assert store.reader().stat(store.tables.messages)["overflow_pages"] == 0


@SIZES
def test_it_is_read_as_it_was_stored(folder: Folder, size: int) -> None:
    store = folder.open()
    for message_id, due_ms in ((b"fires", 5_000), (b"waits", 9_000), (b"goes", 9_000)):
        hold(store, Sample(message_id, body=noise(size)), due_ms)
    send(store, Sample(b"now", body=noise(size)))
    abort(store, b"goes", 100)
    store.commit()
    for reopen in (None, folder.reopen_after_crash, folder.open):
        store = reopen() if reopen is not None else store
        fire(store, 5_000)
        queue = store.queue(TOPIC, 0)
        page = store.read(queue, 0, 100, 1 << 30)
        assert [body_of(one.record) for one in page.messages] == [noise(size)] * 2
        for message_id in (b"fires", b"waits", b"goes", b"now"):
            [found] = find_by_id(store, message_id)
            assert body_of(found.record) == noise(size)
        assert find_faults(store) == []
    folder.close()
    [pending] = read_pending(folder.path, terms_of)
    assert body_of(pending.record) == noise(size)


@SIZES
def test_retention_removes_all_of_it(store: Store, size: int) -> None:
    for number, message_id in enumerate(numbered(6)):
        send(store, Sample(message_id, body=noise(size)), stored_ms=number)
    store.commit()
    for _ in range(3):
        remove_expired(store, 3, 1, no_topic)
        store.commit()
    assert ids_in(store) == numbered(6)[3:]
    assert find_faults(store) == []
    while remove_expired(store, FOREVER_MS, 100, no_topic).messages:
        store.commit()
    assert entries(store, store.tables.parts) == entries(store, store.tables.messages) == 0


def test_a_batch_that_is_dropped_leaves_nothing(store: Store) -> None:
    hold(store, Sample(b"dropped", body=noise(5_000)), 5_000)
    store.abandon()
    hold(store, Sample(b"kept", body=noise(6_000)), 5_000)
    store.commit()
    assert pending_ids(store) == [b"kept"]
    assert find_faults(store) == []


def test_a_message_of_a_transaction_is_not_cut(store: Store) -> None:
    first, second = store.new_sequence(), store.new_sequence()
    message = Sample(b"half", body=noise(5_000))
    for sequence in (first, second):
        put_half(store, sequence, message.record(1), 100)
    store.commit()
    assert take_half(store, first)
    store.append(
        store.queue(TOPIC, 0), first, message.record(2), 0, message.message_id, (), stored_ms=2
    )
    assert take_half(store, second)
    store.commit()
    assert entries(store, store.tables.parts) == 0
    assert ids_in(store) == [b"half"]
    assert find_faults(store) == []


def lose_first(number: bytes) -> tuple[bytes, bytes | None]:
    return number + (0).to_bytes(4), None


def lose_last(number: bytes) -> tuple[bytes, bytes | None]:
    return number + (2).to_bytes(4), None


def add_one(number: bytes) -> tuple[bytes, bytes | None]:
    return number + (3).to_bytes(4), b"x"


@pytest.mark.parametrize("damage", [lose_first, lose_last, add_one])
def test_one_whose_parts_do_not_fit_cannot_be_read(
    folder: Folder, damage: Callable[[bytes], tuple[bytes, bytes | None]]
) -> None:
    store = folder.open()
    for message_id in numbered(3):
        send(store, Sample(message_id, body=noise(5_000)))
    store.commit()
    number = pack_u64(2)
    store = folder.damage("parts", *damage(number))
    assert ids_in(store) == [b"m00000", b"m00002"]
    assert store.damaged == {number}
    assert find_faults(store) == ["message 2: its record cannot be read"]
    remove_expired(store, FOREVER_MS, 100, no_topic)
    store.commit()
    folder.close()
    shutil.rmtree(folder.path)


def test_parts_without_a_message_are_a_fault(folder: Folder) -> None:
    store = folder.open()
    hold_all(store, numbered(2), 5_000)
    for sequence in (2, 9):
        key = pack_u64(sequence) + bytes(4)
        store = folder.damage("parts", key, b"x")
        assert find_faults(store) == [f"message {sequence} has parts, but it was not cut"]
        if sequence == 9:
            # The parts of new messages come behind it.
            assert store.next_sequence == 10
            hold(store, Sample(b"large", body=noise(5_000)), 5_000)
            store.commit()
            assert pending_ids(store) == [*numbered(2), b"large"]
        folder.damage("parts", key, None)


def test_all_parts_of_large_records_are_read_ahead(store: Store) -> None:
    sequences = [
        hold(store, Sample(message_id, body=noise(size)), 5_000)
        for message_id, size in ((b"small", 10), (b"large", 5_000), (b"larger", 70_000))
    ]
    store.commit()
    wanted: list[Rows] = []
    numbers = [*map(pack_u64, sequences), pack_u64(99)]
    touch_records(
        lambda _, rows: wanted.append(rows), store.reader(), store.tables, numbers, numbers
    )
    records, parts = wanted
    assert records == Rows(store.tables.messages, numbers)
    assert parts.table == store.tables.parts
    there = set(store.reader().cursor(db=store.tables.parts).iternext(values=False))
    assert there <= set(parts.keys)
    assert len(parts.keys) < len(there) + 5
    assert store.cutter.most_whole >= LARGE


def test_a_size_that_cannot_be_right_costs_little(store: Store) -> None:
    store.batch_transaction().put(NUMBER, b"\xff" * 5, db=store.tables.messages)
    wanted: list[Rows] = []
    touch_records(
        lambda _, rows: wanted.append(rows), store.reader(), store.tables, [NUMBER], [NUMBER]
    )
    assert len(wanted[1].keys) < 40_000
    store.abandon()
