"""Merges the pages of a list that several workers return into one page.

The cursor of such a page says where each worker goes on (`gateway.wire.cursors`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, takewhile
from struct import Struct
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from gateway.wire.cursors import join_cursors, own_cursor
from gateway.wire.messages import parse_offset_msg_id
from gateway.wire.pending_bodies import HeldMessage, HeldPage, PausedTopic
from gateway.wire.recurring_bodies import RecurringList, RecurringMessage

_FIRED_PLACE = Struct(">QIQ")
"""The end of a page of fired messages: the time, the queue, the offset (`storage.scan_fired`)."""

MAX_PAGE_BYTES: Final = 8 << 20
"""Most bytes of JSON on a page, unless it has only one item: with bodies, the pages of many workers together would be
more than fits into a frame."""

_Item = TypeVar("_Item")


class _Entry(NamedTuple, Generic[_Item]):
    """An item of a worker's page, and its place in the list."""

    place: bytes
    broker: str
    item: _Item


class _Listed(NamedTuple, Generic[_Item]):
    """A worker's page of a list: its items by their places, and the cursor of its next page."""

    broker: str
    items: list[tuple[bytes, _Item]]
    cursor: str | None


def _one_page(
    pages: Sequence[_Listed[_Item]],
    limit: int,
    given: str,
    *,
    behind: bytes = b"",
    backwards: bool = False,
) -> tuple[list[_Item], str | None]:
    """Merge the workers' pages into one, in the order of places. Return its items and its cursor.

    A worker has listed everything up to its cursor. Behind the first of these cursors items may be missing, so the
    page ends there, or at its limit, or when it is full.

    :param given: the request's cursor.
    :param behind: what is added to a place in a cursor that means to go on behind that place.
    :param backwards: whether the last place comes first.
    """
    ends = [bytes.fromhex(page.cursor) for page in pages if page.cursor is not None]
    end = (max if backwards else min)(ends, default=None)
    known = [
        _Entry(place, page.broker, item)
        for page in pages
        for place, item in page.items
        if end is None or (place >= end if backwards else place <= end)
    ]
    known.sort(key=lambda entry: entry.place, reverse=backwards)
    count = max(1, min(limit, _fitting(entry.item for entry in known)))
    told, left = known[:count], known[count:]
    last = told[-1].place if told else b""
    # A worker's cursor may have a pending message's id, by which another's message in this place could come again.
    is_in_last = bool(told and behind and end is not None and end.startswith(last))
    go_on = end if end is not None and not left and not is_in_last else last + behind
    # Workers whose next item is in the very place of the last one, as two may have messages of the same number.
    late = {entry.broker for entry in left if entry.place == last}
    earlier = next((entry.place for entry in reversed(told) if entry.place != last), None)
    go_on_late = earlier + behind if earlier is not None else None
    numbers = Counter(entry.broker for entry in told)
    places = {
        page.broker: go_on_late if page.broker in late else go_on
        for page in pages
        if page.cursor is not None or numbers[page.broker] < len(page.items)
    }
    return [entry.item for entry in told], _cursor_at(places, given, backwards=backwards)


def _cursor_at(places: Mapping[str, bytes | None], given: str, *, backwards: bool) -> str | None:
    """Return a page's cursor, by which each worker that has more goes on from its place. That is the same for nearly
    all: one of its own for each of 64 workers would be more than fits into a URL. So items that a worker listed beyond
    it are requested again.

    :param places: by the workers' names; None for a worker that goes on where it was asked to.
    """
    cursors: dict[str, str] = {}
    for broker, place in places.items():
        # The worker may have been further than the others already.
        reached = [one for one in (place, bytes.fromhex(own_cursor(given, broker) or "")) if one]
        cursors[broker] = (min if backwards else max)(reached, default=b"").hex()
    return join_cursors(cursors) or None


def _fitting(items: Iterable[object]) -> int:
    """Return how many of these items fit into a page."""
    sizes = accumulate(len(msgspec.json.encode(item)) for item in items)
    return sum(1 for _ in takewhile(MAX_PAGE_BYTES.__ge__, sizes))


def held_page(
    pages: Sequence[tuple[str, HeldPage]], *, named: bool, state: str, limit: int, given: str
) -> HeldPage:
    """Merge pages of messages. The next due comes first; in a list of fired or aborted messages, the latest.

    :param pages: the workers' pages, with the workers' names.
    :param named: whether the request was by id or key.
    :param state: the requested state, see `Wanted`.
    :param given: the request's cursor.
    """
    # Of a state that needs an id or a key, without these, a page is empty: of a topic that the sender may not read.
    place = _place_of_named if named else _PLACES.get(state, _place_of_named)
    # In a worker's own cursor a pending message's id follows its place; no id begins with this byte.
    behind = b"\xff" if place is _place_of_pending else b""
    listed = [
        _Listed(broker, [(place(one), one) for one in page.messages], page.cursor)
        for broker, page in pages
    ]
    backwards = place in (_place_of_fired, _place_of_aborted)
    messages, cursor = _one_page(listed, limit, given, behind=behind, backwards=backwards)
    return HeldPage(messages, cursor, add_up(topic for _, page in pages for topic in page.paused))


def recurring_page(
    pages: Sequence[tuple[str, RecurringList]], *, limit: int, given: str
) -> RecurringList:
    """Merge pages of recurring messages, by topic and name; the parameters are those of `held_page`."""
    listed = [
        _Listed(broker, [(_place_of_recurring(one), one) for one in page.recurring], page.cursor)
        for broker, page in pages
    ]
    return RecurringList(*_one_page(listed, limit, given))


# The place of a message in the order of its worker's pages, as cursors have it (`PendingMessages.select`).


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
    """Merge paused topics: each once, since its first pause, with all messages that wait at any worker."""
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
