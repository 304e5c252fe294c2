"""The progress of consumer groups: shown (208, 317, 303, 43), reset (222) and copied (314)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from typing import TypeVar

from gateway.broker import Broker
from gateway.handlers.steps import Steps
from gateway.pops.orders import Place
from gateway.reactor import Reactor
from gateway.router import Call, RequestError, check_number
from gateway.topics import Topic, is_group_name
from gateway.wire.admin_bodies import DataVersion
from gateway.wire.codes import ResponseCode
from gateway.wire.headers import (
    CloneGroupOffset,
    GetBrokerConsumeStats,
    GetConsumeStats,
    QueryConsumeTimeSpan,
    ResetOffset,
)
from gateway.wire.progress_bodies import (
    Progress,
    TimeSpan,
    encode_all_offsets,
    encode_broker_consume_stats,
    encode_consume_stats,
    encode_offsets_by_queue,
    encode_progress,
    encode_stats_of_group,
    encode_time_spans,
)
from storage import Queue

Target = TypeVar("Target")

QUEUES_AT_ONCE = 500
"""Queues looked at in one turn of the reactor, some 3 ms of work."""

AS_QUEUES = 10
"""As how many queues a group and a topic count."""

OFFSETS_AT_ONCE = 1_000
"""Offsets collected in one turn, some 3 ms of work."""

SET_AT_ONCE = 1_000
"""Offsets reset or copied in one turn, some 10 ms of work with their commit."""

MAX_COPIED = 50_000
"""Offsets that one request copies to another group."""

NO_OFFSET = -1
"""An offset that tools leave out."""

NO_TIME = -1
"""The time of a message that there is not (DefaultMessageStore.getMessageStoreTimeStamp)."""


class _Sums:
    """Adds up the progress that one answer tells of."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._size = 0
        self._looked_at = 0
        self.behind = 0
        """Messages that are not confirmed."""
        self.in_flight = 0
        """Those of them that have been handed out."""

    def add(self, progress: list[Progress]) -> bytes:
        """Return progress as the answer has it.

        :raises RequestError: when the answer becomes larger than clients accept.
        """
        self.behind += sum(one.broker_offset - one.consumer_offset for one in progress)
        self.in_flight += sum(one.pull_offset - one.consumer_offset for one in progress)
        encoded = encode_progress(progress)
        self._size += len(encoded)
        self._call.check_size(self._size)
        self._looked_at += len(progress) + AS_QUEUES
        return encoded

    def fill_a_turn(self) -> bool:
        """Return whether enough was looked at for one turn of the reactor. If so, the next turn begins."""
        is_enough = self._looked_at >= QUEUES_AT_ONCE
        if is_enough:
            self._looked_at = 0
        return is_enough


class GroupProgress:
    """Shows and changes the progress of groups."""

    def __init__(self, broker: Broker, reactor: Reactor) -> None:
        self._broker = broker
        self._store = broker.store
        self._topics = broker.topics
        self._steps = Steps(reactor, broker.committer)

    def of_group(self, call: Call) -> None:
        """Answer with a group's progress in all its topics, or in those that the request names (208). Topics of a list
        are included even if the group's members no longer subscribe to them. There can be thousands of topics of
        thousands of queues, so other work has its turn in between."""
        self._steps.begin(self._of_group(call), call)

    def _of_group(self, call: Call) -> Iterator[None]:
        fields: GetConsumeStats = call.fields
        group = fields.consumer_group
        if fields.topic_list:
            # The list may hold a name 500,000 times.
            topics = self._existing(dict.fromkeys(fields.topic_list.split(";")))
        elif fields.topic:
            topics = self._consumed(group, [fields.topic])
        else:
            topics = self._consumed(group, self._broker.topics_consumed_by(group))
        stats = yield from self._stats(group, topics, _Sums(call))
        parts = [part for parts, _ in stats for part in parts]
        call.answer(body=encode_consume_stats(parts, sum(rate for _, rate in stats)))

    def _stats(
        self, group: str, topics: Iterable[Topic], sums: _Sums
    ) -> Generator[None, None, list[tuple[list[bytes], float]]]:
        """Return a group's progress in these topics, encoded, and its messages per second in each. Others have their
        turn in between."""
        stats = []
        for topic in topics:
            parts = []
            queues = range(topic.settings.read_queue_nums)
            for begin in range(0, len(queues), QUEUES_AT_ONCE):
                parts.append(
                    sums.add(self._progress(group, topic, queues[begin:][:QUEUES_AT_ONCE]))
                )
                if sums.fill_a_turn():
                    yield
            stats.append((parts, self._broker.stats.group_get_rate(topic.name, group)))
        return stats

    def of_all_groups(self, call: Call) -> None:
        """Answer with every group's progress in every topic, or in ordered topics only (317). There can be thousands of
        groups, so other work has its turn in between."""
        self._steps.begin(self._all_groups(call), call)

    def _all_groups(self, call: Call) -> Iterator[None]:
        fields: GetBrokerConsumeStats = call.fields
        encoded: list[bytes] = []
        sums = _Sums(call)
        for group in [settings.group_name for settings in self._broker.groups]:
            topics = [
                topic
                for topic in self._consumed(group, self._broker.topics_consumed_by(group))
                if topic.settings.order or not fields.is_order
            ]
            stats = yield from self._stats(group, topics, sums)
            encoded.append(encode_stats_of_group(group, stats))
            sums.add([])
            if sums.fill_a_turn():
                yield
        body = encode_broker_consume_stats(
            str(self._broker.advertised), encoded, sums.behind, sums.in_flight
        )
        call.answer(body=body)

    def time_spans(self, call: Call) -> None:
        """Answer with the times at which each queue's oldest, newest and last consumed message were stored (303). A
        topic can have thousands of queues, so other work has its turn in between."""
        self._steps.begin(self._time_spans(call), call)

    def _time_spans(self, call: Call) -> Iterator[None]:
        fields: QueryConsumeTimeSpan = call.fields
        topic = self._topics.get(fields.topic)
        if topic is None:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{fields.topic}] not exist")
        group = fields.group.encode()
        now_ms = self._broker.clock.now_ms()
        spans = []
        for number in range(topic.settings.write_queue_nums):
            if number % QUEUES_AT_ONCE == QUEUES_AT_ONCE - 1:
                yield
            queue = self._store.queue(topic.stored_name, number)
            offset = self._store.progress.get(group, topic.stored_name, number) or 0
            oldest_ms = self._stored_ms(queue, queue.first)
            consumed_ms = self._stored_ms(queue, offset - 1) if offset > 0 else oldest_ms
            next_ms = self._stored_ms(queue, max(offset, queue.first))
            spans.append(
                TimeSpan(
                    self._broker.message_queue(topic.name, number),
                    oldest_ms or NO_TIME,
                    self._stored_ms(queue, queue.visible - 1) or NO_TIME,
                    consumed_ms or NO_TIME,
                    max(0, now_ms - next_ms) if next_ms else 0,
                )
            )
        call.answer(body=encode_time_spans(spans))

    def all_offsets(self, call: Call) -> None:
        """Answer with the progress of all groups (43), also in several turns."""
        self._steps.begin(self._all_offsets(call), call)

    def _all_offsets(self, call: Call) -> Iterator[None]:
        topics: dict[str, list[str]] = {}
        offsets: dict[str, dict[int, int]] = {}
        rows = self._store.progress.rows()
        for count, (stored_group, stored_topic, number, offset) in enumerate(rows, 1):
            group, topic = stored_group.decode(), stored_topic.decode()
            queues = offsets.get(f"{topic}@{group}")
            if queues is None:
                queues = offsets[f"{topic}@{group}"] = {}
                topics.setdefault(group, []).append(topic)
            queues[number] = offset
            if count % OFFSETS_AT_ONCE == 0:
                yield
        version = DataVersion(0, self._broker.stats.started_ms)
        call.answer(body=encode_all_offsets(version, topics, offsets))

    def reset(self, call: Call) -> None:
        """Reset a group's offsets to a time, an offset, or a queue's end (222).

        Online members get the new offset in the answer to their next pull; a pull that waits is answered at once. A
        topic can have thousands of queues, so other work has its turn in between.
        """
        fields: ResetOffset = call.fields
        topic = self._topics.get(fields.topic)
        if topic is None:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {fields.topic} does not exist")
        if self._broker.groups.get(fields.group) is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {fields.group} does not exist"
            )
        self._steps.change_in_parts(self._reset(call, fields, topic), call)

    def _reset(self, call: Call, fields: ResetOffset, topic: Topic) -> Iterator[None]:
        targets: list[tuple[Queue, int]] = []
        for target in self._targets(fields, topic):
            if targets and len(targets) % SET_AT_ONCE == 0:
                yield
            targets.append(target)

        def reset(target: tuple[Queue, int]) -> None:
            queue, offset = target
            self._broker.resets.assign(fields.group, topic.name, queue.number, offset)
            self._go_on_at(fields.group, topic, queue.number, offset)

        yield from self._broker.committer.in_parts(self._each(reset, targets))
        self._broker.committer.once_stored(self._broker.resets.reload)
        body = encode_offsets_by_queue(
            (self._broker.message_queue(topic.name, queue.number), offset)
            for queue, offset in targets
        )
        self._broker.committer.answer(call, call.encode(body=body))
        self._broker.parked.wake(queue for queue, _ in targets)

    def _targets(self, fields: ResetOffset, topic: Topic) -> Iterator[tuple[Queue, int]]:
        """Return the queues to reset, each with its new offset."""
        count = topic.settings.read_queue_nums
        if not count:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "No queues to reset.")
        if fields.queue_id >= count:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"topic {fields.topic} has {count} queues, none of the number {fields.queue_id}",
            )
        # The offset of a request counts only when the request names one queue.
        is_one = fields.queue_id >= 0
        asked = fields.offset if is_one and fields.offset != NO_OFFSET else None
        for number in [fields.queue_id] if is_one else range(count):
            queue = self._store.queue(topic.stored_name, number)
            yield queue, self._target(queue, asked, fields.timestamp)

    def _target(self, queue: Queue, asked: int | None, timestamp: int) -> int:
        if asked is not None:
            if not queue.first <= asked <= queue.visible:
                raise RequestError(
                    ResponseCode.SYSTEM_ERROR,
                    f"Target offset {asked} not in consume queue range "
                    f"[{queue.first}-{queue.visible}]",
                )
            return asked
        return queue.visible if timestamp < 0 else self._store.offset_at(queue, timestamp)

    def clone(self, call: Call) -> None:
        """Copy a group's progress to another group, in one topic or in all (314). That may be in thousands of queues,
        so other work has its turn in between."""
        fields: CloneGroupOffset = call.fields
        if not is_group_name(fields.dest_group):
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"no group can have the name {fields.dest_group[:60]!r}",
            )
        source = fields.src_group.encode()
        names = (
            [fields.topic] if fields.topic else self._broker.topics_consumed_by(fields.src_group)
        )
        topics = (
            self._existing(names) if fields.offline else self._consumed(fields.src_group, names)
        )
        of_source = self._store.progress.of_group(source)
        offsets = [
            (topic, number, offset)
            for topic in topics
            for number, offset in of_source.get(topic.stored_name, {}).items()
            if number < topic.settings.read_queue_nums
        ]
        check_number("offsets to copy at once (name a topic)", len(offsets), MAX_COPIED)
        self._steps.change_in_parts(self._copy(call, fields.dest_group, offsets), call)

    def _copy(
        self, call: Call, group: str, offsets: list[tuple[Topic, int, int]]
    ) -> Iterator[None]:
        def copy(place: tuple[Topic, int, int]) -> None:
            self._go_on_at(group, *place)

        yield from self._broker.committer.in_parts(self._each(copy, offsets))
        self._broker.committer.once_stored(self._broker.resets.reload)
        self._broker.committer.answer(call, call.encode())

    def _each(self, change: Callable[[Target], None], targets: Iterable[Target]) -> Iterator[None]:
        """Change a group's progress in each of these places. Each step changes up to `SET_AT_ONCE`, as part of the
        batch, which is to be stored before the next step."""
        for count, target in enumerate(targets):
            if count and count % SET_AT_ONCE == 0:
                self._store.progress.include()
                yield
            change(target)
        self._store.progress.include()

    def _go_on_at(self, group: str, topic: Topic, queue: int, offset: int) -> None:
        """Set a group's progress, and forget what was handed out to it before."""
        self._broker.orders.forget([Place(group, topic.name, queue)])
        self._broker.committer.once_stored(
            partial(self._broker.stats.moved, topic.name, group, queue)
        )
        self._store.progress.advance(group.encode(), topic.stored_name, queue, offset)

    def _consumed(self, group: str, names: Iterable[str]) -> list[Topic]:
        """Return those of the topics that exist and that the group has not given up (`Clients.gave_up`)."""
        clients = self._broker.clients
        return [topic for topic in self._existing(names) if not clients.gave_up(group, topic.name)]

    def _existing(self, names: Iterable[str]) -> list[Topic]:
        return [topic for topic in map(self._topics.get, names) if topic is not None]

    def _progress(self, group: str, topic: Topic, queues: Iterable[int]) -> list[Progress]:
        progress = []
        for number in queues:
            queue = self._store.queue(topic.stored_name, number)
            offset = self._store.progress.get(group.encode(), topic.stored_name, number) or 0
            progress.append(
                Progress(
                    self._broker.message_queue(topic.name, number),
                    queue.visible,
                    offset,
                    max(offset, self._broker.stats.reached(topic.name, group, number)),
                    self._stored_ms(queue, offset - 1),
                )
            )
        return progress

    def _stored_ms(self, queue: Queue, offset: int) -> int:
        """Return when the message at an offset entered its queue, or 0 if there is none."""
        if not queue.first <= offset < queue.visible:
            return 0
        return self._store.stored_ms(queue, offset) or 0
