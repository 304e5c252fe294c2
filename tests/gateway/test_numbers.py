"""Limits of how many topics and groups there are: what is new beyond them is refused, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from twisted.logger import capturedLogs, formatEvent

from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import Command
from tests.gateway.conftest import MakeGateway
from tests.gateway.consuming import send_back
from tests.gateway.memory import MemoryClient, MemoryGateway, bodies
from tests.gateway.popping import INVISIBLE_MS, ask_pop, pop
from tests.gateway.tools import create_topic, ok, put_group

FULL_OF_TOPICS, FULL_OF_GROUPS = (
    ResponseCode.TOPIC_NOT_EXIST,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
)


def leave_topics(gateway: MemoryGateway, room: int) -> None:
    """Leave room for so many topics."""
    change(gateway, f"max_topics={len(gateway.service.broker.topics.names()) + room}")


def leave_groups(gateway: MemoryGateway, room: int) -> None:
    """Leave room for so many groups."""
    change(gateway, f"max_groups={len(gateway.service.broker.groups.names()) + room}")


def change(gateway: MemoryGateway, setting: str) -> None:
    """Change a setting while the gateway serves."""
    ok(gateway.connect().ask(RequestCode.UPDATE_BROKER_CONFIG, body=setting.encode()))


def create_topics(client: MemoryClient, *names: str) -> Command:
    """Create topics (18)."""
    topics = [
        {"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6} for name in names
    ]
    return client.ask(18, None, json.dumps({"topicConfigList": topics}).encode())


def put_groups(client: MemoryClient, *names: str) -> Command:
    """Create groups (225)."""
    groups = [{"groupName": name} for name in names]
    return client.ask(225, None, json.dumps({"groupConfigList": groups}).encode())


class TestTopics:
    @pytest.mark.parametrize(
        "create",
        [
            lambda client: client.send_message("new"),
            lambda client: client.send_message("%RETRY%nobody"),
            lambda client: client.send_message("%DLQ%nobody"),
            lambda client: create_topic(client, "new"),
            lambda client: create_topics(client, "orders", "new", "newer"),
        ],
        ids=["send", "retry topic", "dead-letter topic", "17", "18"],
    )
    def test_new_ones_are_refused(
        self,
        gateway: MemoryGateway,
        client: MemoryClient,
        create: Callable[[MemoryClient], Command],
    ) -> None:
        client.send_message("orders")
        topics = gateway.service.broker.topics.names()
        leave_topics(gateway, 0)
        refused = create(client)
        assert refused.code == FULL_OF_TOPICS
        assert (refused.remark or "").endswith(
            f"topics that exist would exceed max_topics = {len(topics)}"
        )
        assert gateway.service.broker.topics.names() == topics
        leave_topics(gateway, 2)
        ok(create(client))

    def test_those_that_exist_stay(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        client.send_message("orders", properties={"TIMER_DELAY_SEC": "60"})
        gateway.settings["max_topics"] = 1
        gateway.restart()
        client = gateway.connect()
        ok(client.send_message("orders"))
        ok(create_topic(client, "orders", queues=9))
        ok(create_topics(client, "orders"))
        gateway.advance(60_000)
        assert len(client.pull_all("orders")) == 2
        assert client.send_message("new").code == FULL_OF_TOPICS
        ok(client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}))
        assert client.send_message("orders").code == FULL_OF_TOPICS

    @pytest.mark.parametrize("level", [0, -1], ids=["retry", "dead letter"])
    def test_a_message_comes_back_to_an_existing_group(
        self, gateway: MemoryGateway, client: MemoryClient, level: int
    ) -> None:
        ok(put_group(client, "workers"))
        client.send_message("orders", "hello")
        [message] = client.pull()
        leave_topics(gateway, 0)
        ok(send_back(client, message, level))
        gateway.advance(10_000)
        topic = "%DLQ%workers" if level else "%RETRY%workers"
        assert bodies(client.pull_all(topic)) == ["hello"]

    def test_a_consumer_that_sends_a_message_back_itself(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        ok(put_group(client, "wor%kers"))
        leave_topics(gateway, 0)
        ok(client.send_message("%RETRY%wor%kers", "again"))
        ok(client.send_message("%RETRY%wor%kers", "spent", fields={"reconsume": 17}))
        assert bodies(client.pull_all("%RETRY%wor%kers")) == ["again"]
        assert bodies(client.pull_all("%DLQ%wor%kers")) == ["spent"]

    def test_a_popped_message_comes_back(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        client.send_message("orders", "hello")
        ok(put_group(client, "consumers", retryMaxTimes=1))
        leave_topics(gateway, 0)
        for _ in range(2):
            assert bodies(pop(gateway, client)) == ["hello"]
            gateway.advance(INVISIBLE_MS + 2_000)
        assert bodies(client.pull_all("%DLQ%consumers")) == ["hello"]

    def test_an_undecided_transaction_is_given_up(self, make_gateway: MakeGateway) -> None:
        gateway = make_gateway(transaction_check_max=1)
        client = gateway.connect()
        client.send_message("orders", properties={"TRAN_MSG": "true", "PGROUP": "p"})
        leave_topics(gateway, 0)
        gateway.advance(200_000)
        client = gateway.connect()
        assert len(client.pull_all("TRANS_CHECK_MAX_TIME_TOPIC")) == 1

    def test_a_group_is_online_without_its_retry_topic(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        client.send_message("orders", "hello")
        leave_topics(gateway, 0)
        with capturedLogs() as events:
            ok(client.heartbeat("c1", "workers"))
        [line] = map(formatEvent, events)
        assert line.startswith("a heartbeat of c1 from 127.0.0.1:")
        assert "cannot create groups or their retry topics (1): topic[%RETRY%workers] not" in line
        [message] = client.pull(group="workers")
        ok(send_back(client, message))
        gateway.advance(10_000)
        assert bodies(client.pull_all("%RETRY%workers")) == ["hello"]


class TestGroups:
    @pytest.mark.parametrize(
        "create",
        [
            lambda gateway, client: client.ask_pull(group="new"),
            lambda gateway, client: ask_pop(gateway, client, consumerGroup="new"),
            lambda gateway, client: client.send_message("%RETRY%new"),
            lambda gateway, client: client.ask(352, {"group": "new"}),
            lambda gateway, client: put_group(client, "new"),
            lambda gateway, client: put_groups(client, "old", "new", "newer"),
        ],
        ids=["pull", "pop", "retry", "352", "200", "225"],
    )
    def test_new_ones_are_refused(
        self,
        gateway: MemoryGateway,
        client: MemoryClient,
        create: Callable[[MemoryGateway, MemoryClient], Command],
    ) -> None:
        client.send_message("orders")
        ok(put_group(client, "old"))
        groups = gateway.service.broker.groups.names()
        leave_groups(gateway, 0)
        refused = create(gateway, client)
        assert refused.code == FULL_OF_GROUPS
        assert (refused.remark or "").endswith(
            f"groups that exist would exceed max_groups = {len(groups)}"
        )
        assert gateway.service.broker.groups.names() == groups
        leave_groups(gateway, 2)
        assert create(gateway, client).code != FULL_OF_GROUPS

    def test_those_that_exist_stay(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        client.send_message("orders")
        ok(client.heartbeat("c1", "old"))
        gateway.settings["max_groups"] = 1
        gateway.restart()
        client = gateway.connect()
        ok(client.heartbeat("c1", "old"))
        ok(put_group(client, "old", retryQueueNums=2))
        ok(put_groups(client, "old"))
        assert len(client.pull(group="old")) == 1
        ok(client.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "old"}))
        assert put_group(client, "old").code == FULL_OF_GROUPS

    def test_a_heartbeat_is_taken_without_new_ones(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        """Without the heartbeat the client's other groups and its producers would be offline."""
        ok(client.heartbeat("c1", "old"))
        leave_groups(gateway, 2)
        groups = ["old", *(f"new{number}" for number in range(5))]
        body = {
            "clientID": "c1",
            "consumerDataSet": [
                {
                    "groupName": group,
                    "consumeType": "CONSUME_PASSIVELY",
                    "messageModel": "CLUSTERING",
                    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                    "subscriptionDataSet": [],
                }
                for group in groups
            ],
            "producerDataSet": [{"groupName": "producers"}],
        }
        with capturedLogs() as events:
            ok(client.ask(RequestCode.HEART_BEAT, None, json.dumps(body).encode()))
        [line] = map(formatEvent, events)
        most = len(gateway.service.broker.groups.names())
        assert "cannot create groups or their retry topics (3): subscription group [new4] " in line
        assert line.endswith(f"would exceed max_groups = {most}")
        clients = gateway.service.broker.clients
        assert [one.name for one in clients.consumer_groups()] == groups[:3]
        assert len(list(clients.producers("producers"))) == 1
        # A consumer asks for the members of its group before it pulls.
        members = client.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "new4"})
        assert members.code == FULL_OF_GROUPS
        assert (members.remark or "").endswith(f"max_groups = {most}")
