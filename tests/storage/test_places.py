"""Places of messages: what was noted is found, whatever its sequence, and takes little memory."""

from __future__ import annotations

import tracemalloc

from storage import Store
from storage.keys import pack_u64
from storage.places import Place, Places, Standing
from tests.storage.sample import Sample, send

FAR = 1 << 62

MANY = 20_000


def put_messages(store: Store, sequences: range) -> None:
    """Store nothing but the messages of some sequences."""
    txn = store.batch_transaction()
    txn.put_all(
        [(pack_u64(sequence), b"record") for sequence in sequences], db=store.tables.messages
    )


def test_what_was_noted_is_there(store: Store) -> None:
    for _ in range(5):
        send(store, Sample(b"x"))
    store.commit()
    expected = {
        1: Place(Standing.PENDING, 5_000, b"orders", 0, 7),
        2: Place(Standing.PENDING, 0, b"orders", 0, 7),
        3: Place(Standing.QUEUED, 9_000, b"orders", 0, 7),
        5: Place(Standing.QUEUED, 0, b"bills", 3, -1),
        99: Place(Standing.PENDING, 1, b"bills", 3, -1),
        FAR: Place(Standing.ABORTED, 2),
    }
    txn = store.settled_reader()
    places = Places(txn, store.tables)
    for sequence, place in expected.items():
        assert places.add(sequence, place)
    for sequence in (*range(8), 99, FAR, FAR + 1):
        found = [expected[sequence]] if sequence in expected else []
        assert list(places.of(sequence).values()) == found


def test_a_message_with_several(store: Store) -> None:
    send(store, Sample(b"x"))
    store.commit()
    for sequence in (1, 99):
        places = Places(store.settled_reader(), store.tables)
        assert places.add(sequence, Place(Standing.PENDING, 1, b"t"))
        assert places.add(sequence, Place(Standing.ABORTED, 2))
        assert not places.add(sequence, Place(Standing.PENDING, 3, b"t"))
        assert not places.add(sequence, Place(Standing.ABORTED, 4))
        assert places.of(sequence) == {
            Standing.PENDING: Place(Standing.PENDING, 3, b"t"),
            Standing.ABORTED: Place(Standing.ABORTED, 4),
        }


def test_a_store_without_messages(store: Store) -> None:
    places = Places(store.settled_reader(), store.tables)
    assert not places.of(1)
    assert places.add(1, Place(Standing.PENDING, 0, b"t"))
    assert places.of(1) == {Standing.PENDING: Place(Standing.PENDING, 0, b"t")}


def test_memory_does_not_depend_on_what_the_messages_are(store: Store) -> None:
    """Such as reminders among many messages that are gone, each with a tag of its own, and aborted ones."""
    put_messages(store, range(1, 1_000 * MANY, 1_000))
    tracemalloc.start()
    places = Places(store.reader(), store.tables)
    for number in range(MANY):
        standing = Standing.ABORTED if number % 2 else Standing.PENDING
        places.add(1 + 1_000 * number, Place(standing, number, b"t", 0, number))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    store.abandon()
    assert taken < 40 * MANY
