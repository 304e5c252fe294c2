"""What has fired, and what was aborted: listed by time, the latest first, as far back as retention keeps it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import islice
from struct import Struct
from typing import NamedTuple

from storage.keys import QUEUE_VALUE, pack_u64
from storage.lookup import MAX_FOUND_BYTES, Found, FoundPage, State, make_found
from storage.noted import READ_AT_ONCE, read_noted
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
    """A page of the timed messages that are in these queues of one topic; as with `scan_pending`, it ends early where
    they are large.

    :param begin_ms: first time of interest at which they entered their queue.
    :param end_ms: the time behind the last of interest.
    :param tag_hash: only messages whose tag has this hash.
    :param cursor: where the page before this one ended.
    """
    before = _PLACE.unpack(cursor.ljust(_PLACE.size, b"\0")[: _PLACE.size]) if cursor else None
    found: list[Found] = []
    txn = store.settled_reader()
    ways = [_backwards(store, txn, queue, begin_ms, end_ms, before) for queue in queues]
    places = merge(*ways, reverse=True)
    seen = size = 0
    while some := list(islice(places, _at_once(limit - len(found), seen))):
        wanted = {one.number: one for one in some if tag_hash in (None, one.tag_hash)}
        for noted in read_noted(store, txn, wanted):
            record, row, place = noted.record, noted.row, wanted[noted.number]
            if row.due_ms:
                state = State.FIRED
                found.append(make_found(noted.sequence, record, state, row, place.ms, place.offset))
                size += len(record)
            if size >= MAX_FOUND_BYTES:
                return FoundPage(found, _PLACE.pack(*place[:3]))
        seen += len(some)
        if len(found) == limit or seen == MAX_LOOKED_THROUGH:
            return FoundPage(found, _PLACE.pack(*some[-1][:3]))
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
    txn = store.settled_reader()
    before = cursor if cursor is not None else pack_u64(min(end_ms, _LAST))
    keys = _aborts(store, txn, pack_u64(begin_ms), before)
    seen = size = 0
    while some := list(islice(keys, _at_once(limit - len(found), seen))):
        wanted = {key[8:]: key for key in some}
        for noted in read_noted(store, txn, wanted):
            record, row = noted.record, noted.row
            if topic in (None, noted.terms.topic):
                state = State.ABORTED
                found.append(make_found(noted.sequence, record, state, row, row.aborted_ms))
                size += len(record)
            if size >= MAX_FOUND_BYTES:
                return FoundPage(found, wanted[noted.number])
        seen += len(some)
        if len(found) == limit or seen == MAX_LOOKED_THROUGH:
            return FoundPage(found, some[-1])
    return FoundPage(found, None)


def _at_once(lacking: int, seen: int) -> int:
    """How many messages to read together for a page that lacks so many and has looked at so many."""
    return min(lacking, READ_AT_ONCE, MAX_LOOKED_THROUGH - seen)


def _aborts(store: Store, txn: Reader, begin: bytes, before: bytes) -> Iterator[bytes]:
    """The keys of `aborted`, from the last one before a key to the first from another on."""
    rows = txn.cursor(db=store.tables.aborted)
    alive = rows.prev() if rows.set_range(before) else rows.last()
    while alive and rows.key() >= begin:
        yield rows.key()
        alive = rows.prev()


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
