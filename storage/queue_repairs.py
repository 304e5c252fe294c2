"""Repairs the rows of one damaged queue: as far as possible, every message returns to its offset, and no other message
changes its offset. The functions are pure.

Consumers remember offsets, so no message moves up into a gap: an offset without a message stays empty.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final, NamedTuple

from storage.keys import NO_MESSAGE

MAX_HOLES: Final = 10_000
"""The most consecutive offsets that are left empty. A row behind a larger gap does not belong there."""

_EVER: Final = (1 << 63) - 1


class Lost(NamedTuple):
    """A message of the queue that no row names.

    `since_ms` is the earliest time at which it can have entered the queue. A message with `may_wait` may not have
    fired: it is put into a gap that fits, but not at the end.
    """

    sequence: int
    since_ms: int
    tag_hash: int
    size: int
    may_wait: bool


@dataclass
class Row:
    """A row of the queue. `owner` is the message that it belongs to. It is None if none can be found: then the row
    names another queue's message, or a message that does not exist (`is_gone`)."""

    offset: int
    sequence: int
    tag_hash: int
    size: int
    stored_ms: int
    owner: Lost | None = None
    is_gone: bool = False

    @property
    def is_right(self) -> bool:
        """Whether the row names the message that belongs there."""
        return self.owner is not None or self.sequence == NO_MESSAGE


@dataclass
class Mended:
    """The repaired queue: its rows, its ends if they must be noted, and the messages that are still waiting."""

    rows: list[Row]
    ends: tuple[int, int] | None
    waiting: list[Lost] = field(default_factory=list)


@dataclass
class _Place:
    """An offset without a message, and the time range in which a message entered there."""

    offset: int
    lower_ms: int
    upper_ms: int
    row: Row | None = None


class _Free:
    """Free places, in the order of offsets and so of times."""

    def __init__(self, places: Sequence[_Place]) -> None:
        self._places = places
        self._uppers = [place.upper_ms for place in places]
        # From each place to the next that may be free; a free place leads to itself.
        self._next = list(range(len(places) + 1))

    def take(self, since_ms: int) -> _Place | None:
        """Take the first free place for a message that entered no earlier than `since_ms`."""
        begin = place = bisect_left(self._uppers, since_ms)
        while self._next[place] != place:
            place = self._next[place]
        while self._next[begin] != place:
            begin, self._next[begin] = self._next[begin], place
        if place == len(self._places):
            return None
        self._next[place] = place + 1
        return self._places[place]


def mend_queue(
    rows: Sequence[Row], ends: tuple[int, int] | None, lost: Sequence[Lost], *, is_known: bool
) -> Mended:
    """Repair a queue.

    :param rows: in the order of offsets.
    :param ends: first and next offset, if they are noted.
    :param is_known: whether the queue exists even if nothing is left in it.
    """
    rows, displaced = _without_displaced(rows, len(lost))
    lost = sorted([*lost, *displaced], key=lambda one: (one.may_wait, one.since_ms, one.sequence))
    if not lost and not any(row.is_right for row in rows):
        return _mend_empty(rows, ends, is_known=is_known)
    if not rows:
        return _append(Mended([], ends), lost, _begin_anew(ends, lost))
    mended = Mended(rows, ends)
    lost = _fill(mended, _places(rows, ends), lost)
    lost = _fill_front(mended, ends, lost)
    return _append(mended, lost, mended.rows[-1].offset + 1)


def _mend_empty(rows: Sequence[Row], ends: tuple[int, int] | None, *, is_known: bool) -> Mended:
    """Return a queue of which nothing is left. Its next message still gets an offset that no other had."""
    behind = max([row.offset + 1 for row in rows], default=0)
    if ends is not None:
        behind = max(behind, ends[1])
    return Mended([], (behind, behind) if ends is not None or (is_known and behind) else None)


def _begin_anew(ends: tuple[int, int] | None, lost: Sequence[Lost]) -> int:
    """Return the first offset of a queue without rows, chosen so that its next message gets an offset that no other
    had."""
    first, behind = ends if ends is not None else (0, 0)
    count = sum(not one.may_wait for one in lost)
    return max(first, behind - count) if behind - first <= count + MAX_HOLES else first


def _append(mended: Mended, lost: Sequence[Lost], offset: int) -> Mended:
    """Append the messages that fit nowhere else, and note the ends if they have changed."""
    rows = mended.rows
    for one in lost:
        if one.may_wait:
            mended.waiting.append(one)
            continue
        stored_ms = max(one.since_ms, rows[-1].stored_ms if rows else 0)
        rows.append(_row(one, offset, stored_ms))
        offset += 1
    ends = mended.ends
    if not rows:
        mended.ends = (offset, offset) if ends is not None else None
    elif ends is None:
        mended.ends = (rows[0].offset, offset) if rows[0].offset else None
    elif ends[0] != rows[0].offset or ends[1] > offset:
        mended.ends = (rows[0].offset, offset)
    return mended


def _row(one: Lost, offset: int, stored_ms: int) -> Row:
    return Row(offset, one.sequence, one.tag_hash, one.size, stored_ms, one)


def _in_order(rows: Sequence[Row]) -> set[int]:
    """Return the indexes of the largest set of rows whose times are in order. The times of the other rows are wrong."""
    times = [row.stored_ms for row in rows]
    if all(before <= after for before, after in pairwise(times)):
        return set(range(len(rows)))
    smallest: list[int] = []
    places: list[int] = []
    before: list[int] = []
    for place, time in enumerate(times):
        length = bisect_right(smallest, time)
        before.append(places[length - 1] if length else -1)
        smallest[length : length + 1] = [time]
        places[length : length + 1] = [place]
    found: list[int] = []
    place = places[-1]
    while place >= 0:
        found.append(place)
        place = before[place]
    return set(_without_too_early(rows, found[::-1]))


def _without_too_early(rows: Sequence[Row], ordered: list[int]) -> list[int]:
    """Of two rows whose times are the other way round, either can be among those in order. Choose the first where the
    second says that it entered before the first can have."""
    kept = [-1, *ordered, len(rows)]
    times = [0, *(rows[place].stored_ms for place in ordered), _EVER]
    for place, row in enumerate(rows):
        behind = bisect_left(kept, place)
        if row.owner is None or kept[behind] == len(rows):
            continue
        is_too_early = times[behind] < row.owner.since_ms
        if is_too_early and times[behind - 1] <= row.stored_ms <= times[behind + 1]:
            kept[behind], times[behind] = place, row.stored_ms
    return kept[1:-1]


def _without_displaced(rows: Sequence[Row], spare: int) -> tuple[list[Row], list[Lost]]:
    """Return the rows that belong at their offsets, with their times in order, and the messages of the other rows."""
    ordered = _in_order(rows)
    begin, end = 0, len(rows)
    while end - begin > 1 and begin not in ordered and _gap(rows, begin):
        begin += 1
    while end - begin > 1 and end - 1 not in ordered and _gap(rows, end - 2):
        end -= 1
    place = begin
    while place < end - 1:
        if _gap(rows, place) > MAX_HOLES + spare:
            # The smaller part is misplaced.
            if place + 1 - begin < end - place - 1:
                begin = place + 1
            else:
                end = place + 1
        place += 1
    kept: list[Row] = []
    # A wrong time becomes the earliest possible one, which is no later than the next right one.
    next_ms = _EVER
    latest: dict[int, int] = {}
    for place in reversed(range(begin, end)):
        latest[place] = next_ms = rows[place].stored_ms if place in ordered else next_ms
    time = 0
    for place in range(begin, end):
        owner = rows[place].owner
        since_ms = latest[place] if place in ordered else owner.since_ms if owner is not None else 0
        time = max(time, min(since_ms, latest[place]))
        kept.append(replace(rows[place], stored_ms=time))
    strangers = [*rows[:begin], *rows[end:]]
    return kept, [row.owner for row in strangers if row.owner is not None]


def _gap(rows: Sequence[Row], place: int) -> int:
    """Return how many offsets are missing between a row and the next."""
    return rows[place + 1].offset - rows[place].offset - 1


def _places(rows: Sequence[Row], ends: tuple[int, int] | None) -> list[_Place]:
    """Return every offset without a message, from the first row on."""
    places: list[_Place] = []
    before = rows[0]
    for row in rows:
        missing = range(before.offset + 1, row.offset)
        places += [_Place(offset, before.stored_ms, row.stored_ms) for offset in missing]
        if not row.is_right:
            places.append(_Place(row.offset, row.stored_ms, row.stored_ms, row))
        before = row
    if ends is not None and 0 < ends[1] - before.offset - 1 <= MAX_HOLES:
        missing = range(before.offset + 1, ends[1])
        places += [_Place(offset, before.stored_ms, _EVER) for offset in missing]
    return places


def _fill(mended: Mended, places: Sequence[_Place], lost: Sequence[Lost]) -> list[Lost]:
    """Put messages where they fit, the earliest first, and leave the other places empty.

    :returns: the messages that fit nowhere.
    """
    gaps = _Free([place for place in places if place.row is None])
    told: defaultdict[tuple[int, int], list[_Place]] = defaultdict(list)
    for place in places:
        if place.row is not None and not place.row.is_gone:
            told[place.row.tag_hash, place.row.size].append(place)
    alike = {columns: _Free(those) for columns, those in told.items()}
    filled: dict[int, Row] = {}
    left: list[Lost] = []
    for one in lost:
        # The tag hash and size left in a row are better evidence than a gap.
        similar = alike.get((one.tag_hash, one.size))
        found = similar.take(one.since_ms) if similar is not None else None
        found = found or gaps.take(one.since_ms)
        if found is None:
            left.append(one)
            continue
        filled[found.offset] = _row(one, found.offset, max(one.since_ms, found.lower_ms))
    for place in places:
        if place.offset not in filled:
            filled[place.offset] = Row(place.offset, NO_MESSAGE, 0, 0, place.lower_ms)
    rows = {row.offset: row for row in mended.rows} | filled
    mended.rows = _with_growing_times([rows[offset] for offset in sorted(rows)])
    return left


def _with_growing_times(rows: list[Row]) -> list[Row]:
    time = 0
    for row in rows:
        time = row.stored_ms = max(time, row.stored_ms)
    return rows


def _fill_front(mended: Mended, ends: tuple[int, int] | None, lost: Sequence[Lost]) -> list[Lost]:
    """Put messages in front of the first row. If there are too few, the queue begins at a later offset."""
    first = mended.rows[0]
    room = first.offset - min(first.offset, ends[0] if ends is not None else 0)
    fitting = [one for one in lost if one.since_ms <= first.stored_ms]
    if ends is None and room > len(fitting):
        # Retention removed the messages, and only the row in `ends` that says so is lost.
        fitting = [one for one in fitting if not one.may_wait]
    taken = sorted(fitting[:room], key=lambda one: (one.since_ms, one.sequence))
    begin = first.offset - len(taken)
    front = [_row(one, begin + place, one.since_ms) for place, one in enumerate(taken)]
    mended.rows = front + mended.rows
    sequences = {one.sequence for one in taken}
    return [one for one in lost if one.sequence not in sequences]
