"""Merges the figures and lists of several workers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from itertools import groupby
from operator import attrgetter, or_
from typing import TypeVar

import msgspec

from gateway.web.overview import Rates, Speed, Spread
from gateway.web.timeline import MAX_TOPICS, Timeline, TopicCounts
from gateway.web.topics import GroupList, GroupRow, ListQuery, TopicLag, TopicList, TopicRow
from gateway.workers.merged_pages import add_up

_Row = TypeVar("_Row", TopicRow, GroupRow)


def add_rates(parts: Sequence[Rates]) -> Rates:
    """Return the sum of the workers' rates; the free disk space is the least of all."""
    return Rates(
        at_ms=max(part.at_ms for part in parts),
        accepted=_speed(part.accepted for part in parts),
        fired=_speed(part.fired for part in parts),
        handed_out=_speed(part.handed_out for part in parts),
        timed_total=sum(part.timed_total for part in parts),
        firing_error=_spread([part.firing_error for part in parts]),
        commit=_spread([part.commit for part in parts]),
        held=sum(part.held for part in parts),
        overdue_ms=max(part.overdue_ms for part in parts),
        connections=sum(part.connections for part in parts),
        parked_pulls=sum(part.parked_pulls for part in parts),
        refused_batches=sum(part.refused_batches for part in parts),
        size_bytes=sum(part.size_bytes for part in parts),
        free_bytes=sum(part.free_bytes for part in parts),
        disk_free_bytes=min(part.disk_free_bytes for part in parts),
    )


def _speed(parts: Iterable[Speed]) -> Speed:
    known = list(parts)
    return Speed(
        ten_seconds=sum(part.ten_seconds for part in known),
        minute=sum(part.minute for part in known),
        life=sum(part.life for part in known),
        total=sum(part.total for part in known),
    )


def _spread(parts: Sequence[Spread]) -> Spread:
    return Spread(bounds=parts[0].bounds, counts=_columns(part.counts for part in parts))


def _columns(rows: Iterable[Sequence[int]]) -> list[int]:
    return [sum(column) for column in zip(*rows, strict=True)]


def add_timelines(parts: Sequence[Timeline]) -> Timeline:
    """Return the sum of the workers' timelines, in the same columns.

    If a worker has more topics than it shows separately, the rest of them is part of `others`.
    """
    by_topic: dict[str, list[int]] = {}
    for part in parts:
        for one in part.topics:
            known = by_topic.get(one.topic)
            by_topic[one.topic] = _columns([known, one.counts]) if known else one.counts
    topics = [TopicCounts(topic=name, total=sum(one), counts=one) for name, one in by_topic.items()]
    topics.sort(key=lambda one: (-one.total, one.topic))
    rest = [one.counts for one in topics[MAX_TOPICS:]]
    rest += [part.others for part in parts if part.others is not None]
    first = parts[0]
    return Timeline(
        begin_ms=first.begin_ms,
        width_ms=first.width_ms,
        columns=first.columns,
        total=sum(part.total for part in parts),
        topics=topics[:MAX_TOPICS],
        others=_columns(rest) if rest else None,
        is_whole=all(part.is_whole for part in parts),
        now_ms=max(part.now_ms for part in parts),
        first_due_ms=_least(part.first_due_ms for part in parts),
        last_due_ms=max((p.last_due_ms for p in parts if p.last_due_ms is not None), default=None),
    )


def _least(times: Iterable[int | None]) -> int | None:
    return min((time for time in times if time is not None), default=None)


def add_topics(parts: Sequence[TopicList], query: ListQuery) -> TopicList:
    """Return a page of the topics of all workers, with the sums of their messages."""
    rows, cursor = _one_list([(part.topics, part.cursor) for part in parts], query, _topic)
    return TopicList(topics=rows, cursor=cursor)


def _topic(rows: Sequence[TopicRow]) -> TopicRow:
    pauses = add_up(row.pause for row in rows if row.pause is not None)
    return msgspec.structs.replace(
        rows[0],
        queues=sum(row.queues for row in rows),
        perm=reduce(or_, (row.perm for row in rows)),
        held=sum(row.held for row in rows),
        stored=sum(row.stored for row in rows),
        entered=sum(row.entered for row in rows),
        pause=pauses[0] if pauses else None,
    )


def add_groups(parts: Sequence[GroupList], query: ListQuery) -> GroupList:
    """Return a page of the groups of all workers, with their progress at all workers."""
    rows, cursor = _one_list([(part.groups, part.cursor) for part in parts], query, _group)
    return GroupList(groups=rows, cursor=cursor)


def _group(rows: Sequence[GroupRow]) -> GroupRow:
    lags = sorted((lag for row in rows for lag in row.topics), key=attrgetter("topic"))
    return GroupRow(
        name=rows[0].name,
        members=sorted({member for row in rows for member in row.members}),
        lag=sum(row.lag for row in rows),
        topics=[_lag(list(same)) for _, same in groupby(lags, key=attrgetter("topic"))],
    )


def _lag(rows: Sequence[TopicLag]) -> TopicLag:
    """Return a group's progress in a topic; the queues of the workers follow one another."""
    return TopicLag(
        topic=rows[0].topic,
        lag=sum(row.lag for row in rows),
        waiting_since_ms=_least(row.waiting_since_ms for row in rows),
        per_second=sum(row.per_second for row in rows),
        queues=[queue for row in rows for queue in row.queues],
    )


def _one_list(
    parts: Sequence[tuple[list[_Row], str | None]],
    query: ListQuery,
    make: Callable[[Sequence[_Row]], _Row],
) -> tuple[list[_Row], str | None]:
    """Return a page of rows by name. It ends where the first incomplete page of a worker ends, or at its limit."""
    rows = sorted((row for own, _ in parts for row in own), key=attrgetter("name"))
    names = sorted({row.name for row in rows})
    ends = [cursor for _, cursor in parts if cursor is not None]
    known = names[: bisect_right(names, min(ends))] if ends else names
    told = known[: query.limit]
    by_name = {name: list(same) for name, same in groupby(rows, key=attrgetter("name"))}
    cursor = told[-1] if len(told) < len(known) else min(ends, default=None)
    return [make(by_name[name]) for name in told], cursor
