"""JSON bodies: routes, heartbeats, groups, locks, topics.

A body to read may be in fastjson's dialect (see `dialect`). It may have enums by name or number, numbers in quotes,
nulls, `{}` for an empty list, names with other capitals, and unknown members. Bodies are written as plain JSON.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from typing import Any, Final, Literal, TypeVar, get_args

import msgspec
from msgspec import field

from gateway.wire.commands import Command
from gateway.wire.dialect import DialectError, to_json
from gateway.wire.fields import FieldError, Int32, Int64

_Body = TypeVar("_Body")
_encode = msgspec.json.Encoder().encode


class BodyError(FieldError):
    """A body that cannot be read. The error's text can be the remark of an answer with code 1."""


class MessageQueue(msgspec.Struct, frozen=True, rename="camel"):
    """One queue of a topic at a broker (MessageQueue)."""

    topic: str
    broker_name: str
    queue_id: Int32


class QueueData(msgspec.Struct, frozen=True, rename="camel"):
    """The number of a topic's queues at one broker (QueueData)."""

    broker_name: str
    perm: Int32
    read_queue_nums: Int32
    write_queue_nums: Int32


class BrokerData(msgspec.Struct, frozen=True, rename="camel"):
    """A broker's addresses by number; 0 is the master (BrokerData)."""

    broker_name: str
    broker_addrs: dict[str, str]


class Route(msgspec.Struct, frozen=True, rename="camel"):
    """A topic's queues and brokers (TopicRouteData), the answer to 105."""

    queue_datas: list[QueueData]
    broker_datas: list[BrokerData]


class Subscription(msgspec.Struct, rename="camel"):
    """A consumer group's subscription to a topic (SubscriptionData).

    The tags and hashes that clients send along are not read: some clients send wrong ones.
    """

    topic: str
    sub_string: str = "*"
    """`*`, tags joined by `||`, or a SQL expression."""
    sub_version: Int64 = 0
    """The client increases it with each change."""
    expression_type: str = "TAG"
    class_filter_mode: bool = False
    """The filter is a Java class, which brokers no longer run: every message matches."""


_TRIMMED: Final = "".join(map(chr, range(0x21)))
"""What Java's `String.trim` removes: blanks, and the control characters of ASCII. Other spaces are part of a tag."""


def tags_in(expression: str) -> list[str]:
    """Return the tags in `A || B` (FilterAPI.buildSubscriptionData)."""
    tags = (part.strip(_TRIMMED) for part in expression.split("||"))
    return [tag for tag in tags if tag]


CONSUME_TYPES: Final = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
MESSAGE_MODELS: Final = ("BROADCASTING", "CLUSTERING")
CONSUME_FROM_WHERE: Final = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)
"""Enums in the order of their numbers, which the C++ client sends."""


class ConsumerData(msgspec.Struct, rename="camel"):
    """A consumer group that a client is in, as the client describes it (ConsumerData). Once decoded, enums are
    names."""

    group_name: str
    consume_type: str | int = "CONSUME_PASSIVELY"
    """Whether the client is a pull (`CONSUME_ACTIVELY`) or a push consumer."""
    message_model: str | int = "CLUSTERING"
    consume_from_where: str | int = "CONSUME_FROM_LAST_OFFSET"
    subscription_data_set: list[Subscription] = []
    unit_mode: bool = False

    def __post_init__(self) -> None:
        self.consume_type = _name_of(self.consume_type, CONSUME_TYPES)
        self.message_model = _name_of(self.message_model, MESSAGE_MODELS)
        self.consume_from_where = _name_of(self.consume_from_where, CONSUME_FROM_WHERE)

    @property
    def is_broadcasting(self) -> bool:
        """Whether each member gets every message, and keeps its own offsets."""
        return self.message_model == "BROADCASTING"


class ProducerData(msgspec.Struct, rename="camel"):
    """A producer group that a client is in (ProducerData)."""

    group_name: str


class Heartbeat(msgspec.Struct, rename="camel"):
    """A heartbeat: a client's groups (HeartbeatData), request 34."""

    client_id: str = field(name="clientID")
    producer_data_set: list[ProducerData] = []
    consumer_data_set: list[ConsumerData] = []


class CheckRequest(msgspec.Struct, rename="camel"):
    """A subscription that a client is about to make (CheckClientRequestBody), request 46."""

    subscription_data: Subscription | None = None


class LockRequest(msgspec.Struct, rename="camel"):
    """Queues that a member of a group locks or unlocks (LockBatchRequestBody), requests 41 and 42."""

    consumer_group: str
    client_id: str
    mq_set: list[MessageQueue] = []


class TopicSettings(msgspec.Struct, rename="camel"):
    """A topic's settings (TopicConfig). The bits of `perm` are 4 read, 2 write, 1 inherit."""

    topic_name: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    order: bool = False
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 = 0
    attributes: dict[str, str] = {}


class ExponentialRetryPolicy(msgspec.Struct, rename="camel", omit_defaults=True):
    """Growing times between retries (ExponentialRetryPolicy), milliseconds."""

    initial: Int64 | None = None
    max: Int64 | None = None
    multiplier: Int64 | None = None


class CustomizedRetryPolicy(msgspec.Struct, rename="camel", omit_defaults=True):
    """A list of times between retries (CustomizedRetryPolicy), milliseconds."""

    next: list[Int64] | None = None


class GroupRetryPolicy(msgspec.Struct, rename="camel", omit_defaults=True):
    """A group's settings for the times between retries (GroupRetryPolicy)."""

    type: Literal["CUSTOMIZED", "EXPONENTIAL"] | None = None
    exponential_retry_policy: ExponentialRetryPolicy | None = None
    customized_retry_policy: CustomizedRetryPolicy | None = None


class GroupSettings(msgspec.Struct, rename="camel"):
    """A consumer group's settings (SubscriptionGroupConfig), request 200."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: Int32 = 1
    retry_max_times: Int32 = 16
    """Deliveries after the first before a message goes to the dead-letter topic."""
    group_retry_policy: dict[str, Any] = field(default_factory=lambda: {"type": "CUSTOMIZED"})
    broker_id: Int64 = 0
    which_broker_when_consume_slowly: Int64 = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: Int32 = 0
    consume_timeout_minute: Int32 = 15
    attributes: dict[str, str] = {}


def read_body(body: bytes, kind: type[_Body]) -> _Body:
    """Read a body into a type, with all that the module's docstring allows.

    :raises BodyError: when the body is not of this type.
    """
    try:
        return msgspec.json.decode(body, type=kind, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        plain = _without(None, msgspec.json.decode(to_json(body)))
        with suppress(msgspec.ValidationError):
            return msgspec.convert(plain, kind, strict=False)
        return msgspec.convert(_as_named(kind, _without({}, plain)), kind, strict=False)
    except (DialectError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BodyError(f"the body is no {kind.__name__.strip('_')}: {error}") from error


def _without(absent: object, value: Any) -> Any:
    """Return a value without what stands for nothing in it: null, or the empty object as which Lua writes a list."""
    if isinstance(value, dict):
        return {name: _without(absent, item) for name, item in value.items() if item != absent}
    if isinstance(value, list):
        return [_without(absent, item) for item in value if item != absent]
    return value


def _as_named(kind: Any, value: Any) -> Any:
    """Return a value with the names of this type where it has them with other capitals, as some .NET and Go clients
    write them. RocketMQ reads these up to 5.3 (fastjson's smart match)."""
    if isinstance(value, list):
        return [_as_named(kind, item) for item in value]
    members = _members_in(kind)
    if members is None or not isinstance(value, dict):
        return value
    named = {}
    for name, item in value.items():
        member = members.get(name.lower())
        if member is not None:
            named[member.encode_name] = _as_named(member.type, item)
    return named


@cache  # a body can have thousands of objects of a type, and to look up its members takes 20 us
def _members_in(kind: Any) -> dict[str, msgspec.structs.FieldInfo] | None:
    """Return the members of the structure that a type is, or holds, as a list of them does, by their names in small
    letters."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return {member.encode_name.lower(): member for member in msgspec.structs.fields(kind)}
    return next(filter(None, map(_members_in, get_args(kind))), None)


def parse_attribute_changes(text: str) -> dict[str, str]:
    """Return the changes of a topic's attributes: `+name` with the value to set, `-name` to remove one
    (AttributeParser).

    :param text: `+name=value` and `-name`, separated by commas, of which some may follow the last one.
    :raises BodyError: for anything else, or when a change is there twice.
    """
    changes: dict[str, str] = {}
    text = text.rstrip(",")
    for change in text.split(",") if text else []:
        signed, assigns, value = change.partition("=")
        sign, name = signed[:1], signed[1:]
        if (
            not name
            or signed in changes
            or sign not in ("+", "-")
            or (sign == "+") != bool(assigns)
        ):
            raise BodyError(
                f"attributes are changed by +name=value or -name, not by {change[:80]!r}"
            )
        changes[signed] = value
    return changes


def encode_topic_settings(settings: TopicSettings) -> bytes:
    """Return the answer to 351."""
    return _encode(settings)


def encode_group_settings(settings: GroupSettings) -> bytes:
    """Return the answer to 352."""
    return _encode(settings)


def encode_route(cluster: str, broker: str, address: str, settings: TopicSettings) -> bytes:
    """Return the answer to 105: a topic's queues, all at one broker (TopicRouteData).

    :param address: `ip:port` that clients connect to; Go's client can only read IPv4 there.
    """
    return _encode(
        {
            "brokerDatas": [_broker_data(cluster, broker, address)],
            "filterServerTable": {},
            "queueDatas": [
                {
                    "brokerName": broker,
                    "perm": settings.perm,
                    "readQueueNums": settings.read_queue_nums,
                    "topicSysFlag": settings.topic_sys_flag,
                    "writeQueueNums": settings.write_queue_nums,
                }
            ],
        }
    )


def encode_cluster_info(cluster: str, broker: str, address: str) -> bytes:
    """Return the answer to 106: one cluster of one broker (ClusterInfo)."""
    return _encode(
        {
            "brokerAddrTable": {broker: _broker_data(cluster, broker, address)},
            "clusterAddrTable": {cluster: [broker]},
        }
    )


def _broker_data(cluster: str, broker: str, address: str) -> dict[str, object]:
    # 0 is the master.
    return {
        "brokerAddrs": {"0": address},
        "brokerName": broker,
        "cluster": cluster,
        "enableActingMaster": False,
    }


_READS_JSON: Final = 401
"""The version (MQVersion) of RocketMQ 4.9.4."""


def as_client_reads_it(addresses: bytes, command: Command) -> bytes:
    """Return the answer to 105 or 106 in the form that the client knows.

    Clients that state a version before 4.9.4 get the master's number as a bare key, as from RocketMQ
    (ClientRequestProcessor): some find no broker under a key in quotes, among them Elixir's ex_rocketmq and Python's
    pyrocketmq. RocketMQ writes the answer to 106 like this for everybody; newer clients read both.
    """
    is_standard = command.ext().get("acceptStandardJsonOnly") == "true"
    if is_standard or command.version >= _READS_JSON:
        return addresses
    # The quotes of a text would be escaped, so this is nowhere else.
    return addresses.replace(b'"brokerAddrs":{"0":', b'"brokerAddrs":{0:')


def encode_topic_list(topics: Iterable[str]) -> bytes:
    """Return the answer to 206, 224 and other requests for lists of topics (TopicList)."""
    return _encode({"topicList": list(topics)})


def encode_consumer_list(client_ids: Iterable[str]) -> bytes:
    """Return the answer to 38 (GetConsumerListByGroupResponseBody)."""
    return _encode({"consumerIdList": list(client_ids)})


def encode_locked(queues: Iterable[MessageQueue]) -> bytes:
    """Return the answer to 41: the queues that the client has locked (LockBatchResponseBody)."""
    return _encode({"lockOKMQSet": list(queues)})


def _name_of(value: str | int, names: tuple[str, ...]) -> str:
    if isinstance(value, str) and not value.isdecimal():
        return value
    ordinal = int(value)
    if not 0 <= ordinal < len(names):
        raise ValueError(f"{ordinal} is none of {', '.join(names)}")
    return names[ordinal]
