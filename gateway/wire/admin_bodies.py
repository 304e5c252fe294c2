"""JSON bodies of tools: statistics, connections, progress, lists of topics and groups, broker settings.

Maps keyed by queues are written as Java reads them, which is no JSON (see `dialect`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from gateway.wire.bodies import (
    BodyError,
    ConsumerData,
    GroupSettings,
    MessageQueue,
    Subscription,
    TopicSettings,
)
from gateway.wire.dialect import DialectError, map_by_objects, to_json
from gateway.wire.messages import java_hash

_Item = TypeVar("_Item")
_encode = msgspec.json.Encoder().encode
_ALL_TAGS: Final = "*"
_MAX_LINE: Final = 60


class DataVersion(msgspec.Struct, rename="camel"):
    """Which state of a table this is (DataVersion): `counter` grows with each change, at `timestamp` ms."""

    counter: int
    timestamp: int
    state_version: int = 0


class QueueEnds(NamedTuple):
    """A queue's ends, and when its last message entered it, in ms; 0 when it holds none (TopicOffset)."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    last_update_ms: int


class Progress(NamedTuple):
    """How far a group is in a queue (OffsetWrapper).

    `pull_offset` is behind the last message handed out, `last_ms` when the last consumed one entered the queue.
    """

    queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    pull_offset: int
    last_ms: int


class TimeSpan(NamedTuple):
    """When a queue's messages entered it, in ms (QueueTimeSpan): the oldest, the newest, and the last
    one that the group has consumed. `delay_ms` is how long the next one has waited.
    """

    queue: MessageQueue
    min_ms: int
    max_ms: int
    consumed_ms: int
    delay_ms: int


class Connection(msgspec.Struct, rename="camel"):
    """A client's connection (Connection)."""

    client_addr: str
    client_id: str
    language: str
    version: int


class ProducerInfo(msgspec.Struct, rename="camel"):
    """A producer of a group (ProducerInfo). `remote_ip` is written as Java writes an address: `/ip:port`."""

    client_id: str
    language: str
    last_update_timestamp: int
    remote_ip: str = msgspec.field(name="remoteIP")
    version: int = 0


class QueueRow(msgspec.Struct, rename="camel"):
    """A message's entry in its queue (ConsumeQueueData)."""

    physic_offset: int
    physic_size: int
    tags_code: int
    eval: bool = False
    """Whether the group's filter lets it pass."""


class ConsumeMode(msgspec.Struct, rename="camel"):
    """How a group is to get a topic's messages, `PULL` or `POP` (SetMessageRequestModeRequestBody)."""

    topic: str
    consumer_group: str
    mode: str = "PULL"


def parse_consume_mode(body: bytes) -> ConsumeMode:
    """Read the body of request 401.

    :raises BodyError: when it is none.
    """
    try:
        return msgspec.json.decode(to_json(body), type=ConsumeMode)
    except (DialectError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BodyError(f"the body cannot be read: {error}") from error


def parse_topic_settings_list(body: bytes) -> list[TopicSettings]:
    """Read the body of request 18 (CreateTopicListRequestBody).

    :raises BodyError: when it is none.
    """
    return _parse_list(body, "topicConfigList", TopicSettings)


def parse_group_settings_list(body: bytes) -> list[GroupSettings]:
    """Read the body of request 225 (SubscriptionGroupList).

    :raises BodyError: when it is none.
    """
    return _parse_list(body, "groupConfigList", GroupSettings)


def parse_changes(body: bytes) -> dict[str, str]:
    """Read settings as lines of `name=value`: the body of requests 25 and 318 (Properties).

    Empty lines and those that begin with `#` say nothing.

    :raises BodyError: for any other line.
    """
    changes = {}
    for line in body.decode(errors="replace").splitlines():
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise BodyError(f"settings are lines of name=value, not {text[:_MAX_LINE]!r}")
        changes[name.strip()] = value.strip()
    return changes


def encode_changes(values: Mapping[str, str]) -> bytes:
    """The same in the order of names: the answer to 26 and 319."""
    return "".join(f"{name}={values[name]}\n" for name in sorted(values)).encode()


def encode_version(version: DataVersion) -> str:
    """A version as an ext field has it."""
    return _encode(version).decode()


def encode_topics(version: DataVersion, topics: Iterable[TopicSettings]) -> bytes:
    """The answer to 21 (TopicConfigAndMappingSerializeWrapper); no topic is spread over brokers."""
    return _encode(
        {
            "dataVersion": version,
            "mappingDataVersion": DataVersion(0, version.timestamp),
            "topicConfigTable": {settings.topic_name: settings for settings in topics},
            "topicQueueMappingDetailMap": {},
            "topicQueueMappingInfoMap": {},
        }
    )


def encode_groups(version: DataVersion, groups: Iterable[GroupSettings]) -> bytes:
    """The answer to 201 (SubscriptionGroupWrapper)."""
    return _encode(
        {
            "dataVersion": version,
            "forbiddenTable": {},
            "subscriptionGroupTable": {settings.group_name: settings for settings in groups},
        }
    )


def encode_topic_list_of(broker_address: str, topics: Iterable[str]) -> bytes:
    """The answer to 304 and 343: topics, and the broker that answers (TopicList)."""
    return _encode({"brokerAddr": broker_address, "topicList": list(topics)})


def encode_table(values: Mapping[str, str]) -> bytes:
    """The answer to 28 and 219 (KVTable)."""
    return _encode({"table": dict(values)})


def encode_topic_stats(queues: Iterable[QueueEnds], put_per_second: float) -> bytes:
    """The answer to 202 (TopicStatsTable)."""
    table = map_by_objects(
        (
            ends.queue,
            {
                "lastUpdateTimestamp": ends.last_update_ms,
                "maxOffset": ends.max_offset,
                "minOffset": ends.min_offset,
            },
        )
        for ends in queues
    )
    return _encode({"offsetTable": table, "topicPutTps": put_per_second})


def encode_consumer_connections(
    data: ConsumerData,
    connections: Sequence[Connection],
    subscriptions: Iterable[Subscription],
) -> bytes:
    """The answer to 203 (ConsumerConnection)."""
    return _encode(
        {
            "connectionSet": connections,
            "consumeFromWhere": data.consume_from_where,
            "consumeType": data.consume_type,
            "messageModel": data.message_model,
            "subscriptionTable": {one.topic: subscription_data(one) for one in subscriptions},
        }
    )


def encode_producer_connections(connections: Sequence[Connection]) -> bytes:
    """The answer to 204 (ProducerConnection)."""
    return _encode({"connectionSet": connections})


def encode_producers(producers: Mapping[str, Sequence[ProducerInfo]]) -> bytes:
    """The answer to 328 (ProducerTableInfo)."""
    return _encode({"data": producers})


def encode_consume_stats(progress: Iterable[Progress], per_second: float) -> bytes:
    """The answer to 208 (ConsumeStats)."""
    return _encode(_consume_stats(progress, per_second))


def encode_broker_consume_stats(
    broker_address: str,
    groups: Sequence[tuple[str, Sequence[tuple[Sequence[Progress], float]]]],
) -> bytes:
    """The answer to 317 (ConsumeStatsList).

    :param groups: of each group, its progress and its messages a second in each of its topics.
    """
    all_progress = [one for _, topics in groups for progress, _ in topics for one in progress]
    return _encode(
        {
            "brokerAddr": broker_address,
            "consumeStatsList": [
                {group: [_consume_stats(progress, rate) for progress, rate in topics]}
                for group, topics in groups
            ],
            "totalDiff": sum(one.broker_offset - one.consumer_offset for one in all_progress),
            "totalInflightDiff": sum(one.pull_offset - one.consumer_offset for one in all_progress),
        }
    )


def _consume_stats(progress: Iterable[Progress], per_second: float) -> dict[str, Any]:
    table = map_by_objects(
        (
            one.queue,
            {
                "brokerOffset": one.broker_offset,
                "consumerOffset": one.consumer_offset,
                "lastTimestamp": one.last_ms,
                "pullOffset": one.pull_offset,
            },
        )
        for one in progress
    )
    return {"consumeTps": per_second, "offsetTable": table}


def encode_time_spans(spans: Iterable[TimeSpan]) -> bytes:
    """The answer to 303 (QueryConsumeTimeSpanBody)."""
    return _encode(
        {
            "consumeTimeSpanSet": [
                {
                    "consumeTimeStamp": span.consumed_ms,
                    "consumeTimeStampStr": _moment(span.consumed_ms),
                    "delayTime": span.delay_ms,
                    "maxTimeStamp": span.max_ms,
                    "maxTimeStampStr": _moment(span.max_ms),
                    "messageQueue": span.queue,
                    "minTimeStamp": span.min_ms,
                    "minTimeStampStr": _moment(span.min_ms),
                }
                for span in spans
            ]
        }
    )


def encode_group_list(groups: Iterable[str]) -> bytes:
    """The answer to 300 (GroupList)."""
    return _encode({"groupList": list(groups)})


def encode_subscription(group: str, topic: str, subscription: Subscription | None) -> bytes:
    """The answer to 345 (QuerySubscriptionResponseBody); offline there is no subscription."""
    body: dict[str, Any] = {"group": group}
    if subscription is not None:
        body["subscriptionData"] = subscription_data(subscription)
    return _encode({**body, "topic": topic})


def encode_offsets_by_queue(offsets: Iterable[tuple[MessageQueue, int]]) -> bytes:
    """The answer to 222 (ResetOffsetBody)."""
    return _encode({"offsetTable": map_by_objects(offsets)})


def encode_all_offsets(
    version: DataVersion,
    topics_of_groups: Mapping[str, Sequence[str]],
    offsets: Mapping[str, Mapping[int, int]],
) -> bytes:
    """The answer to 43 (ConsumerOffsetSerializeWrapper).

    :param offsets: by `topic@group`, the offset of each queue.
    """
    return _encode(
        {"dataVersion": version, "groupTopicMap": topics_of_groups, "offsetTable": offsets}
    )


def encode_delay_offsets(version: DataVersion, offsets: Mapping[int, int]) -> bytes:
    """The answer to 45 (DelayOffsetSerializeWrapper): how far each delay level is."""
    return _encode({"dataVersion": version, "offsetTable": offsets})


def encode_queue_rows(
    min_offset: int,
    max_offset: int,
    rows: Sequence[QueueRow],
    subscription: Subscription | None = None,
    filter_data: str | None = None,
) -> bytes:
    """The answer to 321 (QueryConsumeQueueResponseBody)."""
    body: dict[str, Any] = {"filterData": filter_data} if filter_data is not None else {}
    body |= {"maxQueueIndex": max_offset, "minQueueIndex": min_offset, "queueData": rows}
    if subscription is not None:
        body["subscriptionData"] = subscription_data(subscription)
    return _encode(body)


def encode_rates(spans: Mapping[str, tuple[int, float, float]]) -> bytes:
    """The answer to 315 (BrokerStatsData).

    :param spans: by name (`statsMinute`, `statsHour`, `statsDay`): sum, how much a second, how much a time.
    """
    return _encode(
        {
            name: {"avgpt": per_time, "sum": total, "tps": per_second}
            for name, (total, per_second, per_time) in spans.items()
        }
    )


def encode_ha_status(end: int) -> bytes:
    """The answer to 907 (HARuntimeInfo) of a broker without replicas whose log ends at `end`."""
    return _encode(
        {
            "haClientRuntimeInfo": {
                "lastReadTimestamp": 0,
                "lastWriteTimestamp": 0,
                "masterFlushOffset": 0,
                "maxOffset": 0,
                "transferredByteInSecond": 0,
            },
            "haConnectionInfo": [],
            "inSyncSlaveNums": 0,
            "master": True,
            "masterCommitLogMaxOffset": end,
        }
    )


def encode_cold_data_info() -> bytes:
    """The answer to 2003 of a broker that slows nobody down for reading old messages."""
    return _encode(
        {
            "runtimeTable": {},
            "configTable": {},
            "cgColdReadThreshold": 0,
            "globalColdReadThreshold": 0,
            "globalAcc": 0,
        }
    )


def subscription_data(subscription: Subscription) -> dict[str, Any]:
    """A subscription with the tags and the hashes that follow from it (SubscriptionData)."""
    tags = []
    if subscription.expression_type == "TAG" and subscription.sub_string.strip() != _ALL_TAGS:
        tags = [tag.strip() for tag in subscription.sub_string.split("||") if tag.strip()]
    return {
        "classFilterMode": False,
        "codeSet": [java_hash(tag) for tag in tags],
        "expressionType": subscription.expression_type,
        "subString": subscription.sub_string,
        "subVersion": subscription.sub_version,
        "tagsSet": tags,
        "topic": subscription.topic,
    }


def _parse_list(body: bytes, name: str, kind: type[_Item]) -> list[_Item]:
    try:
        items = msgspec.json.decode(to_json(body))[name]
        kept = [{key: part for key, part in item.items() if part is not None} for item in items]
        return [msgspec.convert(item, kind, strict=False) for item in kept]
    except (DialectError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BodyError(f"the body cannot be read: {error}") from error
    except (TypeError, KeyError, AttributeError) as error:
        raise BodyError(f"the body has no {name}, a list of objects") from error


def _moment(ms: int) -> str:
    """A time as UtilAll.timeMillisToHumanString2 writes it, in the machine's own time zone."""
    moment = datetime.fromtimestamp(ms // 1000).astimezone()
    return f"{moment:%Y-%m-%d#%H:%M:%S}:{ms % 1000:03}"
