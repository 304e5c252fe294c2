"""Topics and consumer groups, as tools create, read and delete them."""

from __future__ import annotations

from gateway.broker import Broker
from gateway.router import Call, RequestError
from gateway.topics import NOT_FOUND_HELP, check_topic_name
from gateway.wire.bodies import (
    GroupSettings,
    TopicSettings,
    encode_group_settings,
    encode_topic_settings,
    parse_attributes,
    parse_group_settings,
)
from gateway.wire.codes import ResponseCode
from gateway.wire.headers import (
    CreateTopic,
    DeleteGroup,
    DeleteTopic,
    GetGroupConfig,
    GetTopicConfig,
)


class Admin:
    """Changes topics and groups; each change is answered once it is on disk."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._topics = broker.topics
        self._groups = broker.groups

    def create_topic(self, call: Call) -> None:
        """Create a topic or change its settings (17)."""
        fields: CreateTopic = call.fields
        check_topic_name(fields.topic)
        self._refuse_system_topic(fields.topic)
        self._topics.put(
            TopicSettings(
                fields.topic,
                max(0, fields.read_queue_nums),
                max(0, fields.write_queue_nums),
                fields.perm,
                order=fields.order,
                topic_filter_type=fields.topic_filter_type,
                topic_sys_flag=fields.topic_sys_flag or 0,
                attributes=parse_attributes(fields.attributes or ""),
            )
        )
        self._answer_on_disk(call)

    def topic_config(self, call: Call) -> None:
        """A topic's settings (351)."""
        fields: GetTopicConfig = call.fields
        topic = self._topics.get(fields.topic)
        if topic is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {fields.topic}"
            )
        call.answer(body=encode_topic_settings(topic.settings))

    def delete_topic(self, call: Call) -> None:
        """Delete a topic (215); what it holds goes with the next clean-up. The name server's half (216) is the same."""
        fields: DeleteTopic = call.fields
        self._refuse_system_topic(fields.topic)
        self._topics.delete(fields.topic)
        self._answer_on_disk(call)

    def put_group(self, call: Call) -> None:
        """Create a consumer group or change its settings (200)."""
        settings: GroupSettings = parse_group_settings(call.command.body)
        self._groups.put(settings)
        self._answer_on_disk(call)

    def group_config(self, call: Call) -> None:
        """A consumer group's settings (352)."""
        fields: GetGroupConfig = call.fields
        group = self._groups.find(fields.group)
        if group is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {fields.group} {NOT_FOUND_HELP}",
            )
        call.answer(body=encode_group_settings(group))

    def delete_group(self, call: Call) -> None:
        """Delete a consumer group (207), and its progress if asked to."""
        fields: DeleteGroup = call.fields
        self._groups.delete(fields.group_name)
        if fields.clean_offset:
            self._broker.store.forget_offsets(fields.group_name.encode())
        self._answer_on_disk(call)

    def _refuse_system_topic(self, name: str) -> None:
        if name in self._topics.system:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"The topic[{name}] is conflict with system topic.",
            )

    def _answer_on_disk(self, call: Call) -> None:
        self._broker.committer.answer(call, call.encode())
