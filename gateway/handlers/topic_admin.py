"""Topics as tools manage them: create (17, 18), read (21, 351, 202, 305, 321) and delete (215)."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from functools import partial

from gateway import attributes
from gateway.broker import Broker
from gateway.handlers.steps import Steps, in_turns
from gateway.reactor import Reactor
from gateway.router import Call, RequestError, check_number
from gateway.topics import MAX_PUT, PUT_AT_ONCE, check_queues, check_topic_name
from gateway.versions import TableVersion
from gateway.wire.admin_bodies import (
    encode_topics,
    parse_topic_settings_list,
)
from gateway.wire.bodies import (
    TopicSettings,
    encode_topic_list,
    encode_topic_settings,
    parse_attribute_changes,
)
from gateway.wire.codes import ResponseCode
from gateway.wire.group_topics import RETRY_PREFIX, retry_topic
from gateway.wire.headers import (
    CreateTopic,
    DeleteTopic,
    GetAllTopics,
    GetTopicConfig,
    GetTopicStats,
    QueryConsumeQueue,
)
from gateway.wire.progress_bodies import (
    QueueEnds,
    QueueRow,
    encode_queue_rows,
    encode_topic_stats,
)

FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")
"""Names of TopicFilterType. They are stored without effect: a message has one tag."""

QUEUES_AT_ONCE = 500
"""Queues looked at in one turn of the reactor, some 2 ms of work."""

MAX_ROWS = 1_000
"""Most entries of a queue in one answer to 321."""


class TopicAdmin:
    """Changes topics; each change is answered once it is on disk."""

    def __init__(self, broker: Broker, reactor: Reactor) -> None:
        self._broker = broker
        self._topics = broker.topics
        self._steps = Steps(reactor, broker.committer)
        self._version = TableVersion(broker.topics)

    def create_topic(self, call: Call) -> None:
        """Create a topic or change its settings (17)."""
        fields: CreateTopic = call.fields
        settings = TopicSettings(
            fields.topic,
            fields.read_queue_nums,
            fields.write_queue_nums,
            fields.perm,
            order=fields.order,
            topic_filter_type=fields.topic_filter_type,
            topic_sys_flag=fields.topic_sys_flag or 0,
            attributes=parse_attribute_changes(fields.attributes or ""),
        )
        self._topics.check_room(settings.topic_name)
        self._settle(settings)
        self._put(settings)
        self._answer_on_disk(call)

    def create_topics(self, call: Call) -> None:
        """Create topics or change their settings (18): all of them, or none if one is refused. There can be thousands,
        so other work has its turn in between."""
        topics = parse_topic_settings_list(call.command.body)
        check_number("topics in one request", len(topics), MAX_PUT)
        self._topics.check_room(*(settings.topic_name for settings in topics))
        self._steps.change_in_parts(self._create_topics(call, topics), call)

    def _create_topics(self, call: Call, topics: list[TopicSettings]) -> Iterator[None]:
        yield from in_turns(self._settle, topics, PUT_AT_ONCE)
        yield from self._broker.committer.in_parts(in_turns(self._put, topics, PUT_AT_ONCE))
        self._answer_on_disk(call)

    def _settle(self, settings: TopicSettings) -> None:
        """Refuse settings that no topic can have. Replace the changes of attributes in them by the resulting
        attributes. Remove what is left of a deleted topic with the same name."""
        self._refuse_system_topic(settings.topic_name)
        check_topic_name(settings.topic_name)
        check_queues(settings.topic_name, max(settings.read_queue_nums, settings.write_queue_nums))
        if settings.topic_filter_type not in FILTER_TYPES:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the topicFilterType is one of {', '.join(FILTER_TYPES)}, "
                f"not {settings.topic_filter_type[:60]!r}",
            )
        current = self._topics.get(settings.topic_name)
        settings.attributes = attributes.changed(
            current.settings.attributes if current is not None else None,
            settings.attributes,
            attributes.OF_TOPICS,
        )
        if current is None:
            self._topics.clear(settings.topic_name)

    def topic_config(self, call: Call) -> None:
        """Answer with a topic's settings (351)."""
        fields: GetTopicConfig = call.fields
        topic = self._topics.get(fields.topic)
        if topic is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {fields.topic}"
            )
        call.answer(body=encode_topic_settings(topic.settings))

    def all_topics(self, call: Call) -> None:
        """Answer with the settings of all topics, or of a page of them (21)."""
        fields: GetAllTopics = call.fields
        settings = [topic.settings for topic in self._topics]
        total = len(settings)
        if fields.topic_seq is not None:
            begin = max(0, fields.topic_seq)
            settings = settings[begin : begin + max(0, fields.max_topic_num or total)]
        version = self._version.at(self._broker.clock.now_ms())
        call.answer({"totalTopicNum": str(total)}, encode_topics(version, settings))

    def delete_topic(self, call: Call) -> None:
        """Delete a topic and all groups' progress in it (215), and the topics where its popped messages come back.
        Thousands of groups may have progress in thousands of queues, so other work has its turn in between. The next
        clean-up removes the messages."""
        fields: DeleteTopic = call.fields
        if not fields.topic.strip():
            raise RequestError(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
        self._refuse_system_topic(fields.topic)
        self._steps.change_in_parts(self._delete_with_progress(call, fields.topic), call)

    def _delete_with_progress(self, call: Call, topic: str) -> Iterator[None]:
        progress, committer = self._broker.store.progress, self._broker.committer
        groups = progress.groups_in(topic.encode())
        come_back = (retry_topic(topic, group.decode()) for group in groups)
        # Another group's own retry topic may have the same name: keep that one.
        retried = {
            name
            for name in come_back
            if self._topics.get(name) is not None
            and self._broker.groups.get(name.removeprefix(RETRY_PREFIX)) is None
        }
        names = dict.fromkeys((topic, *retried)).keys()
        self._delete(names)
        forgetting = progress.forget_topics(*(name.encode() for name in names))
        yield from committer.in_parts(forgetting)
        committer.once_stored(self._broker.resets.reload)
        self._answer_on_disk(call)

    def topic_stats(self, call: Call) -> None:
        """Answer with each queue's ends and the time of its last message (202). A topic can have thousands of queues,
        so other work has its turn in between."""
        self._steps.begin(self._topic_stats(call), call)

    def _topic_stats(self, call: Call) -> Iterator[None]:
        fields: GetTopicStats = call.fields
        topic = self._topics.get(fields.topic)
        if topic is None:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{fields.topic}] not exist")
        store = self._broker.store
        ends = []
        for number in range(topic.queues):
            if number % QUEUES_AT_ONCE == QUEUES_AT_ONCE - 1:
                yield
            queue = store.queue(topic.stored_name, number)
            last_ms = store.stored_ms(queue, queue.visible - 1) if queue.visible else None
            ends.append(
                QueueEnds(
                    self._broker.message_queue(topic.name, number),
                    queue.first,
                    queue.visible,
                    last_ms or 0,
                )
            )
        rate = self._broker.stats.topic_put_rate(topic.name)
        call.answer(body=encode_topic_stats(ends, rate))

    def system_topics(self, call: Call) -> None:
        """Answer with the gateway's own topics (305)."""
        call.answer(body=encode_topic_list(sorted(self._topics.system)))

    def queue_rows(self, call: Call) -> None:
        """Answer with entries of a queue (321): each message's place, size and tag hash."""
        fields: QueryConsumeQueue = call.fields
        topic = self._topics.get(fields.topic)
        if topic is None or not 0 <= fields.queue_id < topic.settings.read_queue_nums:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"{fields.queue_id}@{fields.topic} is not exist!"
            )
        store = self._broker.store
        queue = store.queue(topic.stored_name, fields.queue_id)
        if not queue.first <= fields.index < queue.visible:
            # Tools expect success without a body here (AdminBrokerProcessor.queryConsumeQueue).
            call.answer(
                remark=f"Index {fields.index} of {fields.queue_id}@{fields.topic} is not exist!"
            )
            return
        most = max(1, min(fields.count, MAX_ROWS))
        rows = [
            QueueRow(sequence, size, tag_hash)
            for sequence, tag_hash, size in store.rows(queue, fields.index, most)
        ]
        subscription, filter_data = None, None
        if fields.consumer_group:
            group = self._broker.clients.consumer_group(fields.consumer_group)
            subscription = group.subscriptions.get(topic.name) if group is not None else None
            filter_data = (
                "null"
                if subscription is not None
                else f"{fields.consumer_group}@{topic.name} is not online!"
            )
        call.answer(
            body=encode_queue_rows(queue.first, queue.visible, rows, subscription, filter_data)
        )

    def _refuse_system_topic(self, name: str) -> None:
        if name in self._topics.system:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"The topic[{name}] is conflict with system topic.",
            )

    def _put(self, settings: TopicSettings) -> None:
        settings.read_queue_nums = max(0, settings.read_queue_nums)
        settings.write_queue_nums = max(0, settings.write_queue_nums)
        current = self._topics.get(settings.topic_name)
        if current is None or current.settings != settings:
            self._topics.put(settings)

    def _delete(self, names: AbstractSet[str]) -> None:
        """Delete topics. Whatever is looked through for them is looked through once: there can be thousands."""
        self._topics.delete(*names)
        for name in names:
            self._broker.recurring.forget_topic(name)
        self._broker.orders.forget_topics(names)
        self._broker.modes.forget_topics(names)
        self._broker.committer.once_stored(partial(self._broker.stats.forget_topics, names))

    def _answer_on_disk(self, call: Call) -> None:
        self._broker.committer.answer(call, call.encode())
