"""Counts the messages that are due soon, and those that are late.

Both counts are iterators that yield between pieces of some milliseconds, and return their result. Messages may come, go
and move into the table meanwhile. Each span of time is counted where its messages are at that moment, in memory and in
the table. So a message that moves is counted once; twice at most if its span takes several pieces.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterable, Sequence
from itertools import chain, pairwise
from typing import Final

from storage.keys import HELD_SPAN_MS, HOUR_MS, pack_u64
from storage.store import Store
from storage.timeline import MAX_ROWS, Columns, Cursor, Span, count_due, with_whole

_MOST_ROWS: Final = 50_000
"""Rows of the tables that a count examines, some 0.1 s. If there are more, there is no count. A topic with due messages
in every span has some 1,800 rows."""


def count_soon(
    store: Store, now_ms: int, bounds_s: Sequence[int]
) -> Generator[None, None, list[int] | None]:
    """Count the messages that are due up to each bound and after the previous one.

    The first bound is exact. The others count whole spans of `held`, starting with the span that contains `now_ms`.

    :param bounds_s: seconds from now, growing; all but the first are whole spans.
    :returns: None when there is too much to examine.
    """
    begin_ms = now_ms - now_ms % HELD_SPAN_MS
    bounds_ms = [begin_ms + bound * 1_000 for bound in (0, *bounds_s[1:])]
    nearest = (now_ms + 1, now_ms + 1 + bounds_s[0] * 1_000)
    parts = [[nearest], *(with_whole(HOUR_MS, *span) for span in pairwise(bounds_ms))]
    count = _Count(store)
    counts = yield from count.messages(parts)
    # The messages within the first bound do not belong to the second.
    counts[1] = max(0, counts[1] - counts[0])
    return counts if count.is_whole else None


def count_overdue(store: Store, now_ms: int) -> Generator[None, None, int]:
    """Count the messages that are due and have not fired, except those of paused topics. If very many are due in spans
    of their own, only the first 50,000 or so are counted."""
    begin_ms = now_ms - now_ms % HELD_SPAN_MS
    parts = [*with_whole(HOUR_MS, 0, begin_ms), (begin_ms, now_ms + 1)]
    (overdue,) = yield from _Count(store).messages([parts])
    return overdue


class _Count:
    """Counts until too many rows were examined. Due messages of paused topics are not counted: they can be many, and
    are neither due soon nor late."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rows = 0
        self._edges: list[bytes] = []
        self._timers: list[list[bytes]] = []
        self.is_whole = True

    def messages(self, groups: Sequence[Iterable[Span]]) -> Generator[None, None, list[int]]:
        """Count the messages in each group of spans."""
        yield from self._sort_inbox(chain.from_iterable(groups))
        counts = []
        for spans in groups:
            found = 0
            for span in spans:
                found += yield from self._between(*span)
            counts.append(found)
        return counts

    def _sort_inbox(self, spans: Iterable[Span]) -> Generator[None, None, None]:
        """Collect the timers in memory by the edges of the spans between which they are due."""
        self._edges = sorted({pack_u64(ms) for span in spans for ms in span})
        self._timers = [[] for _ in range(len(self._edges) + 1)]
        self._store.settled_reader()
        keys = self._store.inbox.keys()
        for begin in range(0, len(keys), MAX_ROWS):
            for key in keys[begin : begin + MAX_ROWS]:
                self._timers[bisect_right(self._edges, key)].append(key)
            yield

    def _between(self, begin_ms: int, end_ms: int) -> Generator[None, None, int]:
        """Count the messages of a span, in one column."""
        columns = Columns(begin_ms, end_ms - begin_ms, 1)
        found = 0
        cursor: Cursor | None = None
        while self._rows < _MOST_ROWS:
            tally = count_due(self._store, columns, in_table_only=True, cursor=cursor)
            if cursor is None:
                # In the same piece: what moves into the table later on is not in it yet.
                found = self._in_memory(begin_ms, end_ms)
            found += sum(tally.counts.values())
            self._rows += tally.rows
            cursor = tally.cursor
            yield
            if cursor is None:
                return found
        self.is_whole = False
        return found

    def _in_memory(self, begin_ms: int, end_ms: int) -> int:
        begin, end = (bisect_right(self._edges, pack_u64(ms)) for ms in (begin_ms, end_ms))
        timers = chain.from_iterable(self._timers[begin:end])
        return sum(map(self._store.inbox.holds, timers))
