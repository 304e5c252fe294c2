"""How many messages are due soon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from storage.keys import HELD_SPAN_MS
from storage.store import Store
from storage.timeline import Columns, count_due

_MOST_ROWS: Final = 100_000
"""Rows that a count looks at, some 0.1 s; where there are more, there is no count."""


def count_soon(store: Store, now_ms: int, bounds_s: Sequence[int]) -> list[int] | None:
    """Count the messages that are due until each bound and behind the one before it.

    The first bound is exact. The others count whole spans of `held` from the one on that `now_ms` lies in.

    :param bounds_s: seconds from now, growing; all but the first whole spans.
    :returns: None where there is too much to look at.
    """
    first_ms = bounds_s[0] * 1_000
    begin_ms = now_ms - now_ms % HELD_SPAN_MS
    nearest = _counts(store, Columns(now_ms + 1, first_ms, 1))
    spans = _counts(store, Columns(begin_ms, HELD_SPAN_MS, bounds_s[-1] * 1_000 // HELD_SPAN_MS))
    if nearest is None or spans is None:
        return None
    counts = [sum(nearest.values())]
    below = 0
    for bound in bounds_s[1:]:
        last = bound * 1_000 // HELD_SPAN_MS
        counts.append(sum(spans.get(span, 0) for span in range(below, last)))
        below = last
    # What the first bound counts is not behind it.
    counts[1] = max(0, counts[1] - counts[0])
    return counts


def _counts(store: Store, columns: Columns) -> dict[int, int] | None:
    """Messages by column, of all topics."""
    found: dict[int, int] = {}
    cursor: bytes | None = None
    rows = 0
    while rows < _MOST_ROWS:
        tally = count_due(store, columns, cursor=cursor)
        for (_, column), count in tally.counts.items():
            found[column] = found.get(column, 0) + count
        rows += tally.rows
        cursor = tally.cursor
        if cursor is None:
            return found
    return None
