"""The newest time that a store knows of."""

from __future__ import annotations

import pytest

from storage import Store, newest_stored_ms
from storage.keys import queue_prefix
from tests.storage.folder import Folder
from tests.storage.sample import TOPIC, Sample, fire, hold, hold_all, send


def test_the_newest_time_is_also_that_of_what_only_waits(store: Store) -> None:
    send(store, Sample(b"a"), stored_ms=10)
    hold(store, Sample(b"b"), 5_000, stored_ms=30)
    store.commit()
    assert newest_stored_ms(store) == 30


@pytest.mark.parametrize("queue", [0, 1, 2])
def test_the_newest_time_may_be_that_of_any_queue(store: Store, queue: int) -> None:
    hold(store, Sample(b"fired", queue=queue), 5_000)
    for number in range(3):
        send(store, Sample(b"sent", queue=number), stored_ms=10)
    send(store, Sample(b"last", b"other"), stored_ms=10)
    store.commit()
    fire(store, 5_000)
    assert newest_stored_ms(store) == 5_000


@pytest.mark.parametrize("key", [b"x", queue_prefix(TOPIC, 1) + bytes(8)])
def test_the_newest_time_is_none_of_a_queue_that_cannot_be_read(folder: Folder, key: bytes) -> None:
    store = folder.open()
    hold_all(store, [b"fired"], 5_000)
    fire(store, 5_000)
    store = folder.damage("queues", key, b"\xff" * 7)
    assert newest_stored_ms(store) == 5_000
    folder.damage("queues", key, None)
