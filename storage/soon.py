"""Counts the messages that are due soon."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from storage.keys import HELD_SPAN_MS, HOUR_MS
from storage.store import Store
from storage.timeline import Columns, count_due

_MOST_ROWS: Final = 50_000
"""Rows that a count examines, some 0.1 s. If there are more, there is no count. A topic with due messages in every span
has some 1,800 rows."""


def count_soon(store: Store, now_ms: int, bounds_s: Sequence[int]) -> list[int] | None:
    """Count the messages that are due up to each bound and after the previous one.

    The first bound is exact. The others count whole spans of `held`, starting with the span that contains `now_ms`.

    :param bounds_s: seconds from now, growing; all but the first are whole spans.
    :returns: None when there is too much to examine.
    """
    begin_ms = now_ms - now_ms % HELD_SPAN_MS
    count = _Count(store)
    nearest = count.between(now_ms + 1, now_ms + 1 + bounds_s[0] * 1_000)
    bounds_ms = [begin_ms + bound * 1_000 for bound in (0, *bounds_s[1:])]
    counts = [nearest, *(count.spans_between(*span) for span in pairwise(bounds_ms))]
    # The messages within the first bound do not belong to the second.
    counts[1] = max(0, counts[1] - nearest)
    return counts if count.is_whole else None


def count_overdue(store: Store, now_ms: int) -> int:
    """Count the messages that are due and have not fired, except those of paused topics. If very many are due in spans
    of their own, only the first 50,000 or so are counted."""
    begin_ms = now_ms - now_ms % HELD_SPAN_MS
    count = _Count(store)
    return count.spans_between(0, begin_ms) + count.between(begin_ms, now_ms + 1)


class _Count:
    """Counts until too many rows were examined. Due messages of paused topics are not counted: they can be many, and
    are neither due soon nor late."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rows = 0
        self.is_whole = True

    def spans_between(self, begin_ms: int, end_ms: int) -> int:
        """Count messages due in the spans of `held` from one time on and before another, with whole hours at once."""
        first_hour_ms = -(-begin_ms // HOUR_MS) * HOUR_MS
        last_hour_ms = end_ms // HOUR_MS * HOUR_MS
        if first_hour_ms >= last_hour_ms:
            return self.between(begin_ms, end_ms)
        return (
            self.between(begin_ms, first_hour_ms)
            + self.between(first_hour_ms, last_hour_ms)
            + self.between(last_hour_ms, end_ms)
        )

    def between(self, begin_ms: int, end_ms: int) -> int:
        """Count messages due from one time on and before another, in one column."""
        if begin_ms == end_ms:
            return 0
        columns = Columns(begin_ms, end_ms - begin_ms, 1)
        found = 0
        cursor: bytes | None = None
        while self._rows < _MOST_ROWS:
            tally = count_due(self._store, columns, with_waiting=False, cursor=cursor)
            found += sum(tally.counts.values())
            self._rows += tally.rows
            cursor = tally.cursor
            if cursor is None:
                return found
        self.is_whole = False
        return found
