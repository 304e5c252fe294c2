"""JSON bodies of tools: connections, lists of topics and groups, and settings, rates and state of the broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from gateway.wire.bodies import (
    BodyError,
    ConsumerData,
    GroupSettings,
    Subscription,
    TopicSettings,
    read_body,
    tags_in,
)
from gateway.wire.messages import java_hash

MAX_OBJECTS: Final = 100_000
"""Most objects and lists in the settings of one request, 1 to 5 us each until they can be counted as topics or groups.
Each of the 10,000 of these that are possible has up to five, with attributes and times between retries."""

_Settings = TypeVar("_Settings")
_encode = msgspec.json.Encoder().encode
_ALL_TAGS: Final = "*"
_MAX_LINE: Final = 60


class DataVersion(msgspec.Struct, rename="camel"):
    """The version of a table (DataVersion): `counter` grows with each change; `timestamp` is its time, epoch ms."""

    counter: int
    timestamp: int
    state_version: int = 0


class Connection(msgspec.Struct, rename="camel"):
    """A client's connection (Connection)."""

    client_addr: str
    client_id: str
    language: str
    version: int


class ProducerInfo(msgspec.Struct, rename="camel"):
    """A producer of a group (ProducerInfo). `remote_ip` is `/ip:port`, as Java writes an address."""

    client_id: str
    language: str
    last_update_timestamp: int
    remote_ip: str = msgspec.field(name="remoteIP")
    version: int = 0


class ConsumeMode(msgspec.Struct, rename="camel"):
    """How a group gets a topic's messages, by `PULL` or `POP` (SetMessageRequestModeRequestBody), request 401."""

    topic: str
    consumer_group: str
    mode: str = "PULL"
    pop_share_queue_num: int = 0
    """The number of other members whose queues a member pops too; 0 means all (POP only)."""


class _TopicList(msgspec.Struct, rename="camel"):
    topic_config_list: list[TopicSettings]


class _GroupList(msgspec.Struct, rename="camel"):
    group_config_list: list[GroupSettings]


def parse_topic_settings_list(body: bytes) -> list[TopicSettings]:
    """Read the body of request 18 (CreateTopicListRequestBody).

    :raises BodyError: when it is not such a body.
    """
    return _read_settings(body, _TopicList).topic_config_list


def parse_group_settings_list(body: bytes) -> list[GroupSettings]:
    """Read the body of request 225 (SubscriptionGroupList).

    :raises BodyError: when it is not such a body.
    """
    return _read_settings(body, _GroupList).group_config_list


def parse_group_settings(body: bytes) -> GroupSettings:
    """Read the body of request 200 (SubscriptionGroupConfig).

    :raises BodyError: when it is not such a body.
    """
    return _read_settings(body, GroupSettings)


def _read_settings(body: bytes, kind: type[_Settings]) -> _Settings:
    """Read settings of topics or groups, unless that could take too long, whatever they are."""
    objects = body.count(b"{") + body.count(b"[")
    if objects > MAX_OBJECTS:
        raise BodyError(f"the body has {objects} objects and lists; {MAX_OBJECTS} are possible")
    return read_body(body, kind)


def parse_changes(body: bytes) -> dict[str, str]:
    """Read settings as lines of `name=value`: the body of requests 25 and 318 (Properties).

    Empty lines and lines that begin with `#` are ignored.

    :raises BodyError: for any other line.
    """
    changes = {}
    for line in body.decode(errors="replace").splitlines():
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise BodyError(f"settings are lines of name=value, not {text[:_MAX_LINE]!r}")
        changes[name.strip()] = value.strip()
    return changes


def encode_changes(values: Mapping[str, str]) -> bytes:
    """Return settings as lines of `name=value` in the order of names: the answer to 26 and 319."""
    return "".join(f"{name}={values[name]}\n" for name in sorted(values)).encode()


def encode_version(version: DataVersion) -> str:
    """Return a version as the text of an ext field."""
    return _encode(version).decode()


def encode_topics(version: DataVersion, topics: Iterable[TopicSettings]) -> bytes:
    """Return the answer to 21 (TopicConfigAndMappingSerializeWrapper); no topic is spread over brokers."""
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
    """Return the answer to 201 (SubscriptionGroupWrapper)."""
    return _encode(
        {
            "dataVersion": version,
            "forbiddenTable": {},
            "subscriptionGroupTable": {settings.group_name: settings for settings in groups},
        }
    )


def encode_topic_list_of(broker_address: str, topics: Iterable[str]) -> bytes:
    """Return the answer to 304 and 343: topics, and the address of the answering broker (TopicList)."""
    return _encode({"brokerAddr": broker_address, "topicList": list(topics)})


def encode_table(values: Mapping[str, str]) -> bytes:
    """Return the answer to 28 and 219 (KVTable)."""
    return _encode({"table": dict(values)})


def encode_consumer_connections(
    data: ConsumerData,
    connections: Sequence[Connection],
    subscriptions: Iterable[Subscription],
) -> bytes:
    """Return the answer to 203 (ConsumerConnection)."""
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
    """Return the answer to 204 (ProducerConnection)."""
    return _encode({"connectionSet": connections})


def encode_producers(producers: Mapping[str, Sequence[ProducerInfo]]) -> bytes:
    """Return the answer to 328 (ProducerTableInfo)."""
    return _encode({"data": producers})


def encode_group_list(groups: Iterable[str]) -> bytes:
    """Return the answer to 300 (GroupList)."""
    return _encode({"groupList": list(groups)})


def encode_subscription(group: str, topic: str, subscription: Subscription | None) -> bytes:
    """Return the answer to 345 (QuerySubscriptionResponseBody); an offline group has no subscription."""
    body: dict[str, Any] = {"group": group}
    if subscription is not None:
        body["subscriptionData"] = subscription_data(subscription)
    return _encode({**body, "topic": topic})


def encode_rates(spans: Mapping[str, tuple[int, float, float]]) -> bytes:
    """Return the answer to 315 (BrokerStatsData).

    :param spans: by name (`statsMinute`, `statsHour`, `statsDay`): the sum, the rate per second, the average per step.
    """
    return _encode(
        {
            name: {"avgpt": per_time, "sum": total, "tps": per_second}
            for name, (total, per_second, per_time) in spans.items()
        }
    )


def encode_ha_status(end: int) -> bytes:
    """Return the answer to 907 (HARuntimeInfo) of a broker without replicas whose log ends at `end`."""
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
    """Return the answer to 2003 of a broker that slows no group down for reading old messages."""
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
    """Return a subscription with its tags and their hashes (SubscriptionData)."""
    tags = []
    if subscription.expression_type == "TAG" and subscription.sub_string != _ALL_TAGS:
        tags = tags_in(subscription.sub_string)
    return {
        "classFilterMode": False,
        "codeSet": [java_hash(tag) for tag in tags],
        "expressionType": subscription.expression_type,
        "subString": subscription.sub_string,
        "subVersion": subscription.sub_version,
        "tagsSet": tags,
        "topic": subscription.topic,
    }
