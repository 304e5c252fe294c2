"""Who is connected and who consumes what: 203, 204, 328, 300, 343, 345."""

from __future__ import annotations

from gateway.wire.codes import ResponseCode
from gateway.wire.messages import java_hash
from tests.gateway.memory import START_MS, MemoryClient, MemoryGateway
from tests.gateway.tools import commit_offset, create_topic, put_group, read


def test_consumers(gateway: MemoryGateway) -> None:
    first, second = gateway.connect("192.0.2.7"), gateway.connect("192.0.2.8")
    first.heartbeat("c1", "G", {"T": "A||B", "%RETRY%G": "*"}, sub_version=5)
    second.heartbeat(
        "c2", "G", {"T": "A||B", "%RETRY%G": "*"}, language="CPP", version=333, sub_version=5
    )
    body = read(first.ask(203, {"consumerGroup": "G"}))
    connections = {one.pop("clientId"): one for one in body["connectionSet"]}
    assert connections["c1"]["clientAddr"].startswith("192.0.2.7:")
    assert connections["c1"]["language"] == "JAVA"
    assert connections["c2"]["language"] == "CPP"
    assert connections["c2"]["version"] == 333
    assert body["consumeType"] == "CONSUME_PASSIVELY"
    assert body["messageModel"] == "CLUSTERING"
    assert body["consumeFromWhere"] == "CONSUME_FROM_LAST_OFFSET"
    assert body["subscriptionTable"] == {
        "T": {
            "classFilterMode": False,
            "codeSet": [java_hash("A"), java_hash("B")],
            "expressionType": "TAG",
            "subString": "A||B",
            "subVersion": 5,
            "tagsSet": ["A", "B"],
            "topic": "T",
        },
        "%RETRY%G": {
            "classFilterMode": False,
            "codeSet": [],
            "expressionType": "TAG",
            "subString": "*",
            "subVersion": 5,
            "tagsSet": [],
            "topic": "%RETRY%G",
        },
    }


def test_consumers_that_left(gateway: MemoryGateway, client: MemoryClient) -> None:
    leaving = gateway.connect()
    leaving.heartbeat("c1", "G")
    leaving.disconnect()
    answer = client.ask(203, {"consumerGroup": "G"})
    assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
    assert answer.remark == "the consumer group[G] not online"


def test_producers(gateway: MemoryGateway, client: MemoryClient) -> None:
    gateway.connect("192.0.2.7").heartbeat("p1", "", producers=["P"])
    [found] = read(client.ask(204, {"producerGroup": "P"}))["connectionSet"]
    assert found["clientId"] == "p1"
    assert found["clientAddr"].startswith("192.0.2.7:")
    answer = client.ask(204, {"producerGroup": "nobody"})
    assert (answer.code, answer.remark) == (1, "the producer group[nobody] not exist")


def test_all_producers_with_the_time_of_their_last_word(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    gateway.advance(5_000)
    client.heartbeat("p1", "", producers=["P", "Q"])
    gateway.advance(2_000)
    data = read(client.ask(328))["data"]
    assert set(data) == {"P", "Q"}
    [found] = data["P"]
    assert found["lastUpdateTimestamp"] == START_MS + 5_000
    assert found["remoteIP"].startswith("/127.0.0.1:")
    assert (found["clientId"], found["language"], found["version"]) == ("p1", "JAVA", 513)


def test_groups_of_a_topic_are_those_online_and_those_with_progress(client: MemoryClient) -> None:
    create_topic(client, "T")
    put_group(client, "offline")
    commit_offset(client, "T", 0, 1, "offline")
    client.heartbeat("c1", "online", {"T": "*"})
    assert read(client.ask(300, {"topic": "T"}))["groupList"] == ["offline", "online"]
    assert read(client.ask(300, {"topic": "NONE"}))["groupList"] == []


def test_topics_of_a_group_are_those_with_progress(client: MemoryClient) -> None:
    create_topic(client, "T")
    create_topic(client, "S")
    put_group(client, "G")
    client.heartbeat("c1", "G", {"T": "*", "S": "*"})
    commit_offset(client, "T", 1, 1, "G")
    body = read(client.ask(343, {"group": "G"}))
    assert body == {"brokerAddr": "127.0.0.1:9876", "topicList": ["T"]}
    assert read(client.ask(343, {"group": "nobody"}))["topicList"] == []


class TestSubscription:
    def test_online(self, client: MemoryClient) -> None:
        client.heartbeat("c1", "G", {"T": "A"})
        body = read(client.ask(345, {"group": "G", "topic": "T"}))
        assert (body["group"], body["topic"]) == ("G", "T")
        assert body["subscriptionData"]["subString"] == "A"

    def test_offline(self, client: MemoryClient) -> None:
        body = read(client.ask(345, {"group": "G", "topic": "T"}))
        assert body == {"group": "G", "topic": "T"}

    def test_without_a_topic(self, client: MemoryClient) -> None:
        assert client.ask(345, {"group": "G"}).code == ResponseCode.SYSTEM_ERROR
