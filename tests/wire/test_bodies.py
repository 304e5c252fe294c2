"""JSON bodies, and the dialects in which clients send them."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.bodies import (
    BodyError,
    ConsumerData,
    GroupSettings,
    Heartbeat,
    LockRequest,
    MessageQueue,
    Subscription,
    TopicSettings,
    encode_cluster_info,
    encode_consumer_list,
    encode_group_settings,
    encode_locked,
    encode_route,
    encode_topic_list,
    encode_topic_settings,
    parse_attribute_changes,
    read_body,
)
from gateway.wire.dialect import MAX_TEXT, DialectError, map_by_objects, to_json
from gateway.wire.fields import FieldError
from tests.wire.strategies import INT32, INT64, TEXT

JAVA_HEARTBEAT = b"""{"clientID":"10.0.0.2@4711#123","consumerDataSet":[
 {"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","consumeType":"CONSUME_PASSIVELY","groupName":"CG",
 "messageModel":"CLUSTERING","subscriptionDataSet":[{"classFilterMode":false,"codeSet":[65],
 "expressionType":"TAG","subString":"A","subVersion":1795251735419,"tagsSet":["A"],"topic":"T"}],
 "unitMode":false}],"producerDataSet":[{"groupName":"PG"}],"heartbeatFingerprint":0,"withoutSub":false}"""
# From the C++ core: ordinals, the version as text, no expression type, a wrong codeSet.
CPP_HEARTBEAT = b"""{"clientID":"c","consumerDataSet":[{"consumeFromWhere":4,"consumeType":1,
 "groupName":"CG","messageModel":0,"subscriptionDataSet":[{"codeSet":["0"],"subString":"A",
 "subVersion":"1795251735419","tagsSet":["A"],"topic":"T"}]}],"producerDataSet":null}
"""
QUEUE = MessageQueue("T", "broker-a", 2)


def test_heartbeat_of_java() -> None:
    heartbeat = read_body(JAVA_HEARTBEAT, Heartbeat)
    assert heartbeat.client_id == "10.0.0.2@4711#123"
    assert [producer.group_name for producer in heartbeat.producer_data_set] == ["PG"]
    [data] = heartbeat.consumer_data_set
    assert data.group_name == "CG"
    assert data.subscription_data_set == [Subscription("T", "A", 1795251735419, "TAG")]
    assert not data.is_broadcasting


def test_heartbeat_of_cpp() -> None:
    heartbeat = read_body(CPP_HEARTBEAT, Heartbeat)
    [data] = heartbeat.consumer_data_set
    assert data == ConsumerData(
        "CG",
        "CONSUME_PASSIVELY",
        "BROADCASTING",
        "CONSUME_FROM_FIRST_OFFSET",
        [Subscription("T", "A", 1795251735419, "TAG")],
    )
    assert data.is_broadcasting
    assert heartbeat.producer_data_set == []


def test_heartbeat_of_lua() -> None:
    """Lua cannot tell an empty list from an empty object (lua-resty-rocketmq). RocketMQ reads the object as a list of
    one producer without a name, and registers the consumers before it fails over that."""
    body = JAVA_HEARTBEAT.replace(b'[{"groupName":"PG"}]', b"{}").replace(b"[65]", b"{}")
    heartbeat = read_body(body, Heartbeat)
    assert heartbeat.producer_data_set == []
    assert [data.group_name for data in heartbeat.consumer_data_set] == ["CG"]
    assert read_body(b'{"clientID":"c","consumerDataSet":{}}', Heartbeat).consumer_data_set == []


def test_heartbeats_with_other_capitals() -> None:
    """As of NewLife.RocketMQ, the .NET client, and of Go's gunsluo/rocketmq-go, which sends some names like this and
    an empty model. RocketMQ reads them up to 5.3."""
    dotnet = read_body(
        b"""{"ClientID":"10.0.0.2@4711","ConsumerDataSet":[{"ConsumeFromWhere":"CONSUME_FROM_FIRST_OFFSET",
        "ConsumeType":"CONSUME_PASSIVELY","GroupName":"CG","MessageModel":"BROADCASTING","SubscriptionDataSet":
        [{"Topic":"T","ExpressionType":"TAG","SubString":"A","TagsSet":["A"],"ClassFilterMode":false,
        "SubVersion":639164160000000000}],"UnitMode":false}],
        "ProducerDataSet":[{"GroupName":"CLIENT_INNER_PRODUCER"}]}""",
        Heartbeat,
    )
    assert dotnet.client_id == "10.0.0.2@4711"
    assert [data.group_name for data in dotnet.producer_data_set] == ["CLIENT_INNER_PRODUCER"]
    assert dotnet.consumer_data_set == [
        ConsumerData(
            "CG",
            "CONSUME_PASSIVELY",
            "BROADCASTING",
            "CONSUME_FROM_FIRST_OFFSET",
            [Subscription("T", "A", 639164160000000000)],
        )
    ]
    go = read_body(
        b"""{"ClientId":"c","ConsumerDataSet":[{"GroupName":"CG","ConsumerType":"","MessageModel":"",
        "ConsumeFromWhere":"CONSUME_FROM_LAST_OFFSET","SubscriptionDataSet":[{"topic":"T","subString":"*",
        "classFilterMode":false,"tagsSet":null,"codeSet":null,"subVersion":0}],"UnitMode":false}]}""",
        Heartbeat,
    )
    [data] = go.consumer_data_set
    assert (go.client_id, data.group_name, data.is_broadcasting) == ("c", "CG", False)
    assert data.subscription_data_set == [Subscription("T")]


@pytest.mark.parametrize("written", [b"0", b'"0"', b'"BROADCASTING"'])
def test_enums_by_number_and_by_name(written: bytes) -> None:
    data = read_body(b'{"groupName":"G","messageModel":' + written + b"}", ConsumerData)
    assert data.message_model == "BROADCASTING"


def test_nulls_in_a_heartbeat() -> None:
    body = JAVA_HEARTBEAT.replace(b'"TAG"', b"null").replace(b'[{"groupName":"PG"}]', b"[null]")
    heartbeat = read_body(body, Heartbeat)
    assert heartbeat.consumer_data_set[0].subscription_data_set[0].expression_type == "TAG"
    assert heartbeat.producer_data_set == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"clientID":5}',
        b'{"clientID":{}}',
        b'{"clientID":"c","producerDataSet":{"groupName":"PG"}}',
        b'{"clientID":"c"',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"G","messageModel":2}]}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"G","messageModel":-1}]}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"G","messageModel":"2"}]}',
        b'{"clientID":"\xff"}',
        b'{"x":' * 100_000,
        b'{"clientID":"c","x":' + b"[" * 100_000,
    ],
)
def test_no_heartbeat(body: bytes) -> None:
    with pytest.raises(BodyError, match="no Heartbeat"):
        read_body(body, Heartbeat)
    assert issubclass(BodyError, FieldError)


def test_locks() -> None:
    request = read_body(
        b'{"clientId":"c","consumerGroup":"G","mqSet":'
        b'[{"brokerName":"broker-a","queueId":2,"topic":"T"}],"onlyThisBroker":false}',
        LockRequest,
    )
    assert (request.client_id, request.consumer_group, request.mq_set) == ("c", "G", [QUEUE])
    assert json.loads(encode_locked([QUEUE])) == {
        "lockOKMQSet": [{"brokerName": "broker-a", "queueId": 2, "topic": "T"}]
    }
    assert {QUEUE: 1}[MessageQueue("T", "broker-a", 2)] == 1


def test_locks_with_other_capitals() -> None:
    """As of Go's zjykzk/rocketmq-client-go."""
    request = read_body(
        b'{"consumerGroup":"G","clientId":"c","mqSet":[{"BrokerName":"broker-a","QueueID":2,"Topic":"T"}]}',
        LockRequest,
    )
    assert (request.client_id, request.consumer_group, request.mq_set) == ("c", "G", [QUEUE])


def test_the_members_of_a_type_are_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking them up for each object held up all other requests for seconds where a body had tens of thousands."""
    kinds: list[Any] = []
    look_up = msgspec.structs.fields

    def counted(kind: Any) -> Any:
        kinds.append(kind)
        return look_up(kind)

    monkeypatch.setattr(msgspec.structs, "fields", counted)
    queue = '{"BrokerName":"broker-a","QueueId":2,"Topic":"T"}'
    queues = ",".join([queue] * 1_000)
    body = f'{{"consumerGroup":"G","clientId":"c","mqSet":[{queues}]}}'.encode()
    assert read_body(body, LockRequest).mq_set == [QUEUE] * 1_000
    assert len(kinds) == len(set(kinds))


def test_route_as_every_client_reads_it() -> None:
    body = encode_route("C", "broker-a", "10.0.0.1:10911", TopicSettings("T", 8, 4, 6))
    assert json.loads(body) == {
        "brokerDatas": [
            {
                "brokerAddrs": {"0": "10.0.0.1:10911"},
                "brokerName": "broker-a",
                "cluster": "C",
                "enableActingMaster": False,
            }
        ],
        "filterServerTable": {},
        "queueDatas": [
            {
                "brokerName": "broker-a",
                "perm": 6,
                "readQueueNums": 8,
                "topicSysFlag": 0,
                "writeQueueNums": 4,
            }
        ],
    }
    # Go cuts the text instead of parsing it.
    assert b'"brokerAddrs":{"0":"10.0.0.1:10911"}' in body


def test_cluster_info() -> None:
    info = json.loads(encode_cluster_info("C", "broker-a", "10.0.0.1:10911"))
    assert info["clusterAddrTable"] == {"C": ["broker-a"]}
    assert info["brokerAddrTable"]["broker-a"]["brokerAddrs"] == {"0": "10.0.0.1:10911"}


def test_lists() -> None:
    assert encode_topic_list(["a", "b"]) == b'{"topicList":["a","b"]}'
    assert encode_consumer_list({"c": 1}) == b'{"consumerIdList":["c"]}'


def test_topic_settings_of_upstream() -> None:
    upstream = (
        b'{"attributes":{"message.type":"DELAY"},"order":false,"perm":6,"readQueueNums":4,'
        b'"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,"writeQueueNums":4}'
    )
    settings = TopicSettings("T", 4, 4, 6, attributes={"message.type": "DELAY"})
    assert read_body(upstream, TopicSettings) == settings
    assert json.loads(encode_topic_settings(settings)) == json.loads(upstream)


def test_group_settings_of_upstream() -> None:
    upstream = (
        b'{"attributes":{},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,'
        b'"consumeFromMinEnable":true,"consumeMessageOrderly":false,"consumeTimeoutMinute":15,'
        b'"groupName":"G","groupRetryPolicy":{"type":"CUSTOMIZED"},"groupSysFlag":0,'
        b'"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,'
        b'"whichBrokerWhenConsumeSlowly":1}'
    )
    assert read_body(upstream, GroupSettings) == GroupSettings("G")
    assert json.loads(encode_group_settings(GroupSettings("G"))) == json.loads(upstream)


TOPICS = st.builds(
    TopicSettings,
    TEXT,
    INT32,
    INT32,
    INT32,
    st.booleans(),
    TEXT,
    INT32,
    st.dictionaries(TEXT, TEXT, max_size=3),
)
GROUPS = st.builds(
    GroupSettings,
    TEXT,
    *[st.booleans()] * 4,
    INT32,
    INT32,
    st.dictionaries(TEXT, TEXT, max_size=2),
    INT64,
    INT64,
    st.booleans(),
    INT32,
    INT32,
    st.dictionaries(TEXT, TEXT, max_size=2),
)


@given(TOPICS)
def test_topic_settings_come_back(settings: TopicSettings) -> None:
    assert read_body(encode_topic_settings(settings), TopicSettings) == settings


@given(GROUPS)
def test_group_settings_come_back(settings: GroupSettings) -> None:
    assert read_body(encode_group_settings(settings), GroupSettings) == settings


def test_changes_of_attributes() -> None:
    assert parse_attribute_changes("") == {}
    assert parse_attribute_changes("+m.type=DELAY,+a=b=c") == {"+m.type": "DELAY", "+a": "b=c"}
    assert parse_attribute_changes("-a,+c=2") == {"-a": "", "+c": "2"}
    assert parse_attribute_changes("+a=1,,") == {"+a": "1"}


@pytest.mark.parametrize(
    "text", ["a=b", "a", "+a", "-a=b", "+", "-", "+=b", "+a=1,+a=2", ",+a=1", "+a=1,,-b"]
)
def test_no_changes_of_attributes(text: str) -> None:
    with pytest.raises(BodyError):
        parse_attribute_changes(text)


def test_maps_by_objects_as_java_writes_them() -> None:
    body = msgspec.json.encode({"offsetTable": map_by_objects([(QUEUE, 12), (QUEUE, [])])})
    queue = b'{"topic":"T","brokerName":"broker-a","queueId":2}'
    assert body == b'{"offsetTable":{' + queue + b":12," + queue + b":[]}}"
    [key, _] = json.loads(to_json(body), object_pairs_hook=list)[0][1]
    assert msgspec.json.decode(key[0], type=MessageQueue) == QUEUE


@given(st.lists(st.tuples(TEXT, INT32, TEXT), max_size=4, unique=True))
def test_maps_by_objects_come_back(entries: list[tuple[str, int, str]]) -> None:
    table = {MessageQueue(topic, "b", number): value for topic, number, value in entries}
    read = json.loads(to_json(msgspec.json.encode(map_by_objects(table.items()))))
    assert {msgspec.json.decode(key, type=MessageQueue): read[key] for key in read} == table


def test_bare_keys() -> None:
    assert to_json(b'{0:"a:b",1 :{2:[{3:true}]}}\n') == b'{"0":"a:b","1":{"2":[{"3":true}]}}'
    assert to_json(b'{"a\\"}":-1.5e3}') == b'{"a\\"}":-1.5e3}'
    assert to_json(b'{"a\x01":"b\n\\n"}\0') == b'{"a\\u0001":"b\\u000a\\n"}'


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"}",
        b'{"a"}',
        b'{"a":}',
        b'{"a":1 "b":2}',
        b"[1 2]",
        b"[1]]",
        b'"x',
        b"{:1}",
        b"{::1}",
        b"[,]",
        b"[}",
        b"{]:1}",
        b"[" * 102 + b"]" * 102,
        # Objects as keys: each level would double the quoting.
        b"{" * 50 + b'"a":1' + b"}:1" * 49 + b"}",
    ],
)
def test_no_dialect(text: bytes) -> None:
    with pytest.raises(DialectError):
        to_json(text)


def test_how_deep_and_how_long_it_may_be() -> None:
    deepest = b"[" * 101 + b"]" * 101
    assert to_json(deepest) == deepest
    longest = b"[" + b" " * (MAX_TEXT - 2) + b"]"
    assert to_json(longest) == b"[]"
    with pytest.raises(DialectError, match=f"^{MAX_TEXT + 1} bytes that are not standard JSON; "):
        to_json(longest + b" ")
    assert to_json(longest + b" ", MAX_TEXT + 1) == b"[]"


def test_much_text_is_read_only_as_it_is() -> None:
    """The dialect is read token by token: 15 MB of it would hold up all clients for a quarter of a minute."""
    plain = b'{"consumerGroup":"G","clientId":"c","mqSet":[],"more":[' + b"1," * MAX_TEXT + b"1]}"
    assert read_body(plain, LockRequest).consumer_group == "G"
    for text in (plain.replace(b'"G"', b"null"), plain.replace(b'"more"', b"0")):
        with pytest.raises(BodyError, match=f"{MAX_TEXT} are possible"):
            read_body(text, LockRequest)
        with pytest.raises(DialectError):
            to_json(text)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=10,
)


@given(VALUES, st.sampled_from([None, 1]))
def test_plain_json_stays_what_it_is(value: Any, indent: int | None) -> None:
    assert json.loads(to_json(json.dumps(value, indent=indent).encode())) == value


@given(st.binary(max_size=60) | st.text('{}[]:,"0a \\', max_size=40).map(str.encode))
def test_any_bytes_are_a_body_or_refused(text: bytes) -> None:
    for kind in (Heartbeat, LockRequest, GroupSettings):
        with suppress(BodyError):
            assert isinstance(read_body(text, kind), kind)
