"""Messages that a consumer sends back (36): delivered later and later, and in the end in the dead-letter topic."""

from __future__ import annotations

import json

import pytest

from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.messages import Message, offset_msg_id
from tests.gateway.conftest import MakeGateway
from tests.gateway.consuming import send_back
from tests.gateway.memory import START_MS, MemoryClient, MemoryGateway, properties_of

RETRY, DEAD = "%RETRY%workers", "%DLQ%workers"
LEVELS_S = (1, 5, 10, 30, *(60 * n for n in range(1, 11)), 1_200, 1_800, 3_600, 7_200)


def pulled(client: MemoryClient, **properties: str) -> Message:
    """Send a message and pull it."""
    client.send_message("orders", "hello", properties=properties)
    return client.pull()[-1]


class TestCopy:
    def test_record(self, gateway: MemoryGateway) -> None:
        client = gateway.connect("192.0.2.9")
        message = pulled(client, UNIQ_KEY="ID1", TAGS="red", KEYS="k", colour="blue")
        gateway.advance(1_000)
        assert send_back(gateway.connect(), message).code == ResponseCode.SUCCESS
        gateway.advance(10_000)
        [copy] = client.pull(RETRY)
        assert (copy.topic, copy.queue_id, copy.queue_offset) == (RETRY, 0, 0)
        assert copy.reconsume_times == 1
        assert copy.body == message.body
        assert copy.flag == message.flag
        assert copy.born_ms == message.born_ms
        assert copy.born_host == message.born_host
        assert copy.store_ms == START_MS + 11_000
        assert copy.physical_offset != message.physical_offset
        properties = properties_of(copy)
        assert properties["UNIQ_KEY"] == "ID1"
        assert properties["TAGS"] == "red"
        assert properties["KEYS"] == "k"
        assert properties["colour"] == "blue"
        assert properties["RETRY_TOPIC"] == "orders"
        assert properties["ORIGIN_MESSAGE_ID"] == offset_msg_id(
            message.store_host, message.physical_offset
        )
        assert properties["WAIT"] == "false"
        assert (properties["DELAY"], properties["REAL_TOPIC"]) == ("3", RETRY)
        # No property is there twice.
        assert copy.properties.count("CLUSTER\x01") == 1
        assert copy.properties.count("UNIQ_KEY\x01") == 1

    def test_the_origin_stays_that_of_the_first(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        message = pulled(client)
        for retry in range(3):
            send_back(client, message, level=1)
            gateway.advance(1_000)
            message = client.pull(RETRY, 0, retry)[0]
            assert message.reconsume_times == retry + 1
        properties = properties_of(message)
        assert properties["RETRY_TOPIC"] == "orders"
        first = client.pull()[0]
        assert properties["ORIGIN_MESSAGE_ID"] == offset_msg_id(
            first.store_host, first.physical_offset
        )

    @pytest.mark.parametrize(
        "properties",
        [
            {"DELAY": "2"},
            {"TIMER_DELAY_SEC": "5"},
            {"TIMER_DELAY_MS": "5000"},
            {"TIMER_DELIVER_MS": str(START_MS + 5_000)},
            {"__STARTDELIVERTIME": str(START_MS + 5_000)},
        ],
    )
    def test_the_time_it_was_sent_for_does_not_delay_it_again(
        self, gateway: MemoryGateway, client: MemoryClient, properties: dict[str, str]
    ) -> None:
        client.send_message("orders", properties=properties)
        gateway.advance(5_000)
        send_back(client, client.pull()[0], level=1)
        gateway.advance(999)
        assert client.pull(RETRY) == []
        gateway.advance(1)
        [copy] = client.pull(RETRY)
        kept = properties_of(copy)
        assert (kept["DELAY"], kept["REAL_TOPIC"], kept["REAL_QID"]) == ("1", RETRY, "0")
        assert not {
            "TIMER_DELAY_SEC",
            "TIMER_DELAY_MS",
            "TIMER_DELIVER_MS",
            "__STARTDELIVERTIME",
        } & set(kept)
        # It still says for when it was sent, unless that was a level.
        timed = {"TIMER_OUT_MS": str(START_MS + 5_000)} if "DELAY" not in properties else {}
        assert {name: kept[name] for name in kept if name == "TIMER_OUT_MS"} == timed

    @pytest.mark.parametrize("as_a_send", [False, True], ids=["36", "a send of the client's"])
    def test_one_that_could_not_be_sent_any_more(
        self, gateway: MemoryGateway, client: MemoryClient, *, as_a_send: bool
    ) -> None:
        client.send_message("orders", "a" * 5_000)
        [message] = client.pull()
        assert client.ask(RequestCode.UPDATE_BROKER_CONFIG, None, b"maxMessageSize=2048").code == 0
        if as_a_send:
            client.send_message(RETRY, "a" * 5_000, {"DELAY": "1"})
        else:
            send_back(client, message, level=1)
        gateway.advance(1_000)
        assert [copy.body for copy in client.pull(RETRY)] == [message.body]

    def test_is_on_disk_when_it_is_answered(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        send_back(client, pulled(client), level=1)
        gateway.crash()
        gateway.advance(1_000)
        assert len(gateway.connect().pull(RETRY)) == 1


class TestLevels:
    def test_each_retry_waits_longer(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        message = pulled(client)
        for retry in range(16):
            assert send_back(client, message).code == ResponseCode.SUCCESS
            delay_ms = LEVELS_S[2 + retry] * 1_000
            gateway.jump(delay_ms - 1)
            client = gateway.connect()
            assert client.pull(RETRY, 0, retry) == []
            gateway.advance(1)
            [message] = client.pull(RETRY, 0, retry)
        assert message.reconsume_times == 16
        send_back(client, message)
        [dead] = client.pull(DEAD)
        assert dead.reconsume_times == 17
        assert properties_of(dead)["RETRY_TOPIC"] == "orders"

    @pytest.mark.parametrize(("level", "delay_s"), [(1, 1), (2, 5), (18, 7_200), (99, 7_200)])
    def test_a_level_of_the_consumers_own(
        self, gateway: MemoryGateway, client: MemoryClient, level: int, delay_s: int
    ) -> None:
        send_back(client, pulled(client), level)
        gateway.jump(delay_s * 1_000 - 1)
        client = gateway.connect()
        assert client.pull(RETRY) == []
        gateway.advance(1)
        assert len(client.pull(RETRY)) == 1


class TestDeadLetters:
    def test_at_once(self, client: MemoryClient) -> None:
        message = pulled(client, UNIQ_KEY="ID1", TIMER_DELAY_MS="0")
        assert send_back(client, message, level=-1).code == ResponseCode.SUCCESS
        [dead] = client.pull(DEAD)
        assert (dead.topic, dead.queue_id, dead.reconsume_times) == (DEAD, 0, 1)
        properties = properties_of(dead)
        assert properties["UNIQ_KEY"] == "ID1"
        assert properties["RETRY_TOPIC"] == "orders"
        assert properties["DELAY"] == "0"
        assert client.pull(RETRY) == []

    @pytest.mark.parametrize(
        ("most", "version", "dead"),
        [
            (0, 513, True),
            (1, 513, False),
            (0, 121, True),
            # For clients before V3_4_9 the request's maximum does not count.
            (0, 120, False),
            (None, 513, False),
        ],
    )
    def test_the_client_says_how_often(
        self,
        gateway: MemoryGateway,
        client: MemoryClient,
        most: int | None,
        version: int,
        dead: bool,
    ) -> None:
        send_back(client, pulled(client), level=1, most=most, version=version)
        gateway.advance(1_000)
        assert len(client.pull(DEAD)) == dead
        assert len(client.pull(RETRY)) == (not dead)

    def test_the_group_says_how_often(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        body = b'{"groupName":"workers","retryMaxTimes":1}'
        client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)
        send_back(client, pulled(client), level=1)
        gateway.advance(1_000)
        [message] = client.pull(RETRY)
        send_back(client, message, level=1)
        assert len(client.pull(DEAD)) == 1


class TestGroups:
    def test_unknown(self, make_gateway: MakeGateway) -> None:
        client = make_gateway(auto_create_group=False).connect()
        client.send_message()
        answer = send_back(client, 1)
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert answer.remark is not None
        assert answer.remark.startswith("subscription group not exist, workers ")

    def test_without_retries(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        body = b'{"groupName":"workers","retryQueueNums":0}'
        client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)
        assert send_back(client, pulled(client)).code == ResponseCode.SUCCESS
        assert gateway.service.broker.topics.get(RETRY) is None

    def test_a_retry_topic_that_must_not_be_written_to(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        """A real 5.5.0 broker answers the same, also for dead letters."""
        message = pulled(client)
        fields = {"topic": RETRY, "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG"}
        fields |= {"readQueueNums": "1", "writeQueueNums": "1", "perm": "4", "order": "false"}
        made = client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        assert made.code == ResponseCode.SUCCESS
        for level in (1, -1):
            answer = send_back(client, message, level)
            assert answer.code == ResponseCode.NO_PERMISSION
            assert answer.remark == "the topic[%RETRY%workers] sending message is forbidden"
        gateway.advance(1_000)
        assert client.pull(RETRY) == client.pull(DEAD) == []

    def test_several_retry_queues(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        body = b'{"groupName":"workers","retryQueueNums":3}'
        client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)
        message = pulled(client)
        for _ in range(40):
            send_back(client, message, level=1)
        gateway.advance(1_000)
        counts = [len(client.pull_all(RETRY, queue)) for queue in range(3)]
        assert sum(counts) == 40
        assert min(counts) > 0

    def test_more_retry_queues_than_its_topic_has(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        """The topic keeps the queues it was created with, and consumers read no others."""
        message = pulled(client)
        send_back(client, message, level=1)
        body = b'{"groupName":"workers","retryQueueNums":8}'
        client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)
        for _ in range(9):
            send_back(client, message, level=1)
        gateway.advance(1_000)
        route = client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": RETRY})
        [data] = json.loads(route.body)["queueDatas"]
        queues = range(data["readQueueNums"])
        assert sum(len(client.pull(RETRY, queue)) for queue in queues) == 10

    @pytest.mark.parametrize("readable", [0, 8])
    def test_a_retry_topic_that_an_operator_made(self, client: MemoryClient, readable: int) -> None:
        """If the topic has more queues than its group has retry queues, or no readable one, the first queue is used."""
        fields = {"topic": RETRY, "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG"}
        fields |= {"writeQueueNums": "8", "perm": "6", "order": "false"}
        made = client.ask(
            RequestCode.UPDATE_AND_CREATE_TOPIC, fields | {"readQueueNums": str(readable)}
        )
        assert made.code == ResponseCode.SUCCESS
        message = pulled(client)
        for _ in range(9):
            assert send_back(client, message, level=1).code == ResponseCode.SUCCESS
        assert [found["queueId"] for found in client.look_up(topic=RETRY)] == [0] * 9


@pytest.mark.parametrize("offset", [0, 999, -1, -(2**63), 2**63 - 1])
def test_no_such_message(client: MemoryClient, offset: int) -> None:
    client.send_message()
    answer = send_back(client, offset)
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_ERROR,
        f"look message by offset failed, {offset}",
    )


def test_a_sender_that_claims_countless_retries(client: MemoryClient) -> None:
    client.send_message(fields={"reconsume": 2**31 - 1})
    assert send_back(client, client.pull()[-1]).code == ResponseCode.SUCCESS
    assert [one.reconsume_times for one in client.pull(DEAD)] == [2**31 - 1]


def test_a_message_that_retention_removed(gateway: MemoryGateway, client: MemoryClient) -> None:
    message = pulled(client)
    gateway.jump(80 * 3_600_000)
    client = gateway.connect()
    assert client.pull() == []
    assert send_back(client, message).code == ResponseCode.SYSTEM_ERROR


def test_oneway(gateway: MemoryGateway, client: MemoryClient) -> None:
    message = pulled(client)
    ext = {"offset": str(message.physical_offset), "group": "workers", "delayLevel": "1"}
    client.send(RequestCode.CONSUMER_SEND_MSG_BACK, ext, oneway=True)
    assert client.take() == []
    gateway.advance(1_000)
    assert len(client.pull(RETRY)) == 1
