"""Topics and consumer groups in the API."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop

from gateway.access.permissions import UPDATE
from gateway.access.policies import READ
from gateway.broker import Broker
from gateway.pending.messages import PendingMessages
from gateway.pending.pauses import Pauses
from gateway.topics import Topic
from gateway.web.endpoints import Asker, Fields, Shown
from gateway.web.fields import Contains, Cursor, Limit, TopicName
from gateway.web.turns import Turns, Work
from gateway.wire.group_topics import RETRY_PREFIX
from gateway.wire.pending_bodies import PauseAnswer, PausedTopic

MAX_GROUPS_AT_A_TIME = 100
"""Most groups in an answer: each may have progress in a thousand queues."""

MAX_QUEUES_AT_A_TIME = 100_000
"""Queues of groups in an answer, some 5 MB, after which its page ends. Of one group no more are shown."""


class ListQuery(Fields):
    """A page of a list in the order of names."""

    contains: Contains = ""
    limit: Limit = 200
    cursor: Cursor = ""


class TopicQuery(Fields):
    """Identifies a topic."""

    topic: TopicName


class TopicRow(Shown):
    """A topic. `perm` has what any worker permits. `held` counts its pending messages, `stored` those in its readable
    queues, and `entered` those that have entered its queues since the start. `isSystem` marks the gateway's own topics.
    `pause` is set while the topic is paused, and after that until its waiting messages have fired.
    """

    name: str
    queues: int
    perm: int
    held: int
    stored: int
    entered: int
    is_system: bool
    pause: PausedTopic | None


class TopicList(Shown):
    """Topics by name; `cursor` requests the next page and is None at the end."""

    topics: list[TopicRow]
    cursor: str | None


class QueueLag(Shown):
    """A group's progress in one queue of a worker, which `broker` names."""

    broker: str
    queue: int
    first: int
    end: int
    offset: int
    lag: int


class TopicLag(Shown):
    """A group's progress in the readable queues of a topic: `lag` messages are still to be consumed, and the oldest of
    them has waited since `waitingSinceMs`. There are no `queues` where the group has more than 100,000 in this and the
    topics before."""

    topic: str
    lag: int
    waiting_since_ms: int | None
    per_second: float
    queues: list[QueueLag]


class GroupRow(Shown):
    """A consumer group, its online members, and its progress."""

    name: str
    members: list[str]
    lag: int
    topics: list[TopicLag]


class GroupList(Shown):
    """Groups by name; `cursor` requests the next page and is None at the end."""

    groups: list[GroupRow]
    cursor: str | None


class Listings:
    """Lists topics and groups, and pauses topics."""

    def __init__(
        self, broker: Broker, pending: PendingMessages, pauses: Pauses, turns: Turns
    ) -> None:
        self._broker = broker
        self._pending = pending
        self._pauses = pauses
        self._turns = turns

    async def list_topics(self, asker: Asker, query: ListQuery) -> TopicList:
        """List topics, with the numbers of their messages."""
        work = self._turns.begin()
        names = self._broker.topics.names()
        page, cursor = await _page(
            names, query, query.limit, lambda name: asker.may(READ, name), work
        )
        rows = []
        for name in page:
            await work.step()
            topic = self._broker.topics.get(name)
            if topic is not None:
                rows.append(self._topic(topic))
        return TopicList(topics=rows, cursor=cursor)

    def _topic(self, topic: Topic) -> TopicRow:
        store = self._broker.store
        queues = list(store.readable_queues(topic.stored_name, topic.queues))
        return TopicRow(
            name=topic.name,
            queues=topic.queues,
            perm=topic.settings.perm,
            held=store.held_totals().get(topic.stored_name, 0),
            stored=sum(queue.visible - queue.first for queue in queues),
            entered=self._broker.stats.entered(topic.name),
            is_system=topic.name in self._broker.topics.system,
            pause=self._pending.pause_of(topic.name),
        )

    async def pause_topic(self, asker: Asker, query: TopicQuery) -> PauseAnswer:
        """Pause a topic: none of its messages fires from now on. Due messages wait, and can be found, rescheduled and
        aborted."""
        asker.check_topic(UPDATE, query.topic)
        changed = self._pauses.pause(query.topic)
        await self._turns.stored()
        return PauseAnswer(changed)

    async def resume_topic(self, asker: Asker, query: TopicQuery) -> PauseAnswer:
        """Resume a topic: its messages fire again, those that wait first."""
        asker.check_topic(UPDATE, query.topic)
        changed = self._pauses.resume(query.topic)
        await self._turns.stored()
        return PauseAnswer(changed)

    async def list_groups(self, asker: Asker, query: ListQuery) -> GroupList:
        """List consumer groups, with their online members and their progress."""
        work = self._turns.begin()
        names = {
            *self._broker.groups.names(),
            *(group.name for group in self._broker.clients.consumer_groups()),
            *map(bytes.decode, self._broker.store.progress.groups()),
        }
        limit = min(query.limit, MAX_GROUPS_AT_A_TIME)
        page, cursor = await _page(names, query, limit, asker.may_see_group, work)
        groups: list[GroupRow] = []
        queues = 0
        for name in page:
            groups.append(await self._group(name, work))
            queues += sum(len(one.queues) for one in groups[-1].topics)
            if queues >= MAX_QUEUES_AT_A_TIME and name != page[-1]:
                return GroupList(groups=groups, cursor=name)
        return GroupList(groups=groups, cursor=cursor)

    async def _group(self, name: str, work: Work) -> GroupRow:
        await work.step()
        online = self._broker.clients.consumer_group(name)
        progress = self._broker.store.progress.of_group(name.encode())
        topics = []
        queues = 0
        for consumed in self._consumed_by(name):
            await work.step()
            topic = self._broker.topics.get(consumed)
            if topic is not None and not self._broker.clients.gave_up(name, topic.name):
                offsets = progress.get(topic.stored_name, {})
                topics.append(await self._lag(name, topic, offsets, work))
                queues += len(topics[-1].queues)
                if queues > MAX_QUEUES_AT_A_TIME:
                    topics[-1].queues = []
        return GroupRow(
            name=name,
            members=sorted(online.members) if online is not None else [],
            lag=sum(one.lag for one in topics),
            topics=topics,
        )

    def _consumed_by(self, group: str) -> list[str]:
        """Return the topics that a group consumes, and that of its retries if there are any: its members pull from that
        only half a minute after the first message came back, and may be gone by then."""
        consumed = self._broker.topics_consumed_by(group)
        retries = self._broker.topics.get(RETRY_PREFIX + group)
        if retries is None or retries.name in consumed:
            return consumed
        queues = self._broker.store.readable_queues(
            retries.stored_name, retries.settings.read_queue_nums
        )
        has_any = any(queue.first < queue.visible for queue in queues)
        return sorted([*consumed, retries.name]) if has_any else consumed

    async def _lag(
        self, group: str, topic: Topic, offsets: Mapping[int, int], work: Work
    ) -> TopicLag:
        store = self._broker.store
        queues = []
        waiting: list[int] = []
        for queue in store.readable_queues(topic.stored_name, topic.settings.read_queue_nums):
            await work.step()
            number = queue.number
            offset = offsets.get(number, 0)
            next_offset = max(offset, queue.first)
            lag = max(0, queue.visible - next_offset)
            queues.append(
                QueueLag(
                    broker=self._broker.config.broker_name,
                    queue=number,
                    first=queue.first,
                    end=queue.visible,
                    offset=offset,
                    lag=lag,
                )
            )
            since_ms = store.stored_ms(queue, next_offset) if lag else None
            if since_ms is not None:
                waiting.append(since_ms)
        return TopicLag(
            topic=topic.name,
            lag=sum(one.lag for one in queues),
            waiting_since_ms=min(waiting, default=None),
            per_second=self._broker.stats.group_get_rate(topic.name, group),
            queues=queues,
        )


async def _page(
    names: Iterable[str], query: ListQuery, limit: int, may: Callable[[str], bool], work: Work
) -> tuple[list[str], str | None]:
    """Return a page of names after the cursor, and the next cursor. There can be a hundred thousand names, so only as
    many as needed are sorted and checked for permission."""
    contains = query.contains.lower()
    left = [name for name in names if name > query.cursor] if query.cursor else list(names)
    if contains:
        left = [name for name in left if contains in name.lower()]
    heapify(left)
    page: list[str] = []
    while left:
        await work.step()
        name = heappop(left)
        if may(name):
            if len(page) == limit:
                return page, page[-1]
            page.append(name)
    return page, None
