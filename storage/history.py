"""What has fired, and what was aborted: listed by time, the latest first, as far back as retention keeps it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from struct import Struct
from typing import NamedTuple

from storage.keys import QUEUE_VALUE, IdRow, pack_u64, term
from storage.lookup import Found, FoundPage, State, make_found
from storage.queues import Queue, offset_at
from storage.reader import Reader
from storage.store import Store

MAX_LOOKED_THROUGH = 5_000
"""Messages that one page looks at, some 50 ms: a page that ends early says where to go on."""

_LAST = (1 << 63) - 1
_PLACE = Struct(">QIQ")
"""Where a page of fired messages ended: the time, the queue, the offset."""


class _Place(NamedTuple):
    """A row of a queue: when it entered, where it is, and its sequence and tag hash."""

    ms: int
    queue: int
    offset: int
    number: bytes
    tag_hash: int


def scan_fired(
    store: Store,
    queues: Sequence[Queue],
    *,
    begin_ms: int,
    end_ms: int,
    tag_hash: int | None,
    cursor: bytes | None,
    limit: int,
) -> FoundPage:
    """A page of the timed messages that are in these queues of one topic.

    :param begin_ms: first time of interest at which they entered their queue.
    :param end_ms: the time behind the last of interest.
    :param tag_hash: only messages whose tag has this hash.
    :param cursor: where the page before this one ended.
    """
    before = _PLACE.unpack(cursor.ljust(_PLACE.size, b"\0")[: _PLACE.size]) if cursor else None
    found: list[Found] = []
    txn = store.settled_reader()
    ways = [_backwards(store, txn, queue, begin_ms, end_ms, before) for queue in queues]
    for seen, place in enumerate(merge(*ways, reverse=True), 1):
        one = _fired(store, txn, place) if tag_hash in (None, place.tag_hash) else None
        if one is not None:
            found.append(one)
        if len(found) == limit or seen == MAX_LOOKED_THROUGH:
            return FoundPage(found, _PLACE.pack(*place[:3]))
    return FoundPage(found, None)


def scan_aborted(
    store: Store,
    *,
    topic: bytes | None,
    begin_ms: int,
    end_ms: int,
    cursor: bytes | None,
    limit: int,
) -> FoundPage:
    """A page of what was aborted, by the times when it was; the parameters are those of `scan_fired`."""
    found: list[Found] = []
    begin = pack_u64(begin_ms)
    txn = store.settled_reader()
    rows = txn.cursor(db=store.tables.aborted)
    before = cursor if cursor is not None else pack_u64(min(end_ms, _LAST))
    alive = rows.prev() if rows.set_range(before) else rows.last()
    seen = 0
    while alive and rows.key() >= begin:
        key = rows.key()
        seen += 1
        one = _aborted(store, txn, key[8:], topic)
        if one is not None:
            found.append(one)
        if len(found) == limit or seen == MAX_LOOKED_THROUGH:
            return FoundPage(found, key)
        alive = rows.prev()
    return FoundPage(found, None)


def _backwards(
    store: Store,
    txn: Reader,
    queue: Queue,
    begin_ms: int,
    end_ms: int,
    before: tuple[int, int, int] | None,
) -> Iterator[_Place]:
    """A queue's rows, from the last one before a time or a place to the first one of interest."""
    offset = offset_at(txn, store.tables, queue, min(end_ms, _LAST))
    if before is not None:
        ms, number, last_offset = before
        if queue.number == number:
            bound = last_offset
        else:
            bound = offset_at(txn, store.tables, queue, ms + (queue.number < number))
        offset = min(offset, bound)
    while offset > queue.first:
        offset -= 1
        value = txn.get(queue.prefix + pack_u64(offset), db=store.tables.queues)
        if value is None:
            return
        _, tag_hash, _, ms = QUEUE_VALUE.unpack(value)
        if ms < begin_ms:
            return
        yield _Place(ms, queue.number, offset, value[:8], tag_hash)


def _fired(store: Store, txn: Reader, place: _Place) -> Found | None:
    record, row = _read(store, txn, place.number)
    if record is None or row is None or not row.due_ms:
        return None
    number = int.from_bytes(place.number)
    return make_found(number, record, State.FIRED, row, place.ms, place.offset)


def _aborted(store: Store, txn: Reader, number: bytes, topic: bytes | None) -> Found | None:
    record, row = _read(store, txn, number)
    if record is None or row is None or topic not in (None, store.terms_of(record).topic):
        return None
    return make_found(int.from_bytes(number), record, State.ABORTED, row, row.aborted_ms)


def _read(store: Store, txn: Reader, number: bytes) -> tuple[bytes | None, IdRow | None]:
    """A message's record and what `ids` says of it."""
    record = txn.get(number, db=store.tables.messages)
    if record is None:
        return None, None
    message_id = term(store.terms_of(record).message_id)
    value = txn.get(message_id + b"\0" + number, db=store.tables.ids)
    return record, IdRow.unpack(value) if value is not None else None
