"""Pages of lists of which several workers have a part each, made one page.

The cursor of such a page has a part for each worker (`gateway.wire.cursors`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, takewhile
from struct import Struct
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from gateway.wire.cursors import join_cursors, own_cursor
from gateway.wire.messages import parse_offset_msg_id
from gateway.wire.pending_bodies import HeldMessage, HeldPage, PausedTopic
from gateway.wire.recurring_bodies import RecurringList, RecurringMessage

_FIRED_PLACE = Struct(">QIQ")
"""Where a page of fired messages ends: the time, the queue, the offset (`storage.scan_fired`)."""

MAX_PAGE_BYTES: Final = 8 << 20
"""Bytes of JSON that a page has at most, unless it is one item: with bodies, the pages of many workers together would
be more than a frame may have."""

_Item = TypeVar("_Item")


class _Listed(NamedTuple, Generic[_Item]):
    """A worker's page of a list: what is on it by place, and the cursor of its next page."""

    broker: str
    items: list[tuple[bytes, _Item]]
    cursor: str | None
    behind: bytes = b""
    """What a place ends with in a cursor that says to go on behind it."""


def _one_page(
    pages: Sequence[_Listed[_Item]], limit: int, given: str, *, backwards: bool = False
) -> tuple[list[_Item], str | None]:
    """A page of what all have, in the order of places, and its cursor.

    A worker's cursor says up to where it has told everything. Behind the first of these places nobody knows what comes
    between, so the page ends there, or at its limit, or when it is full. What a worker told beyond that it is asked
    for again.

    :param given: the cursor that was asked with.
    :param backwards: the last place comes first.
    """
    ends = [bytes.fromhex(page.cursor) for page in pages if page.cursor is not None]
    end = (max if backwards else min)(ends, default=None)
    known = [
        (place, number, item)
        for number, page in enumerate(pages)
        for place, item in page.items
        if end is None or (place >= end if backwards else place <= end)
    ]
    known.sort(key=lambda entry: entry[0], reverse=backwards)
    told = known[: max(1, min(limit, _fitting(item for _, _, item in known)))]
    cursors: dict[str, str] = {}
    for number, page in enumerate(pages):
        own = [place for place, owner, _ in told if owner == number]
        if len(own) < len(page.items):
            before = own_cursor(given, page.broker) or ""
            cursors[page.broker] = (own[-1] + page.behind).hex() if own else before
        elif page.cursor is not None:
            cursors[page.broker] = page.cursor
    return [item for _, _, item in told], join_cursors(cursors) or None


def _fitting(items: Iterable[object]) -> int:
    """How many of these fit into a page."""
    sizes = accumulate(len(msgspec.json.encode(item)) for item in items)
    return sum(1 for _ in takewhile(MAX_PAGE_BYTES.__ge__, sizes))


def held_page(
    pages: Sequence[tuple[str, HeldPage]], *, named: bool, state: str, limit: int, given: str
) -> HeldPage:
    """One page of what all hold, the next due first; of what fired or was aborted, the last one first.

    :param pages: the workers' by their names.
    :param named: whether it was asked by id or key.
    :param state: what was asked for, see `Wanted`.
    :param given: the cursor that was asked with.
    """
    place = _place_of_named if named else _PLACES[state]
    # A worker's own cursor has the id of a pending message behind its place; none begins with this byte.
    behind = b"\xff" if place is _place_of_pending else b""
    listed = [
        _Listed(broker, [(place(one), one) for one in page.messages], page.cursor, behind)
        for broker, page in pages
    ]
    backwards = place in (_place_of_fired, _place_of_aborted)
    messages, cursor = _one_page(listed, limit, given, backwards=backwards)
    return HeldPage(messages, cursor, add_up(topic for _, page in pages for topic in page.paused))


def recurring_page(
    pages: Sequence[tuple[str, RecurringList]], *, limit: int, given: str
) -> RecurringList:
    """One page of what recurs anywhere, by topic and name; the parameters are those of `held_page`."""
    listed = [
        _Listed(broker, [(_place_of_recurring(one), one) for one in page.recurring], page.cursor)
        for broker, page in pages
    ]
    return RecurringList(*_one_page(listed, limit, given))


# Where a message stands in the order of its worker's pages, as a cursor has it (`PendingMessages.select`).


def _sequence(message: HeldMessage) -> bytes:
    return parse_offset_msg_id(message.offset_msg_id)[1].to_bytes(8)


def _place_of_named(message: HeldMessage) -> bytes:
    return message.due_ms.to_bytes(8) + _sequence(message)


def _place_of_pending(message: HeldMessage) -> bytes:
    return message.due_ms.to_bytes(8) + message.topic.encode() + b"\0" + _sequence(message)


def _place_of_fired(message: HeldMessage) -> bytes:
    return _FIRED_PLACE.pack(message.moved_ms or 0, message.queue_id, message.queue_offset or 0)


def _place_of_aborted(message: HeldMessage) -> bytes:
    return (message.moved_ms or 0).to_bytes(8) + _sequence(message)


_PLACES: Final = {
    "pending": _place_of_pending,
    "fired": _place_of_fired,
    "aborted": _place_of_aborted,
}


def add_up(topics: Iterable[PausedTopic]) -> list[PausedTopic]:
    """Each paused topic once: since its first pause, with what waits anywhere."""
    found: dict[str, PausedTopic] = {}
    for topic in topics:
        known = found.setdefault(topic.topic, topic)
        if known is not topic:
            found[topic.topic] = msgspec.structs.replace(
                known,
                since_ms=min(known.since_ms, topic.since_ms),
                waiting=known.waiting + topic.waiting,
                resumed=known.resumed and topic.resumed,
            )
    return [found[name] for name in sorted(found)]


def _place_of_recurring(one: RecurringMessage) -> bytes:
    return f"{one.topic}\0{one.name}".encode()
