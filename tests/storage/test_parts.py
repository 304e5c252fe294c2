"""Records that do not fit into the page that is being filled are cut into parts, which fill pages."""

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
    remove_half,
    take_half,
)
from storage.keys import PART_KEY, U64, pack_u64
from storage.parts import Cutter, is_cut, touch_records
from storage.read_ahead import Rows
from storage.reader import Reader
from tests.storage.folder import Folder
from tests.storage.sample import (
    FOREVER_MS,
    TOPIC,
    Sample,
    body_of,
    clean_up,
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
HEADER = 5
"""Bytes in front of the beginning of a record that was cut."""
ROW = 10
"""Bytes of LMDB's for a row."""


def noise(size: int) -> bytes:
    """Return a body that cannot be packed."""
    return random.Random(size).randbytes(size)


def entries(store: Store, table: lmdb._Database) -> int:
    return store.reader().stat(table)["entries"]


def no_topic(_topic: bytes) -> bool:
    return False


SIZES = pytest.mark.parametrize("size", [250, 1_400, 1_900, 2_021, 2_100, 4_300, 70_000, 4 << 20])


@given(st.lists(st.integers(min_value=1, max_value=20_000), min_size=1, max_size=20))
def test_parts_have_all_bytes_in_order(sizes: list[int]) -> None:
    cutter = Cutter(PAGE)
    for number, size in enumerate(sizes):
        # No record begins with 0xff.
        record = b"(" + noise(size - 1)
        rows: list[tuple[bytes, bytes]] = []
        value = cutter.cut(pack_u64(number), record, rows)
        assert is_cut(value) is bool(rows)
        rest = b"".join(part for _, part in rows)
        assert (value[HEADER:] if rows else value) + rest == record
        assert [PART_KEY.unpack(key) for key, _ in rows] == [
            (number, part) for part in range(len(rows))
        ]


def fill(store: Store) -> float:
    """Return how full the pages of records are. One page of each table may be the last one."""
    txn, tables = store.reader(), store.tables
    used = pages = 0
    for table in (tables.messages, tables.parts):
        stat = txn.stat(table)
        pages += stat["leaf_pages"] + stat["overflow_pages"]
        used += sum(len(key) + len(value) + ROW for key, value in txn.cursor(db=table))
        # The row of a value that has a page of its own has the page's number.
        used += stat["overflow_pages"] * U64.size
    return used / (pages - 2) / (PAGE - 16)


@pytest.mark.parametrize(
    "sizes", [[250], [1_400], [2_021], [2_100], [4_300], [5_000], [70_000], [1_400, 200, 5_000]]
)
def test_pages_are_full(folder: Folder, sizes: list[int]) -> None:
    store = folder.open()
    for number, message_id in enumerate(numbered(600)):
        hold(store, Sample(message_id, body=noise(sizes[number % len(sizes)])), 5_000)
        if number % 50 == 0:
            store.commit()
        if number == 300:
            # What was counted is lost, in the middle of a page.
            store = folder.reopen_after_crash()
    store.commit()
    assert fill(store) > 0.98


def test_the_end_of_a_record_that_is_larger_than_a_page_is_whole_pages(store: Store) -> None:
    """A page of LMDB's own for a value has the header of a page, and no other row."""
    for message_id in numbered(20):
        hold(store, Sample(message_id, body=noise(70_000)), 5_000)
    store.commit()
    txn, parts = store.reader(), store.tables.parts
    assert txn.stat(parts)["overflow_pages"] == 20 * (70_000 // (PAGE - 16))
    sizes = [len(part) for _, part in txn.cursor(db=parts)]
    assert sizes.count(PAGE - 16) == txn.stat(parts)["overflow_pages"]


def test_pages_are_full_of_any_sizes(store: Store) -> None:
    sizes = random.Random(1)
    for message_id in numbered(3_000):
        hold(store, Sample(message_id, body=sizes.randbytes(sizes.randrange(2_500))), 5_000)
    store.commit()
    assert fill(store) > 0.98


def test_pages_are_full_if_some_messages_are_halves_of_transactions(store: Store) -> None:
    sizes = random.Random(1)
    for number, message_id in enumerate(numbered(3_000)):
        message = Sample(message_id, body=sizes.randbytes(sizes.randrange(1_900)))
        if number % 4:
            hold(store, message, 5_000)
        else:
            put_half(store, store.new_sequence(), message.record(1), 100)
    store.commit()
    assert fill(store) > 0.95


def test_pages_are_full_if_each_transaction_is_committed_before_the_next_begins(
    store: Store,
) -> None:
    """Without this, LMDB took a record from the page before when a half that had begun a page was deleted."""
    sizes = random.Random(1)
    queue = store.queue(TOPIC, 0)
    for message_id in numbered(500):
        sequence = store.new_sequence()
        message = Sample(message_id, body=sizes.randbytes(sizes.randrange(400)))
        put_half(store, sequence, message.record(1), 100)
        store.commit()
        assert take_half(store, sequence)
        store.append(queue, sequence, message.record(2), 0, message_id, (), 2)
        store.commit()
    assert fill(store) > 0.9


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
        clean_up(store, 3, 1, no_topic)
        store.commit()
    assert ids_in(store) == numbered(6)[3:]
    assert find_faults(store) == []
    while clean_up(store, FOREVER_MS, 100, no_topic).messages:
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
    assert remove_half(store, second)
    store.commit()
    assert entries(store, store.tables.parts) == 0
    assert ids_in(store) == [b"half"]
    assert find_faults(store) == []


Damage = tuple[str, bytes, bytes | None]
"""A table, a key, and the value that it gets there."""


def lose_first(number: bytes) -> Damage:
    return "parts", number + (0).to_bytes(4), None


def lose_last(number: bytes) -> Damage:
    return "parts", number + (1).to_bytes(4), None


def add_one(number: bytes) -> Damage:
    return "parts", number + (2).to_bytes(4), b"x"


def lose_size(number: bytes) -> Damage:
    return "messages", number, b"\xff"


@pytest.mark.parametrize("damage", [lose_first, lose_last, add_one, lose_size])
def test_one_whose_parts_do_not_fit_cannot_be_read(
    folder: Folder, damage: Callable[[bytes], Damage]
) -> None:
    """Retention leaves it to a repair, which keeps what is left of it."""
    store = folder.open()
    for message_id in numbered(3):
        send(store, Sample(message_id, body=noise(10_000)))
    store.commit()
    number = pack_u64(2)
    store = folder.damage(*damage(number))
    assert ids_in(store) == [b"m00000", b"m00002"]
    assert store.damaged == {number}
    assert find_faults(store) == ["message 2: its record cannot be read"]
    assert clean_up(store, FOREVER_MS, 100, no_topic) == (3, None)
    store.commit()
    assert ids_in(store) == []
    txn, tables = store.reader(), store.tables
    assert [key for key, _ in txn.cursor(db=tables.messages)] == [number]
    assert {key[:8] for key, _ in txn.cursor(db=tables.parts)} == {number}
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


class Touched:
    """Notes what is to be read ahead.

    :param cold: whether rows seem not to be in memory.
    """

    def __init__(self, *, cold: bool = False) -> None:
        self.cold = cold
        self.wanted: list[Rows] = []

    def __call__(self, _txn: Reader, *wanted: Rows) -> bool:
        self.wanted += wanted
        return self.cold


def test_all_parts_of_large_records_are_read_ahead(store: Store) -> None:
    sequences = [
        hold(store, Sample(message_id, body=noise(size)), 5_000)
        for message_id, size in ((b"small", 10), (b"large", 5_000), (b"larger", 70_000))
    ]
    store.commit()
    touched = Touched()
    numbers = [*map(pack_u64, sequences), pack_u64(99)]
    touch_records(touched, store.reader(), store.tables, numbers, numbers)
    records, parts = touched.wanted
    assert records == Rows(store.tables.messages, numbers)
    assert parts.table == store.tables.parts
    there = set(store.reader().cursor(db=store.tables.parts).iternext(values=False))
    assert there <= set(parts.keys)
    assert len(parts.keys) <= len(there) + 2 * 3


@pytest.mark.parametrize("cold", [False, True])
def test_parts_of_small_records_are_read_ahead_if_their_rows_were_on_disk(
    store: Store, cold: bool
) -> None:
    numbers = [
        pack_u64(hold(store, Sample(message_id, body=noise(1_400)), 5_000))
        for message_id in numbered(10)
    ]
    store.commit()
    touched = Touched(cold=cold)
    touch_records(touched, store.reader(), store.tables, numbers, [])
    wanted = {key for rows in touched.wanted[1:] for key in rows.keys}
    there = set(store.reader().cursor(db=store.tables.parts).iternext(values=False))
    assert there
    assert wanted == (there if cold else set())


def test_a_size_that_cannot_be_right_costs_little(store: Store) -> None:
    store.batch_transaction().put(NUMBER, b"\xff" * 5, db=store.tables.messages)
    touched = Touched()
    touch_records(touched, store.reader(), store.tables, [NUMBER], [NUMBER])
    assert len(touched.wanted[1].keys) < 40_000
    store.abandon()
