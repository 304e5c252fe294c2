"""The timeline: the number of pending messages by due time and topic."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nsmallest
from time import perf_counter
from typing import Annotated

from msgspec import Meta

from gateway.access.policies import READ
from gateway.broker import Broker
from gateway.clock import Clock
from gateway.web.endpoints import Asker, Fields, Shown
from gateway.web.fields import Moment, TopicName, read_bound, read_moment
from gateway.web.turns import Turns
from gateway.wire.messages import java_hash
from storage import Columns, Cursor, count_due, due_range

_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000

WIDTHS = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(n * _SECOND for n in (1, 2, 5, 10, 30)),
    *(n * _MINUTE for n in (1, 2, 5, 10, 30)),
    *(n * _HOUR for n in (1, 2, 6, 12)),
    *(n * _DAY for n in (1, 2, 7, 14, 28, 91, 182, 364)),
)
"""Possible widths of columns in ms. All widths from 10 s on are multiples of 10 s, for which the store has counts."""

MAX_TOPICS = 24
"""Topics that are shown separately, those with most messages; the others are summed up."""

MAX_COUNTED = 2_000_000
"""Rows after which a count of narrow columns gives up: some seconds of work in small pieces."""

KEEP_TIMES = 20
"""An answer is reused for this many times the time that it took, so that frequent requests cost a twentieth at most."""

MAX_KEPT = 32
"""Most answers that are kept for reuse."""


class TimelineQuery(Fields):
    """The messages and the span to count."""

    begin: Moment = "now"
    end: Annotated[
        int | str | None, Meta(description="As `begin`; when left out, an hour later.")
    ] = None
    columns: Annotated[
        int, Meta(description="Most columns; they are made as wide as that needs.", ge=1, le=1000)
    ] = 120
    topic: TopicName = ""
    tag: Annotated[str, Meta(description="Only messages with this tag.")] = ""

    def span(self, clock: Clock) -> tuple[int, int]:
        """Return begin and end of the span, epoch ms.

        :raises ApiError: when one of them is not a time.
        """
        begin_ms = max(0, read_moment(self.begin, clock))
        end_ms = read_bound(self.end, clock)
        return begin_ms, begin_ms + _HOUR if end_ms is None else end_ms


class TopicCounts(Shown):
    """A topic's messages in each column."""

    topic: str
    total: int
    counts: list[int]


class Timeline(Shown):
    """Pending messages, counted in columns of equal width; the topic with most messages is the first.

    The first column begins at `beginMs`, which is not after the begin of the requested span. `others` is the sum of the
    topics that are not listed. `isWhole` is false if there was too much to count.
    """

    begin_ms: int
    width_ms: int
    columns: int
    total: int
    topics: list[TopicCounts]
    others: list[int] | None
    is_whole: bool
    now_ms: int
    first_due_ms: int | None
    last_due_ms: int | None


def columns_for(begin_ms: int, end_ms: int, most: int) -> Columns:
    """Return columns of a round width that cover a span, at most `most` plus one."""
    span = max(1, end_ms - begin_ms)
    width = next((width for width in WIDTHS if span <= width * most), -(-span // most))
    if width > WIDTHS[-1]:
        width = -(-width // WIDTHS[-1]) * WIDTHS[-1]
    begin_ms -= begin_ms % width
    return Columns(begin_ms, width, -(-(end_ms - begin_ms) // width))


class Timelines:
    """Counts messages for timelines in pieces, and keeps the last answers for a moment."""

    def __init__(self, broker: Broker, turns: Turns) -> None:
        self._broker = broker
        self._turns = turns
        self._kept: dict[tuple[Columns, str, str], tuple[float, Counted]] = {}

    async def timeline(self, asker: Asker, query: TimelineQuery) -> Timeline:
        """Count pending messages over time, by topic."""
        clock = self._broker.clock
        begin_ms, end_ms = query.span(clock)
        if query.topic:
            asker.check_topic(READ, query.topic)
        columns = columns_for(begin_ms, max(begin_ms + 1, end_ms), query.columns)
        counted = await self._counted(columns, query.topic, query.tag)
        totals: dict[str, int] = {}
        others = [0] * columns.number
        # There may be tens of thousands of topics, so other work has its turn in between.
        work = self._turns.begin()
        for name, held in counted.by_topic.items():
            await work.step()
            if asker.may(READ, name):
                totals[name] = sum(held.values())
                for column, messages in held.items():
                    others[column] += messages
        first = nsmallest(MAX_TOPICS, totals, key=lambda name: (-totals[name], name))
        topics = [
            TopicCounts(topic=name, total=totals[name], counts=[0] * columns.number)
            for name in first
        ]
        for one in topics:
            for column, messages in counted.by_topic[one.topic].items():
                one.counts[column] = messages
                others[column] -= messages
        # This range covers all topics together, so only a user who may see them all gets it.
        first_ms, last_ms = (counted.due_range if asker.may_everything else None) or (None, None)
        return Timeline(
            begin_ms=columns.begin_ms,
            width_ms=columns.width_ms,
            columns=columns.number,
            total=sum(totals.values()),
            topics=topics,
            others=others if len(totals) > len(topics) else None,
            is_whole=counted.is_whole,
            now_ms=clock.now_ms(),
            first_due_ms=first_ms,
            last_due_ms=last_ms,
        )

    async def _counted(self, columns: Columns, topic: str, tag: str) -> Counted:
        asked = (columns, topic, tag)
        now = perf_counter()
        self._kept = {key: kept for key, kept in self._kept.items() if kept[0] > now}
        if asked in self._kept:
            return self._kept[asked][1]
        counted = await count(self._broker, self._turns, columns, topic, tag)
        counted.due_range = due_range(self._broker.store)
        if len(self._kept) < MAX_KEPT:
            took = perf_counter() - now
            self._kept[asked] = (now + took * KEEP_TIMES, counted)
        return counted


class Counted:
    """A count: for each topic, the messages of each column that has any. There may be tens of thousands of topics."""

    def __init__(self) -> None:
        self.by_topic: dict[str, dict[int, int]] = {}
        self.is_whole = True
        self.due_range: tuple[int, int] | None = None

    def add(self, counts: Mapping[tuple[bytes, int], int]) -> None:
        """Add the counts of a piece."""
        for (topic, column), number in counts.items():
            held = self.by_topic.setdefault(topic.decode(), {})
            held[column] = held.get(column, 0) + number


async def count(
    broker: Broker, turns: Turns, columns: Columns, topic: str = "", tag: str = ""
) -> Counted:
    """Count messages in pieces, each in a turn of its own."""
    counted = Counted()
    cursor: Cursor | None = None
    rows = 0
    while True:
        await turns.next()
        piece = count_due(
            broker.store,
            columns,
            topic=topic.encode() or None,
            tag_hash=java_hash(tag) if tag else None,
            cursor=cursor,
        )
        counted.add(piece.counts)
        rows += piece.rows
        cursor = piece.cursor
        if cursor is None:
            return counted
        if rows >= MAX_COUNTED:
            counted.is_whole = False
            return counted
