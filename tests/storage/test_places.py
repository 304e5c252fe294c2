"""Places of messages: what was stored is found, whatever its sequence."""

from __future__ import annotations

from storage import Store
from storage.places import Place, Places
from tests.storage.sample import Sample, send

FAR = 1 << 62


def test_what_was_put_is_there(store: Store) -> None:
    for _ in range(5):
        send(store, Sample(b"x"))
    store.commit()
    expected = {
        1: Place(b"orders", 0, 5_000, 7),
        2: Place(b"orders", 0, 0, 7),
        3: Place(b"orders", 0, None, 7, 9_000),
        5: Place(b"bills", 3, None, -1, 0),
        99: Place(b"bills", 3, 1, -1),
        FAR: Place(b"bills", 4, None, 0, 2),
    }
    txn = store.settled_reader()
    places = Places(txn, store.tables)
    for sequence, place in expected.items():
        places[sequence] = place
    for sequence in (*range(8), 99, FAR, FAR + 1):
        assert places.get(sequence) == expected.get(sequence)
        assert (sequence in places) == (sequence in expected)
    places[1] = expected[3]
    assert places.get(1) == expected[3]


def test_a_store_without_messages(store: Store) -> None:
    txn = store.settled_reader()
    places = Places(txn, store.tables)
    assert 1 not in places
    places[1] = Place(b"t", 0, 1, 0)
    assert places.get(1) == Place(b"t", 0, 1, 0)
