"""Clients: heartbeats, notifications of changes, lists of members, and all ways of leaving."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from gateway.clients import CROWD, TOLD_TOGETHER
from gateway.handlers import clients
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import Command
from tests.gateway.conftest import MakeGateway
from tests.gateway.memory import MemoryClient, MemoryGateway


def members(client: MemoryClient, group: str = "consumers") -> list[str]:
    """Return the members of a group, in the list by which clients share out the queues."""
    answer = client.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    if answer.code != ResponseCode.SUCCESS:
        assert (answer.code, answer.remark) == (1, f"no consumer for this group, {group}")
        return []
    ids: list[str] = json.loads(answer.body)["consumerIdList"]
    return ids


def told(client: MemoryClient) -> list[str]:
    """Return the groups of whose change the client was notified since the last call."""
    requests = client.requests()
    for request in requests:
        assert request.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        assert request.is_oneway
    return [request.ext()["consumerGroup"] for request in requests]


def join(client: MemoryClient, client_id: str, **options: object) -> list[str]:
    """Send a heartbeat, and return the groups of whose change the client was notified with it."""
    client.requests()
    before = len(client.received)
    answer = client.heartbeat(client_id, **options)  # type: ignore[arg-type]
    assert answer.code == ResponseCode.SUCCESS
    new = [command for command in client.received[before:] if not command.is_response]
    return [command.ext()["consumerGroup"] for command in new]


def calls(event: str, work: Callable[[], object]) -> int:
    """Return how many calls some work takes.

    :param event: the calls that count, as `sys.setprofile` names them: `call` or `c_call`.
    """
    number = 0

    def count(_: object, happened: str, __: object) -> None:
        nonlocal number
        number += happened == event

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return number


class TestHeartbeat:
    def test_answer(self, client: MemoryClient) -> None:
        answer = client.heartbeat("c1")
        assert answer.code == ResponseCode.SUCCESS
        # The client has to send whole heartbeats each time, not only their fingerprints.
        assert answer.ext()["IS_SUPPORT_HEART_BEAT_V2"] == "false"

    def test_of_too_many_groups_or_subscriptions(
        self, gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(clients, "MAX_GROUPS_AT_ONCE", 3)
        monkeypatch.setattr(clients, "MAX_SUBSCRIPTIONS", 2)
        assert client.heartbeat("c1", producers=["a", "b"]).code == ResponseCode.SUCCESS
        refused = client.heartbeat("c1", "others", producers=["a", "b", "c"])
        assert (refused.code, refused.remark) == (
            ResponseCode.INVALID_PARAMETER,
            "4 groups in one heartbeat; 3 are possible",
        )
        assert gateway.service.broker.groups.get("others") is None
        refused = client.heartbeat("c1", subscriptions={"a": "*", "b": "*", "c": "*"})
        assert (refused.code, refused.remark) == (
            ResponseCode.INVALID_PARAMETER,
            "3 subscriptions in one heartbeat; 2 are possible",
        )

    @pytest.mark.parametrize(
        "long",
        [
            {"client_id": "c" * 1_001},
            {"language": "l" * 1_001},
            {"producers": ["short", "p" * 1_001]},
            {"group": "g" * 1_001},
            {"subscriptions": {"a": "*", "t" * 1_001: "*"}},
        ],
        ids=lambda long: next(iter(long)),
    )
    def test_with_a_long_name(self, client: MemoryClient, long: dict[str, Any]) -> None:
        """One connection could bring ten thousand, of 16 MB each."""
        refused = client.heartbeat(**{"client_id": "c1"} | long)
        assert (refused.code, refused.remark) == (
            ResponseCode.INVALID_PARAMETER,
            "1001 characters of a name; 1000 are possible",
        )
        assert client.heartbeat("c" * 1_000).code == 0

    def test_of_ever_new_clients_on_one_connection(
        self, gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(clients, "MAX_GROUPS", 4)
        monkeypatch.setattr(clients, "MAX_SUBSCRIPTIONS", 3)
        for _ in range(2):  # a client's next heartbeats add nothing
            assert client.heartbeat("c1", "g1", {"a": "*"}, producers=["p"]).code == 0
            assert client.heartbeat("c2", "g2", {"a": "*", "b": "*"}, producers=["p"]).code == 0
        refused = client.heartbeat("c3", "g1", {"a": "*"})
        assert (refused.code, refused.remark) == (
            ResponseCode.INVALID_PARAMETER,
            "5 groups of one connection; 4 are possible",
        )
        refused = client.heartbeat("c1", "g1", {"a": "*", "b": "*"}, producers=["p"])
        assert (refused.code, refused.remark) == (
            ResponseCode.INVALID_PARAMETER,
            "4 subscriptions of one connection (100 characters of tags count as one more); 3 are possible",
        )
        assert gateway.connect().heartbeat("c3", "g3", {"a": "*", "b": "*"}).code == 0
        gateway.advance(130_000)
        client.disconnect()
        assert gateway.connect().heartbeat("c1", "g1", {"a": "*", "b": "*"}).code == 0

    def test_whose_expressions_are_long(
        self, gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ten thousand groups of one connection could each bring 65,536 characters."""
        monkeypatch.setattr(clients, "MAX_SUBSCRIPTIONS", 12)
        long = "t" * 1_000
        assert client.heartbeat("c1", "g1", {"a": long}).code == 0
        assert client.heartbeat("c1", "g1", {"a": long}, sub_version=2).code == 0
        assert client.heartbeat("c1", "g2", {"a": "*"}).code == 0
        refused = client.heartbeat("c1", "g3", {"a": "t"})
        assert refused.code == ResponseCode.INVALID_PARAMETER
        assert client.heartbeat("c1", "g1", {"a": "t"}, sub_version=3).code == 0
        assert client.heartbeat("c1", "g3", {"a": "t"}).code == 0

    def test_subscriptions_count_for_the_connection_that_brought_them_until_they_are_gone(
        self, gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(clients, "MAX_SUBSCRIPTIONS", 3)
        client.heartbeat("c1", "g1", {})
        client.heartbeat("c2", "g1", {"a": "*", "b": "*"})
        client.ask(
            RequestCode.UNREGISTER_CLIENT, {"clientID": "c2", "consumerGroup": "g1"}
        )  # c1's group keeps them
        more = {"a": "*", "b": "*"}
        assert client.heartbeat("c1", "g2", more).code == ResponseCode.INVALID_PARAMETER
        other = gateway.connect()
        for _ in range(2):
            other.heartbeat("c3", "g1", {"a": "*"})
        assert client.heartbeat("c1", "g2", more).code == ResponseCode.SUCCESS
        assert client.heartbeat("c1", "g3", more).code == ResponseCode.INVALID_PARAMETER
        client.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": "c1", "consumerGroup": "g2"})
        assert client.heartbeat("c1", "g3", more | {"c": "*"}).code == ResponseCode.SUCCESS

    def test_takes_no_longer_on_a_connection_with_many_others(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        """With 10,000 groups each took 2 ms, and 250 of them come with one read."""
        groups = {"groupName": "", "subscriptionDataSet": []}
        many = [{**groups, "groupName": f"g{number}"} for number in range(500)]
        body = json.dumps({"clientID": "c1", "consumerDataSet": many}).encode()
        assert client.ask(RequestCode.HEART_BEAT, {}, body).code == ResponseCode.SUCCESS
        assert calls("c_call", lambda: client.heartbeat("c2", "g1")) < 300

    def test_of_very_many_groups(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        """Ten thousand that were new held up all others for 0.2 s. A connection brings as many in several ones."""
        groups = [f"p{number}" for number in range(2_001)]
        refused = client.heartbeat("c" * 1_000, group="", producers=groups, language="J" * 1_000)
        assert refused.code == ResponseCode.INVALID_PARAMETER
        assert not list(gateway.service.broker.clients.producer_groups())
        for number in range(5):
            assert client.heartbeat(f"c{number}", group="", producers=groups[1:]).code == 0
        refused = client.heartbeat("c5", group="", producers=["one"])
        assert (refused.code, refused.remark) == (
            ResponseCode.INVALID_PARAMETER,
            "10001 groups of one connection; 10000 are possible",
        )

    def test_with_too_many_tags(
        self, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(clients, "MAX_CHARACTERS", 6)
        accepted = client.heartbeat("c1", subscriptions={"a": "*", "b": "A||B"})
        assert accepted.code == ResponseCode.SUCCESS
        refused = client.heartbeat("c2", subscriptions={"a": "*", "b": "A || B"})
        assert (refused.code, refused.remark) == (
            ResponseCode.INVALID_PARAMETER,
            "7 characters of tags and expressions in one heartbeat; 6 are possible",
        )

    def test_makes_the_group_and_its_retry_topic(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        client.heartbeat("c1", "workers")
        gateway.crash()
        broker = gateway.service.broker
        assert broker.groups.get("workers") is not None
        topic = broker.topics.get("%RETRY%workers")
        assert topic is not None
        settings = topic.settings
        assert (settings.read_queue_nums, settings.write_queue_nums, settings.perm) == (1, 1, 6)

    def test_tools_find_a_broadcasting_group_by_its_retry_topic(self, client: MemoryClient) -> None:
        client.heartbeat("c1", "listeners", model="BROADCASTING")
        route = client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "%RETRY%listeners"})
        assert route.code == ResponseCode.SUCCESS

    def test_no_group_is_made_where_that_is_switched_off(self, make_gateway: MakeGateway) -> None:
        gateway = make_gateway(auto_create_group=False)
        client = gateway.connect()
        assert client.heartbeat("c1", "workers").code == ResponseCode.SUCCESS
        assert gateway.service.broker.groups.get("workers") is None
        assert gateway.service.broker.topics.get("%RETRY%workers") is None
        # Its members may not consume, so they do not share out the queues either.
        assert members(client, "workers") == []
        assert told(client) == []
        online = {"consumerGroup": "workers"}
        assert client.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, online).code == 206

    def test_of_a_producer(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        client.heartbeat("p1", group="", producers=["makers", "CLIENT_INNER_PRODUCER"])
        [producer] = gateway.service.broker.clients.producers("makers")
        assert (producer.client_id, producer.language, producer.version) == ("p1", "JAVA", 513)
        assert client.requests() == []

    @pytest.mark.parametrize(
        "body",
        [b"", b"{", b"[]", b"null", b"{}", b'{"clientID":5}', b'"x"', b"\xff", b"[" * 100_000],
    )
    def test_rubbish(self, client: MemoryClient, body: bytes) -> None:
        assert client.ask(RequestCode.HEART_BEAT, None, body).code == ResponseCode.SYSTEM_ERROR
        assert client.heartbeat("c1").code == ResponseCode.SUCCESS

    def test_of_the_cpp_client(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        """Enums are numbers, versions are text, fields are missing, and keys have no quotes."""
        body = b"""{"clientID":"cpp1","consumerDataSet":[{"consumeFromWhere":4,"consumeType":1,
            "groupName":"workers","messageModel":1,"subscriptionDataSet":[{"codeSet":[0],
            "subString":"red","subVersion":"1795251735419","tagsSet":["red"],"topic":"orders"}],
            unitMode:null}],"producerDataSet":[{"groupName":"makers"}]}"""
        answer = client.ask(RequestCode.HEART_BEAT, None, body, language="CPP", version=333)
        assert answer.code == ResponseCode.SUCCESS
        assert members(client, "workers") == ["cpp1"]
        group = gateway.service.broker.clients.consumer_group("workers")
        assert group is not None
        assert group.data.consume_type == "CONSUME_PASSIVELY"
        assert group.data.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"
        assert group.subscriptions["orders"].sub_string == "red"
        assert group.subscriptions["orders"].sub_version == 1795251735419

    def test_of_a_broadcasting_cpp_client(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        assert join(client, "cpp1", model=0, sub_version="7") == []
        group = gateway.service.broker.clients.consumer_group("consumers")
        assert group is not None
        assert group.data.is_broadcasting

    def test_an_ordinal_that_is_none(self, client: MemoryClient) -> None:
        assert client.heartbeat("c1", model=9).code == ResponseCode.SYSTEM_ERROR
        assert members(client) == []


class TestQuietGroup:
    """A group whose members get no notifications (notifyConsumerIdsChangedEnable)."""

    @pytest.fixture
    def member(self, client: MemoryClient) -> MemoryClient:
        settings = {"groupName": "consumers", "notifyConsumerIdsChangedEnable": False}
        body = json.dumps(settings).encode()
        client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)
        client.heartbeat("c1")
        return client

    def test_who_comes_and_leaves_is_not_told_of(
        self, gateway: MemoryGateway, member: MemoryClient
    ) -> None:
        other = gateway.connect()
        other.heartbeat("c2")
        leave = {"clientID": "c2", "consumerGroup": "consumers"}
        other.ask(RequestCode.UNREGISTER_CLIENT, leave)
        assert told(member) == []
        assert members(member) == ["c1"]

    def test_who_is_lost_is(self, gateway: MemoryGateway, member: MemoryClient) -> None:
        other = gateway.connect()
        other.heartbeat("c2")
        other.disconnect()
        assert told(member) == ["consumers"]


class TestChanges:
    def test_the_first_member_is_told_of_itself(self, client: MemoryClient) -> None:
        assert join(client, "c1") == ["consumers"]

    def test_all_members_are_told_of_a_new_one(self, gateway: MemoryGateway) -> None:
        first, second, stranger = (gateway.connect() for _ in range(3))
        join(stranger, "s1", group="others")
        join(first, "c1")
        assert join(second, "c2") == ["consumers"]
        assert told(first) == ["consumers"]
        assert told(stranger) == []
        assert sorted(members(first)) == ["c1", "c2"]

    def test_a_crowd_is_told_once_of_all_that_come_or_leave_together(
        self, gateway: MemoryGateway
    ) -> None:
        clients = [gateway.connect() for _ in range(CROWD + 20)]
        for number, client in enumerate(clients):
            join(client, f"c{number}")
        assert [len(told(client)) for client in clients[:2]] == [CROWD - 1, CROWD - 2]
        assert [told(client) for client in clients[CROWD:]] == [[]] * 20
        for client in clients:
            told(client)
        gateway.advance(500)
        assert [told(client) for client in clients] == [["consumers"]] * len(clients)
        for client in clients[-10:]:
            client.disconnect()
        assert told(clients[0]) == []
        gateway.advance(500)
        assert told(clients[0]) == ["consumers"]
        gateway.advance(500)
        assert told(clients[0]) == []

    def test_a_large_crowd_is_not_told_all_at_a_time(self, gateway: MemoryGateway) -> None:
        clients = [gateway.connect() for _ in range(TOLD_TOGETHER + 20)]

        def told_in(milliseconds: int) -> tuple[int, int]:
            """Count the notifications in that time: of the first members, and of the others."""
            gateway.advance(milliseconds)
            first = sum(len(told(client)) for client in clients[:TOLD_TOGETHER])
            return first, sum(len(told(client)) for client in clients[TOLD_TOGETHER:])

        for number, client in enumerate(clients):
            join(client, f"c{number}")
        told_in(0)
        assert told_in(500) == (TOLD_TOGETHER, 0)
        # One client leaves meanwhile. All get a notification of that, after the others got the one of the first change.
        clients.pop().disconnect()
        assert told_in(50) == (0, 19)
        assert told_in(499) == (0, 0)
        assert told_in(1) == (TOLD_TOGETHER, 0)
        assert told_in(50) == (0, 19)
        assert told_in(2_000) == (0, 0)

    def test_nobody_is_told_of_the_same_again(self, gateway: MemoryGateway) -> None:
        first, second = gateway.connect(), gateway.connect()
        join(first, "c1")
        join(second, "c2")
        told(first)
        for _ in range(3):
            gateway.advance(30_000)
            assert join(first, "c1") == []
            assert join(second, "c2") == []
        assert sorted(members(first)) == ["c1", "c2"]

    @pytest.mark.parametrize(
        ("subscriptions", "sub_version", "changed"),
        [
            ({"orders": "red"}, 2, True),
            ({"orders": "*", "bills": "*"}, 1, True),
            ({"bills": "*"}, 2, True),
            ({}, 2, True),
            ({"orders": "*"}, 2, False),
            # A subscription of an older version is ignored.
            ({"orders": "red"}, 0, False),
        ],
    )
    def test_a_changed_subscription(
        self,
        gateway: MemoryGateway,
        subscriptions: dict[str, str],
        sub_version: int,
        changed: bool,
    ) -> None:
        first, second = gateway.connect(), gateway.connect()
        join(first, "c1")
        join(second, "c2")
        told(first)
        assert join(second, "c2", subscriptions=subscriptions, sub_version=sub_version) == (
            ["consumers"] if changed else []
        )
        assert told(first) == (["consumers"] if changed else [])

    def test_broadcasting_groups_share_nothing(self, gateway: MemoryGateway) -> None:
        first, second = gateway.connect(), gateway.connect()
        assert join(first, "c1", model="BROADCASTING") == []
        assert join(second, "c2", model="BROADCASTING") == []
        second.disconnect()
        assert told(first) == []
        assert members(first) == ["c1"]

    def test_a_client_in_two_groups(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        assert join(client, "c1", group="g1") == ["g1"]
        assert join(client, "c1", group="g2") == ["g2"]
        assert members(client, "g1") == members(client, "g2") == ["c1"]


class TestLeaving:
    @pytest.fixture
    def other(self, gateway: MemoryGateway, client: MemoryClient) -> MemoryClient:
        """Another member beside `client`; each got a notification of the other."""
        other = gateway.connect()
        join(client, "c1")
        join(other, "c2")
        told(client)
        return other

    def test_by_word(self, client: MemoryClient, other: MemoryClient) -> None:
        ext = {"clientID": "c1", "consumerGroup": "consumers"}
        assert client.ask(RequestCode.UNREGISTER_CLIENT, ext).code == ResponseCode.SUCCESS
        assert told(other) == ["consumers"]
        assert told(client) == []
        assert members(other) == ["c2"]

    def test_by_word_twice(self, client: MemoryClient, other: MemoryClient) -> None:
        ext = {"clientID": "c1", "consumerGroup": "consumers"}
        client.ask(RequestCode.UNREGISTER_CLIENT, ext)
        told(other)
        assert client.ask(RequestCode.UNREGISTER_CLIENT, ext).code == ResponseCode.SUCCESS
        assert told(other) == []

    def test_without_a_word(self, client: MemoryClient, other: MemoryClient) -> None:
        client.disconnect()
        assert told(other) == ["consumers"]
        assert members(other) == ["c2"]

    def test_in_silence(
        self, gateway: MemoryGateway, client: MemoryClient, other: MemoryClient
    ) -> None:
        """The client sends no heartbeat for two minutes, while other requests keep the connection open."""
        for second in range(0, 140, 20):
            gateway.advance(20_000)
            client.ask(RequestCode.GET_ALL_TOPIC_LIST)
            if second == 80:
                assert sorted(members(other)) == ["c1", "c2"]
            join(other, "c2")
        assert members(other) == ["c2"]
        assert not client.closed

    def test_the_last_one_ends_the_group(self, client: MemoryClient, other: MemoryClient) -> None:
        client.disconnect()
        other.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": "c2", "consumerGroup": "consumers"})
        assert members(other) == []

    def test_and_coming_back_on_another_connection(
        self, gateway: MemoryGateway, client: MemoryClient, other: MemoryClient
    ) -> None:
        """The old connection may be lost only after the new one is open."""
        again = gateway.connect()
        assert join(again, "c1") == ["consumers"]
        told(other)
        client.disconnect()
        assert told(other) == []
        assert sorted(members(other)) == ["c1", "c2"]

    def test_of_a_producer(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        clients = gateway.service.broker.clients
        client.heartbeat("p1", group="", producers=["makers", "bakers"])
        client.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": "p1", "producerGroup": "makers"})
        assert [name for name, _ in clients.producer_groups()] == ["bakers"]
        client.disconnect()
        assert list(clients.producer_groups()) == []

    def test_nobody_makes_another_leave(
        self, gateway: MemoryGateway, client: MemoryClient, other: MemoryClient
    ) -> None:
        client.heartbeat("c1", producers=["makers"])
        ext = {"clientID": "c1", "consumerGroup": "consumers", "producerGroup": "makers"}
        assert other.ask(RequestCode.UNREGISTER_CLIENT, ext).code == ResponseCode.SUCCESS
        assert sorted(members(other)) == ["c1", "c2"]
        assert gateway.service.broker.clients.producer("c1") is not None

    def test_without_naming_a_group(self, client: MemoryClient) -> None:
        answer = client.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": "c1"})
        assert answer.code == ResponseCode.SUCCESS

    def test_without_naming_anybody(self, client: MemoryClient, other: MemoryClient) -> None:
        """As NewLife's .NET client leaves, which goes on with its heartbeats after a refusal."""
        body = b'{"ClientId":"c1","ProducerGroup":"consumers","ConsumerGroup":"consumers"}'
        answer = client.ask(RequestCode.UNREGISTER_CLIENT, None, body)
        assert answer.code == ResponseCode.SUCCESS
        assert sorted(members(other)) == ["c1", "c2"]

    def test_of_somebody_unknown(self, client: MemoryClient, other: MemoryClient) -> None:
        ext = {"clientID": "c9", "consumerGroup": "consumers", "producerGroup": "makers"}
        assert client.ask(RequestCode.UNREGISTER_CLIENT, ext).code == ResponseCode.SUCCESS
        assert told(other) == []


def test_members_of_an_unknown_group(client: MemoryClient) -> None:
    answer: Command = client.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "none"})
    assert (answer.code, answer.remark) == (1, "no consumer for this group, none")


def test_many_members_come_and_go(gateway: MemoryGateway) -> None:
    clients = [gateway.connect() for _ in range(12)]
    for number, one in enumerate(clients):
        one.heartbeat(f"c{number:02}")
    assert sorted(members(clients[0])) == [f"c{number:02}" for number in range(12)]
    for one in clients[::2]:
        one.disconnect()
    assert sorted(members(clients[1])) == [f"c{number:02}" for number in range(1, 12, 2)]


def test_one_that_leaves_costs_the_same_however_many_are_there(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    """A network failure takes ten thousand producers at once."""
    for number in range(500):
        client.heartbeat(f"c{number}", group="", producers=["makers"])
    other = gateway.connect()
    other.heartbeat("other", group="others", producers=["makers"])
    assert calls("call", other.disconnect) < 100
    clients = gateway.service.broker.clients
    assert len(list(clients.producers("makers"))) == 500
    assert clients.consumer_group("others") is None


def test_a_client_that_came_back_is_its_new_connections(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    other = gateway.connect()
    for one in (client, other):
        one.heartbeat("c1", producers=["makers"])
    client.disconnect()
    assert members(other) == ["c1"]
    clients = gateway.service.broker.clients
    assert clients.producer("c1") is not None
    other.heartbeat("c2")
    ext = {"clientID": "c1", "consumerGroup": "consumers", "producerGroup": "makers"}
    other.ask(RequestCode.UNREGISTER_CLIENT, ext)
    other.disconnect()
    assert clients.consumer_group("consumers") is None
    assert clients.producer("c1") is None
    assert not clients._places
    assert not clients._behind


def test_both_of_two_with_one_id_are_told_of_changes(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    second, third = gateway.connect(), gateway.connect()
    join(client, "c1")
    assert join(second, "c1") == ["consumers"]
    assert told(client) == ["consumers"]
    assert join(third, "c3") == ["consumers"]
    assert (told(client), told(second)) == (["consumers"], ["consumers"])


@pytest.mark.parametrize("by_word", [True, False])
@pytest.mark.parametrize("first_leaves", [True, False])
def test_two_with_one_id_are_there_until_both_have_left(
    gateway: MemoryGateway, client: MemoryClient, first_leaves: bool, by_word: bool
) -> None:
    """Containers with equal addresses and process ids have one client id. As upstream, entries are by connection."""
    other = gateway.connect()
    # Only the first heartbeat of each causes a notification.
    heard = [join(one, "c1", producers=["makers"]) for one in (client, other, client, other)]
    assert heard == [["consumers"], ["consumers"], [], []]
    leaving, staying = (client, other) if first_leaves else (other, client)

    def leave(one: MemoryClient) -> None:
        if by_word:
            ext = {"clientID": "c1", "consumerGroup": "consumers", "producerGroup": "makers"}
            one.ask(RequestCode.UNREGISTER_CLIENT, ext)
        else:
            one.disconnect()

    leave(leaving)
    clients = gateway.service.broker.clients
    assert members(staying) == ["c1"]
    for found in (clients.producer("c1"), *clients.producers("makers")):
        assert found is not None
        assert found.peer in clients._places
    leave(staying)
    assert clients.consumer_group("consumers") is None
    assert clients.producer("c1") is None
    assert not clients._places
    assert not clients._behind
