"""The queues that a group pops from, its progress in them, and the pops that it may not make."""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

from gateway.broker import Broker
from gateway.filters import (
    ALL_TAGS,
    TAG,
    Filter,
    FilterError,
    filter_of,
    is_tag_type,
    unsupported,
)
from gateway.pops.orders import Place
from gateway.router import Call, RequestError, check_number
from gateway.topics import MAX_PREFIXED_NAME, PERM_READ, Topic
from gateway.wire.bodies import GroupSettings
from gateway.wire.codes import ResponseCode
from gateway.wire.group_topics import retry_topic
from gateway.wire.pops import NORMAL, RETRIED
from storage import MAX_ROWS_FILTERED, DamagedError, Page, Queue, Store

MAX_MESSAGES: Final = 32
"""Most messages of one pop."""

LONGEST_INVISIBLE_MS: Final = 1 << 42
"""Long enough for any client that keeps a message, and short enough that no sum of times overflows."""

MAX_ATTEMPT: Final = 1_000
"""Characters of the id of an attempt. It is stored with each queue that is popped in order, and kept while a request
waits."""

FROM_NEWEST: Final = 1
"""The initMode of groups that begin at a queue's end (ConsumeInitMode.MAX)."""

NO_FILTER: Final = "parse the consumer's subscription failed"


def check_attempt(attempt: str | None) -> None:
    """:raises RequestError: when the id of an attempt is too long."""
    check_number("characters of an attempt's id", len(attempt or ""), MAX_ATTEMPT)


class PopQueue(NamedTuple):
    """A queue, and whether it belongs to the requested topic or to the retry topic, where messages come back."""

    kind: str
    queue: Queue


class Search:
    """The reads of one request in several queues. Together they examine about as many rows as the read of one queue
    may, however many queues there are."""

    def __init__(self, store: Store, wanted: Filter) -> None:
        self._store = store
        self._wanted = wanted
        self._left = MAX_ROWS_FILTERED if wanted.matches is None else wanted.most_judged
        self.is_over = False
        """Whether no other queue is to be read: one has more than fits into an answer, or enough rows were examined."""

    def read(self, one: PopQueue, offset: int, limit: int, max_bytes: int) -> Page:
        """Read messages of a queue from an offset on: those that the filter selects, or all of a retry topic's."""
        chosen = self._wanted if one.kind == NORMAL else Filter()
        page = self._store.read(one.queue, offset, limit, max_bytes, *chosen)
        self._left -= page.next_offset - offset
        self.is_over = page.next_offset < one.queue.visible or self._left <= 0
        return page


class PopQueues:
    """Finds the queues of pops, and refuses what may not be popped (PopMessageProcessor)."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._store = broker.store

    def find(self, call: Call, group: str, topic: str, queue_id: int) -> list[PopQueue]:
        """Return the queues of a request: first the retry topic's, where messages come back, then the topic's. Queue -1
        stands for all of the topic. A queue that cannot be read is left out.

        :raises RequestError: when the group may not pop from them.
        :raises DamagedError: when none of the topic's queues can be read.
        """
        known = self._readable(topic)
        count = known.settings.read_queue_nums
        if queue_id >= count:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic:[{topic}] "
                f"topicConfig.readQueueNums:[{count}] consumer:[/{call.peer.address}]",
            )
        _check_group(self._broker.groups.need(group))
        back_in = retry_topic(topic, group)
        if len(back_in.encode()) > MAX_PREFIXED_NAME:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"the retry topic {back_in} is longer than {MAX_PREFIXED_NAME} bytes",
            )
        numbers = [queue_id] if queue_id >= 0 else range(count)
        found: list[PopQueue] = []
        damage: DamagedError | None = None
        places = (
            (RETRIED, back_in.encode(), 0),
            *((NORMAL, known.stored_name, one) for one in numbers),
        )
        for kind, name, number in places:
            try:
                found.append(PopQueue(kind, self._store.queue(name, number)))
            except DamagedError as error:
                damage = error
        if damage is not None and not any(one.kind == NORMAL for one in found):
            raise damage
        return found

    def check_again(self, group: str, topic: str) -> None:
        """Check that a group that waits to pop from a topic still may.

        :raises RequestError: when it may not.
        """
        self._readable(topic)
        settings = self._broker.groups.get(group)
        if settings is not None:
            _check_group(settings)

    def _readable(self, name: str) -> Topic:
        topic = self._broker.topics.need(name)
        if not topic.settings.perm & PERM_READ:
            raise RequestError(
                ResponseCode.NO_PERMISSION, f"the topic[{name}] peeking message is forbidden"
            )
        return topic

    def filter(self, expression: str | None, expression_type: str | None) -> Filter:
        """Return the filter of a request; one that selects everything when the request has none.

        :raises RequestError: when the filter cannot be read.
        """
        if not self._broker.config.property_filter and not is_tag_type(expression_type):
            raise unsupported(expression_type)
        try:
            return filter_of(expression or ALL_TAGS, expression_type if expression else TAG)
        except FilterError as error:
            raise RequestError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, NO_FILTER) from error

    def blocks(self, group: str, queue: Queue, attempt: str | None, now_ms: int) -> bool:
        """Whether a pop in order has to wait because messages of the queue are under way."""
        pop = self._broker.orders.get(Place(group, queue.topic.decode(), queue.number))
        return pop is not None and pop.blocks(attempt, now_ms)

    def progress(self, group: str, one: PopQueue, init_mode: int, *, pops: bool) -> int:
        """Return where a group goes on in a queue. A group that is new there begins at the oldest message. It begins at
        the newest, as a pulling group does, if it asks for that and the queue is not young.

        :param pops: whether this is a pop. Then an operator's reset counts as picked up, and progress past the queue's
            end is set back to the end. The start of a new group is then stored even if the queue is empty, as the
            group would otherwise skip what comes next.
        """
        queue = one.queue
        name = queue.topic.decode()
        if self._broker.topics.get(name) is None:
            # The retry topic does not exist yet, or was deleted: nobody may read what its queue still holds.
            return queue.visible
        if pops:
            self._pick_up_reset(group, name, queue.number)
        offset = self._store.progress.get(group.encode(), queue.topic, queue.number)
        if offset is None:
            is_young = queue.first == self._broker.topics.begin_of(name, queue.number)
            newest = init_mode == FROM_NEWEST and one.kind == NORMAL and not is_young
            begin = max(queue.first, queue.visible - 1) if newest else queue.first
            if pops and one.kind == NORMAL:  # of a retry topic all begin at the oldest message
                self._store.progress.note(group.encode(), queue.topic, queue.number, begin)
            return begin
        if offset > queue.visible:
            offset = queue.visible
            if pops:
                self._store.progress.advance(group.encode(), queue.topic, queue.number, offset)
        return max(queue.first, offset)

    def _pick_up_reset(self, group: str, topic: str, queue: int) -> None:
        resets, committer = self._broker.resets, self._broker.committer
        offset = resets.find(group, topic, queue)
        if offset is not None:
            committer.once_stored(partial(resets.picked_up, group, topic, queue, offset))
            committer.change()


def _check_group(group: GroupSettings) -> None:
    if not group.consume_enable:
        raise RequestError(
            ResponseCode.NO_PERMISSION, f"subscription group no permission, {group.group_name}"
        )
