"""Lists fired and aborted messages by time, the latest first, as far back as retention keeps them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from itertools import islice
from struct import Struct
from typing import NamedTuple

from storage.keys import QUEUE_VALUE, pack_u64
from storage.lookup import MAX_FOUND_BYTES, Found, FoundPage, State, make_found
from storage.noted import READ_AT_ONCE, Noted, read_noted
from storage.queues import Queue, offset_at
from storage.reader import Reader
from storage.shapes import is_moment, is_queued_value
from storage.store import Store

MAX_LOOKED_THROUGH = 500
"""Messages that one page examines, some 10 ms. A page that ends early says where to continue."""

_LAST = (1 << 63) - 1
_PLACE = Struct(">QIQ")
"""The end of a page of fired messages: time, queue, offset."""


class _Place(NamedTuple):
    """A message that may belong to the page. `cursor` is the cursor of a page that ends with it, and gives the order.
    `number` is its packed sequence, `moved_ms` when it fired or was aborted, and `offset` its offset if it is in its
    queue."""

    cursor: bytes
    number: bytes
    moved_ms: int
    offset: int = -1
    is_wanted: bool = True


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
    """Return a page of the timed messages in these queues of one topic. As with `scan_pending`, the page ends early if
    the messages are large.

    :param begin_ms: the first time wanted at which they entered their queue.
    :param end_ms: the time just after the last one wanted.
    :param tag_hash: only messages whose tag has this hash.
    :param cursor: where the previous page ended, which may be a place in the queues of another worker.
    """
    before = _PLACE.unpack(cursor.ljust(_PLACE.size, b"\0")[: _PLACE.size]) if cursor else None
    txn = store.settled_reader()
    ways = [_backwards(store, txn, queue, begin_ms, end_ms, before, tag_hash) for queue in queues]
    places = merge(*ways, reverse=True)
    return _page(store, txn, places, limit, State.FIRED, lambda noted: noted.row.due_ms > 0)


def scan_aborted(
    store: Store,
    *,
    topic: bytes | None,
    begin_ms: int,
    end_ms: int,
    cursor: bytes | None,
    limit: int,
    readable: Callable[[bytes], bool] | None = None,
) -> FoundPage:
    """Return a page of aborted messages, by the times of their aborts. The parameters are those of `scan_fired`.

    :param readable: when given, only messages of topics that it accepts.
    """
    txn = store.settled_reader()
    before = cursor if cursor is not None else pack_u64(min(end_ms, _LAST))
    places = _aborts(store, txn, pack_u64(begin_ms), before)
    return _page(
        *(store, txn, places, limit, State.ABORTED),
        lambda noted: (
            topic in (None, noted.terms.topic) and (readable is None or readable(noted.terms.topic))
        ),
    )


def _page(
    store: Store,
    txn: Reader,
    places: Iterator[_Place],
    limit: int,
    state: State,
    is_wanted: Callable[[Noted], bool],
) -> FoundPage:
    """Return the first wanted messages of these places, which are all in this state, up to the size of one page."""
    found: list[Found] = []
    seen = size = 0
    while some := list(
        islice(places, min(limit - len(found), READ_AT_ONCE, MAX_LOOKED_THROUGH - seen))
    ):
        wanted = {place.number: place for place in some if place.is_wanted}
        for noted in read_noted(store, txn, wanted):
            record, place = noted.record, wanted[noted.number]
            if is_wanted(noted):
                moved_ms, offset = place.moved_ms, place.offset
                found.append(make_found(noted.sequence, record, state, noted.row, moved_ms, offset))
                size += len(record)
            if size >= MAX_FOUND_BYTES:
                return FoundPage(found, place.cursor)
        seen += len(some)
        if len(found) == limit or seen == MAX_LOOKED_THROUGH:
            return FoundPage(found, some[-1].cursor)
    return FoundPage(found, None)


def _aborts(store: Store, txn: Reader, begin: bytes, before: bytes) -> Iterator[_Place]:
    """Return the aborts from the last one before the key `before` back to the first at or after `begin`."""
    rows = txn.cursor(db=store.tables.aborted)
    alive = rows.prev() if rows.set_range(before) else rows.last()
    while alive and rows.key() >= begin:
        key = rows.key()
        if is_moment(key, rows.value()):
            yield _Place(key, key[8:], int.from_bytes(key[:8]))
        alive = rows.prev()


def _backwards(
    store: Store,
    txn: Reader,
    queue: Queue,
    begin_ms: int,
    end_ms: int,
    before: tuple[int, int, int] | None,
    tag_hash: int | None,
) -> Iterator[_Place]:
    """Return a queue's rows backwards, from the last one before a time or a place to the first one wanted."""
    offset = offset_at(txn, store.tables, queue, min(end_ms, _LAST))
    if before is not None:
        ms, number, last_offset = before
        first = offset_at(txn, store.tables, queue, ms)
        behind = offset_at(txn, store.tables, queue, ms + 1)
        if queue.number == number:
            # The place may be in another worker's queue, where other messages have these offsets.
            bound = min(max(first, last_offset), behind)
        else:
            bound = behind if queue.number < number else first
        offset = min(offset, bound)
    rows = txn.cursor(db=store.tables.queues)
    alive = rows.prev() if rows.set_range(queue.prefix + pack_u64(offset)) else rows.last()
    # The rows of a deleted topic can still stand before the queue's first one.
    first_key = queue.prefix + pack_u64(queue.first)
    while alive and rows.key() >= first_key:
        key, value = rows.key(), rows.value()
        # Skip a row that is missing or cannot be read: readable ones may stand before it.
        if len(key) == len(queue.prefix) + 8 and is_queued_value(value):
            _, own_hash, _, ms = QUEUE_VALUE.unpack(value)
            if ms < begin_ms:
                return
            offset = int.from_bytes(key[-8:])
            cursor = _PLACE.pack(ms, queue.number, offset)
            yield _Place(cursor, value[:8], ms, offset, tag_hash in (None, own_hash))
        alive = rows.prev()
