"""What repairs are tested with: messages whose records tell when they are due, and what a folder holds of them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

from storage import (
    RecordReader,
    State,
    Store,
    find_by_sequence,
    find_faults,
    halves_to_check,
    scan_pending,
    scan_recurring,
)
from storage.parts import is_cut
from tests.storage.folder import Folder, change_table
from tests.storage.sample import Sample, body_of, fire, terms_of

NOW_MS = 50_000
"""The time of the repairs. What is due earlier has fired, or waits in a paused topic."""

DUE = b"due "
MUCH = random.Random(1).randbytes(10_000)
"""A body that cannot be packed into a single row."""
HALF = b"half"


def due_of(record: bytes) -> int:
    """Return the due time that a sample has in its body."""
    body = body_of(record)
    return int(body[len(DUE) :].split()[0]) if body.startswith(DUE) else 0


READER = RecordReader(
    terms_of, due_of, lambda record: body_of(record) == HALF, lambda table, name, value: True
)


class Held(NamedTuple):
    """What a folder holds once everything due has fired: due times by id, ids by topic, queue and offset, and ids of
    the messages that are in parts, by packed sequence."""

    cut: dict[bytes, bytes]
    pending: dict[bytes, int]
    queued: dict[tuple[bytes, int, int], bytes]
    aborted: set[bytes]
    halves: set[bytes]
    recurring: dict[bytes, int]


def later(message_id: bytes, due_ms: int, topic: bytes = b"orders", queue: int = 0) -> Sample:
    """Return a sample that has its due time in itself, as records of timed messages do."""
    keys = (b"all", b"of " + message_id)
    return Sample(message_id, topic, queue, keys, len(message_id), DUE + b"%d" % due_ms)


def held(store: Store) -> Held:
    """Fire what is due, and return what the store holds."""
    fire(store, NOW_MS)
    page = scan_pending(
        store,
        topic=None,
        begin_ms=0,
        end_ms=1 << 62,
        tag_hash=None,
        cursor=None,
        limit=1_000_000,
    )
    pending = {terms_of(found.record).message_id: found.due_ms for found in page.found}
    queued = {}
    for topic in (b"orders", b"mails", b"paused"):
        for number in range(4):
            queue = store.queue(topic, number)
            read = store.read(queue, queue.first, 1_000_000, 1 << 30)
            for one in read.messages:
                queued[topic, number, one.offset] = terms_of(one.record).message_id
    txn = store.settled_reader()
    numbers = list(txn.cursor(db=store.tables.messages).iternext(values=False))
    states = [find_by_sequence(store, int.from_bytes(number)) for number in numbers]
    cut = {
        number: terms_of(found.record).message_id
        for number, found in zip(numbers, states, strict=True)
        if found is not None and is_cut(txn.get(number, db=store.tables.messages) or b"")
    }
    aborted = {
        terms_of(found.record).message_id
        for found in states
        if found is not None and found.state is State.ABORTED
    }
    halves = {
        terms_of(half.record).message_id for half in halves_to_check(store, 1 << 62, 100, 1 << 30)
    }
    recurring = {one.name: one.next_ms for one in scan_recurring(store, None, None, 100).found}
    return Held(cut, pending, queued, aborted, halves, recurring)


def rows_of(data: Path, table: str) -> list[tuple[bytes, bytes]]:
    """Return the rows of a table."""
    rows: list[tuple[bytes, bytes]] = []
    change_table(data, table, lambda txn, database: rows.extend(txn.cursor(db=database)))
    return rows


def now_held(data: Path) -> Held:
    """Open a folder, which must be sound, fire what is due, and return what it holds."""
    folder = Folder(data)
    try:
        store = folder.open()
        assert find_faults(store) == []
        return held(store)
    finally:
        folder.close()
