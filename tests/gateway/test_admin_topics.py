"""Topics as tools read and change them: 17, 18, 21, 351, 202, 215, 305, 321."""

from __future__ import annotations

import json

import pytest

from gateway.handlers import group_admin, topic_admin
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.messages import java_hash
from storage import Store
from tests.gateway.faults import commits_fail
from tests.gateway.memory import START_MS, MemoryClient, MemoryGateway, bodies
from tests.gateway.tools import by_queue, commit_offset, create_topic, ok, put_group, read


def config_of(client: MemoryClient, topic: str) -> dict[str, object]:
    settings: dict[str, object] = read(
        client.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": topic, "lo": "true"})
    )
    return settings


class TestCreate:
    def test_settings(self, client: MemoryClient) -> None:
        ok(create_topic(client, "T", 3, perm="4", attributes="+message.type=DELAY"))
        assert config_of(client, "T") == {
            "topicName": "T",
            "readQueueNums": 3,
            "writeQueueNums": 3,
            "perm": 4,
            "order": False,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "attributes": {"message.type": "DELAY"},
        }

    def test_change_keeps_other_attributes(self, client: MemoryClient) -> None:
        create_topic(client, "T", attributes="+message.type=DELAY,+cleanup.policy=DELETE")
        ok(create_topic(client, "T", 5, attributes="-message.type,+reserve.time=7"))
        settings = config_of(client, "T")
        assert settings["attributes"] == {"cleanup.policy": "DELETE", "reserve.time": "7"}
        assert settings["writeQueueNums"] == 5

    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ("-max.held.messages", "attempt to delete a nonexistent key: max.held.messages"),
            ("+cleanup.policy=COMPACTION", "unchangeable attribute. key: cleanup.policy"),
            ("+message.type=FIFO,-message.type", "alter duplication key. key: message.type"),
            ("+reserve.time=-2", "is a number from -1 to 9223372036854775807, not -2"),
            ("+lite.topic.expiration=43201", "is a number from -1 to 43200, not 43201"),
        ],
    )
    def test_changes_that_cannot_be(self, client: MemoryClient, changes: str, says: str) -> None:
        before = {"message.type": "DELAY", "lite.topic.expiration": "5"}
        ok(create_topic(client, "T", attributes="+message.type=DELAY,+lite.topic.expiration=5"))
        refused = create_topic(client, "T", attributes=changes)
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert says in (refused.remark or "")
        assert config_of(client, "T")["attributes"] == before

    def test_many_change_attributes_as_one_does(self, client: MemoryClient) -> None:
        def put(changes: dict[str, str]) -> int:
            settings = {"topicName": "T", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
            body = {"topicConfigList": [settings | {"attributes": changes}]}
            return client.ask(18, None, json.dumps(body).encode()).code

        assert put({"-max.held.messages": ""}) == ResponseCode.SYSTEM_ERROR
        assert put({"+max.held.messages": "1", "+message.type": "DELAY"}) == ResponseCode.SUCCESS
        assert put({}) == ResponseCode.SUCCESS
        assert put({"max.held.messages": "5"}) == ResponseCode.SYSTEM_ERROR
        assert config_of(client, "T")["attributes"] == {
            "max.held.messages": "1",
            "message.type": "DELAY",
        }
        assert put({"-message.type": ""}) == ResponseCode.SUCCESS
        assert config_of(client, "T")["attributes"] == {"max.held.messages": "1"}

    def test_survives_restart(self, gateway: MemoryGateway) -> None:
        create_topic(gateway.connect(), "T", 7)
        gateway.restart()
        assert config_of(gateway.connect(), "T")["readQueueNums"] == 7

    @pytest.mark.parametrize(
        ("topic", "fields", "code", "remark"),
        [
            ("TBW102", {}, 29, "The topic[TBW102] is conflict with system topic."),
            ("DefaultCluster", {}, 29, "The topic[DefaultCluster] is conflict with system topic."),
            (
                "T!",
                {},
                29,
                (
                    "The specified topic: T!, contains illegal characters, allowing only "
                    "^[%|a-zA-Z0-9_-]+$"
                ),
            ),
            (
                "T",
                {"topicFilterType": "ALL_TAGS"},
                1,
                "the topicFilterType is one of SINGLE_TAG, MULTI_TAG, not 'ALL_TAGS'",
            ),
            ("T", {"attributes": "+nosuch=1"}, 1, "unsupported key: nosuch"),
            (
                "T",
                {"attributes": "+queue.type=BatchCQ"},
                1,
                "the value of queue.type is one of SimpleCQ, not BatchCQ",
            ),
            (
                "T",
                {"attributes": "+cleanup.policy=COMPACTION"},
                1,
                "the value of cleanup.policy is one of DELETE, not COMPACTION",
            ),
            (
                "T",
                {"attributes": "+reserve.time=x"},
                1,
                "the value of reserve.time is a number from -1 to 9223372036854775807, not x",
            ),
        ],
    )
    def test_refused(
        self, client: MemoryClient, topic: str, fields: dict[str, str], code: int, remark: str
    ) -> None:
        answer = create_topic(client, topic, 2, **fields)
        assert (answer.code, answer.remark) == (code, remark)

    def test_more_queues_than_can_be_told_of(self, client: MemoryClient) -> None:
        assert create_topic(client, "T", queues=10_000).code == ResponseCode.SUCCESS
        most = (1 << 31) - 1
        refused = create_topic(client, "T", queues=most)
        assert refused.code == ResponseCode.INVALID_PARAMETER
        assert refused.remark == f"T cannot have {most} queues, but at most 10000"
        many = {"topicName": "U", "readQueueNums": most, "writeQueueNums": 1, "perm": 6}
        answer = client.ask(18, None, json.dumps({"topicConfigList": [many]}).encode())
        assert answer.code == ResponseCode.INVALID_PARAMETER
        group = put_group(client, "g", retryQueueNums=most)
        assert group.code == ResponseCode.INVALID_PARAMETER

    def test_unknown_message_type(self, client: MemoryClient) -> None:
        answer = create_topic(client, "T", attributes="+message.type=FOO")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark is not None
        assert answer.remark.startswith("the value of message.type is one of UNSPECIFIED, MIXED,")
        assert client.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "T"}).code == 17

    def test_many(self, client: MemoryClient) -> None:
        topics = [
            {
                "topicName": name,
                "readQueueNums": 1,
                "writeQueueNums": 1,
                "perm": 6,
                "attributes": None,
            }
            for name in ("A", "B")
        ]
        ok(client.ask(18, None, json.dumps({"topicConfigList": topics}).encode()))
        assert config_of(client, "A")["perm"] == config_of(client, "B")["perm"] == 6

    def test_too_many(self, client: MemoryClient) -> None:
        topics = [
            {"topicName": f"T{number}", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
            for number in range(10_001)
        ]
        answer = client.ask(18, None, json.dumps({"topicConfigList": topics}).encode())
        assert (answer.code, answer.remark) == (
            ResponseCode.INVALID_PARAMETER,
            "10001 topics in one request; 10000 are possible",
        )

    def test_many_are_all_or_none(self, client: MemoryClient) -> None:
        topics = [
            {"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
            for name in ("A", "TBW102")
        ]
        answer = client.ask(18, None, json.dumps({"topicConfigList": topics}).encode())
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert client.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "A"}).code == 17

    def test_many_of_which_one_cannot_be_made_yet(
        self, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("gateway.topics.CLEARED_AT_ONCE", 1)
        for _ in range(3):
            client.send_message("gone")
        ok(client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "gone"}))
        topics = [
            {"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
            for name in ("A", "gone")
        ]
        answer = client.ask(18, None, json.dumps({"topicConfigList": topics}).encode())
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert client.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "A"}).code == 17

    @pytest.mark.parametrize(
        "body", [b"", b"{}", b'{"topicConfigList":7}', b'{"topicConfigList":[3]}']
    )
    def test_many_with_a_bad_body(self, client: MemoryClient, body: bytes) -> None:
        assert client.ask(18, None, body).code == ResponseCode.SYSTEM_ERROR


FIVE = {
    18: {
        "topicConfigList": [
            {"topicName": f"M{number}", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
            for number in range(5)
        ]
    },
    225: {"groupConfigList": [{"groupName": f"M{number}"} for number in range(5)]},
}
"""Requests for five topics, and for five groups."""


@pytest.mark.parametrize("code", FIVE)
class TestManyAtOnce:
    """Thousands of topics or groups that one request creates take a second."""

    @pytest.fixture(autouse=True)
    def two_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (topic_admin, group_admin):
            monkeypatch.setattr(module, "PUT_AT_ONCE", 2)

    def body(self, code: int) -> bytes:
        return json.dumps(FIVE[code]).encode()

    def made(self, gateway: MemoryGateway) -> int:
        broker = gateway.service.broker
        return sum(name[0] == "M" for name in (*broker.topics.names(), *broker.groups.names()))

    def test_leave_others_their_turn(self, gateway: MemoryGateway, code: int) -> None:
        client, other = gateway.connect(), gateway.connect()
        request = client.send(code, None, self.body(code))
        assert self.made(gateway) == 0, "all are checked first"
        other.send(105, {"topic": "TBW102"})
        gateway.reactor.turn()
        assert other.transport.value() != b""
        gateway.reactor.turn()
        assert self.made(gateway) == 2
        answer = client.answer(request)
        assert answer is not None
        ok(answer)
        gateway.crash()
        assert self.made(gateway) == 5

    def test_tell_of_those_that_are_made_if_others_cannot_be_stored(
        self, gateway: MemoryGateway, code: int
    ) -> None:
        client = gateway.connect()
        request = client.send(code, None, self.body(code))
        for _ in range(2):
            gateway.reactor.turn()
        with commits_fail(gateway):
            answer = client.answer(request)
        assert answer is not None
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert (answer.remark or "").endswith(
            "; a part of the change was made before, and stays so"
        )
        assert self.made(gateway) == 2
        gateway.advance(2_000)
        ok(client.ask(code, None, self.body(code)))
        assert self.made(gateway) == 5


class TestList:
    def test_all(self, client: MemoryClient) -> None:
        create_topic(client, "T", 3)
        answer = client.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
        body = read(answer)
        table = body["topicConfigTable"]
        assert table["T"]["readQueueNums"] == 3
        assert table["SCHEDULE_TOPIC_XXXX"]["readQueueNums"] == 18
        assert answer.ext() == {"totalTopicNum": str(len(table))}
        assert body["dataVersion"] == {"counter": 1, "timestamp": START_MS, "stateVersion": 0}

    def test_version_counts_changes(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        create_topic(client, "T", 3)
        first = read(client.ask(21))["dataVersion"]
        gateway.advance(50)
        create_topic(client, "T", 3)
        assert read(client.ask(21))["dataVersion"] == first
        create_topic(client, "T", 4)
        changed = read(client.ask(21))["dataVersion"]
        assert changed == {"counter": 2, "timestamp": START_MS + 50, "stateVersion": 0}
        ok(client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}))
        assert read(client.ask(21))["dataVersion"]["counter"] == 3

    def test_pages(self, client: MemoryClient) -> None:
        create_topic(client, "T")
        everything = list(read(client.ask(21))["topicConfigTable"])
        paged: list[str] = []
        while len(paged) < len(everything):
            page = client.ask(21, {"topicSeq": str(len(paged)), "maxTopicNum": "4"})
            assert page.ext()["totalTopicNum"] == str(len(everything))
            names = list(read(page)["topicConfigTable"])
            assert len(names) == min(4, len(everything) - len(paged))
            paged += names
        assert paged == everything

    def test_system_topics(self, client: MemoryClient) -> None:
        create_topic(client, "T")
        names = read(client.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER))["topicList"]
        assert {"TBW102", "DefaultCluster", "broker-a", "rmq_sys_wheel_timer"} <= set(names)
        assert "T" not in names

    def test_cluster_and_broker_are_found_as_topics(self, client: MemoryClient) -> None:
        for name, queues in (("DefaultCluster", 16), ("broker-a", 1)):
            [data] = read(client.ask(105, {"topic": name}))["queueDatas"]
            assert (data["readQueueNums"], data["writeQueueNums"], data["perm"]) == (
                queues,
                queues,
                7,
            )


class TestStats:
    def test_ends_and_last_time(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        create_topic(client, "T")
        client.send_message("T", fields={"queue": 1})
        gateway.advance(1_000)
        client.send_message("T", fields={"queue": 1})
        client.send_message("T", DELAY="3")
        body = read(client.ask(202, {"topic": "T"}))
        assert by_queue(body["offsetTable"]) == {
            ("T", 0): {"lastUpdateTimestamp": 0, "maxOffset": 0, "minOffset": 0},
            ("T", 1): {"lastUpdateTimestamp": START_MS + 1_000, "maxOffset": 2, "minOffset": 0},
        }
        gateway.advance(10_000)
        table = by_queue(read(client.ask(202, {"topic": "T"}))["offsetTable"])
        assert table["T", 0]["maxOffset"] == 1

    def test_queues_that_are_only_read(self, client: MemoryClient) -> None:
        create_topic(client, "T", 2, readQueueNums="3")
        assert set(by_queue(read(client.ask(202, {"topic": "T"}))["offsetTable"])) == {
            ("T", number) for number in range(3)
        }

    def test_rate(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        create_topic(client, "T")
        for _ in range(30):
            client.send_message("T")
        gateway.advance(20_000)
        assert read(client.ask(202, {"topic": "T"}))["topicPutTps"] == pytest.approx(1.5)

    def test_others_have_their_turn_while_many_queues_are_looked_at(
        self, gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(topic_admin, "QUEUES_AT_ONCE", 10)
        create_topic(client, "wide", 100)
        client.transport.clear()
        question = client.send(202, {"topic": "wide"})
        for _ in range(10):
            gateway.reactor.turn()
        assert client.transport.value() == b""
        answer = client.answer(question)
        assert answer is not None
        assert len(by_queue(read(answer)["offsetTable"])) == 100

    def test_unknown(self, client: MemoryClient) -> None:
        answer = client.ask(202, {"topic": "NONE"})
        assert (answer.code, answer.remark) == (17, "topic[NONE] not exist")


class TestDelete:
    def test_topic_progress_and_messages_go(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        create_topic(client, "T")
        client.send_message("T")
        ok(put := client.ask(200, None, b'{"groupName":"G"}'))
        assert put.code == 0
        ok(commit_offset(client, "T", 0, 1, "G"))
        ok(client.ask(215, {"topic": "T"}))
        assert client.ask(105, {"topic": "T"}).code == ResponseCode.TOPIC_NOT_EXIST
        assert (
            read(client.ask(RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": "G"}))["topicList"]
            == []
        )
        gateway.advance(20_000)
        assert gateway.store.queue(b"T", 0).first == 1

    def test_all_groups_are_looked_through_no_more_often_where_many_consume_it(
        self, gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        create_topic(client, "T")
        for group in range(20):
            client.pull("T", group=f"G{group}", commit=1)
            create_topic(client, f"%RETRY%G{group}_T")
        ok(commit_offset(client, "%RETRY%G7_T", 0, 1, "G7"))
        broker = gateway.service.broker
        progress = broker.store.progress
        looked_through: list[int] = []
        groups_in, reload = progress.groups_in, broker.resets.reload

        def look_through(*topics: bytes) -> list[bytes]:
            looked_through.append(len(topics))
            return groups_in(*topics)

        monkeypatch.setattr(progress, "groups_in", look_through)

        def reload_resets() -> None:
            looked_through.append(0)
            reload()

        monkeypatch.setattr(broker.resets, "reload", reload_resets)
        ok(client.ask(215, {"topic": "T"}))
        assert looked_through == [1, 21, 0]
        assert not list(progress.rows())
        assert client.ask(105, {"topic": "%RETRY%G7_T"}).code == ResponseCode.TOPIC_NOT_EXIST

    def test_the_name_servers_half_alone_deletes_nothing(self, client: MemoryClient) -> None:
        create_topic(client, "T")
        ok(client.ask(216, {"topic": "T", "clusterName": "DefaultCluster"}))
        ok(client.ask(105, {"topic": "T"}))

    @pytest.mark.parametrize(
        ("topic", "code"), [("TBW102", 29), ("broker-a", 29), ("", 29), ("never made", 0)]
    )
    def test_others(self, client: MemoryClient, topic: str, code: int) -> None:
        assert client.ask(215, {"topic": topic}).code == code


class TestRows:
    def test_rows(self, client: MemoryClient) -> None:
        create_topic(client, "T")
        client.send_message("T", TAGS="red")
        client.send_message("T", body="longer")
        client.send_message("T")
        found = client.pull("T")
        body = read(client.ask(321, {"topic": "T", "queueId": "0", "index": "0", "count": "2"}))
        assert (body["minQueueIndex"], body["maxQueueIndex"]) == (0, 3)
        rows = body["queueData"]
        assert [row["physicOffset"] for row in rows] == [one.physical_offset for one in found[:2]]
        assert [row["tagsCode"] for row in rows] == [java_hash("red"), 0]
        assert rows[1]["physicSize"] > 91
        assert not {"filterData", "subscriptionData"} & set(body)

    def test_with_a_group(self, client: MemoryClient) -> None:
        create_topic(client, "T")
        client.send_message("T")
        ask = {"topic": "T", "queueId": "0", "index": "0", "count": "1", "consumerGroup": "G"}
        assert read(client.ask(321, ask))["filterData"] == "G@T is not online!"
        client.heartbeat("c1", "G", {"T": "red||blue"})
        body = read(client.ask(321, ask))
        assert body["subscriptionData"]["tagsSet"] == ["red", "blue"]
        assert body["subscriptionData"]["codeSet"] == [java_hash("red"), java_hash("blue")]

    def test_no_message_is_read(
        self, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """1,000 messages can have gigabytes."""
        for _ in range(3):
            client.send_message("T")
        client.send_message("T", fields={"queue": 1})
        monkeypatch.delattr(Store, "record")
        ask = {"topic": "T", "queueId": "0", "index": "1", "count": "1000"}
        assert len(read(client.ask(321, ask))["queueData"]) == 2

    @pytest.mark.parametrize("index", ["-1", "1", "100"])
    def test_beyond_the_ends(self, client: MemoryClient, index: str) -> None:
        create_topic(client, "T")
        client.send_message("T")
        answer = client.ask(321, {"topic": "T", "queueId": "0", "index": index, "count": "1"})
        assert (answer.code, answer.body) == (0, b"")
        assert answer.remark == f"Index {index} of 0@T is not exist!"

    def test_unknown_queue(self, client: MemoryClient) -> None:
        answer = client.ask(321, {"topic": "T", "queueId": "0", "index": "0", "count": "1"})
        assert (answer.code, answer.remark) == (1, "0@T is not exist!")


class TestMadeAgain:
    """A topic that was deleted, and a new one with its name."""

    def delete(self, client: MemoryClient) -> None:
        deleted = client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
        assert deleted.code == ResponseCode.SUCCESS

    def test_shows_nothing_of_the_old_one(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        client.send_message(body="old")
        client.send_message(body="older", fields={"queue": 3})
        self.delete(client)
        assert client.send_message(body="new").ext()["queueOffset"] == "1"
        assert bodies(client.pull(offset=1)) == ["new"]
        assert client.pull(offset=0) == []
        assert client.pull(queue=3) == []
        gateway.restart()
        assert bodies(gateway.connect().pull(offset=1)) == ["new"]

    def test_not_until_everything_of_the_old_one_is_gone(
        self, gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("gateway.topics.CLEARED_AT_ONCE", 2)
        for _ in range(5):
            client.send_message()
        self.delete(client)
        refused = client.send_message()
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert refused.remark == (
            "topic[orders] was deleted, and what it held is still being removed; try again in some seconds"
        )
        gateway.advance(11_000)
        assert client.send_message(body="new").code == ResponseCode.SUCCESS
        assert bodies(client.pull(offset=5)) == ["new"]


class TestMadeAgainByTheGateway:
    """Dead-letter and retry topics are made again at once, even while the deleted ones still hold messages."""

    @pytest.fixture(autouse=True)
    def old_ones(
        self, gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("gateway.topics.CLEARED_AT_ONCE", 2)
        for _ in range(5):
            client.send_message("%DLQ%consumers", "old")
        ok(client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "%DLQ%consumers"}))

    def pulled(self, client: MemoryClient) -> list[str]:
        begin = client.ask_pull("%DLQ%consumers").ext()["minOffset"]
        return bodies(client.pull("%DLQ%consumers", offset=int(begin)))

    def held(self, gateway: MemoryGateway) -> int:
        return gateway.queued()

    def test_show_nothing_of_the_old_ones(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        assert client.send_message("%DLQ%consumers", "new").ext()["queueOffset"] == "5"
        assert self.held(gateway) == 4
        assert self.pulled(client) == ["new"]
        gateway.crash()
        assert self.held(gateway) == 4
        assert self.pulled(gateway.connect()) == ["new"]

    @pytest.mark.parametrize("crashes", [False, True])
    def test_what_the_old_ones_held_is_removed_soon(
        self,
        gateway: MemoryGateway,
        client: MemoryClient,
        monkeypatch: pytest.MonkeyPatch,
        crashes: bool,
    ) -> None:
        monkeypatch.setattr("gateway.retention.EXPIRE_STEP", 1)
        client.send_message("%DLQ%consumers", "new")
        if crashes:
            gateway.crash()
        gateway.advance(20_000)
        assert self.held(gateway) == 1
        assert self.pulled(gateway.connect()) == ["new"]
        gateway.crash()
        assert self.pulled(gateway.connect()) == ["new"]

    def test_can_be_deleted_again(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        client.send_message("%DLQ%consumers", "newer")
        ok(client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "%DLQ%consumers"}))
        assert client.send_message("%DLQ%consumers", "newest").ext()["queueOffset"] == "6"
        assert self.pulled(client) == ["newest"]
        gateway.advance(20_000)
        assert self.held(gateway) == 1

    def test_a_refused_batch_makes_none(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        with commits_fail(gateway):
            refused = client.send_message("%DLQ%consumers", "refused")
            assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        gateway.advance(20_000)
        assert self.held(gateway) == 0
        assert client.send_message("%DLQ%consumers", "new").ext()["queueOffset"] == "5"
        assert self.pulled(client) == ["new"]


def test_a_beginning_behind_the_end_of_its_queue_does_not_count(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    """The rows before it are lost, and what comes in now is not of the deleted topic."""
    create_topic(client, "orders")
    gateway.store.put_note(b"begins\0orders", b'{"0":2}')
    gateway.store.commit()
    for number in range(3):
        gateway.restart()
        gateway.connect().send_message("orders", str(number))
    gateway.restart()
    gateway.advance(20_000)
    assert bodies(gateway.connect().pull_all("orders")) == ["0", "1", "2"]
