"""Replies: pushed to the requesting client, its response passed on, stored in their topic."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.wire.codes import RequestCode, ResponseCode, SysFlag
from gateway.wire.commands import Command, encode_response
from gateway.wire.fields import to_ext
from gateway.wire.headers import SendMessageV2
from gateway.wire.messages import parse_offset_msg_id
from gateway.wire.properties import parse
from storage.keys import queue_prefix
from tests.gateway.conftest import MakeGateway
from tests.gateway.faults import damaged_row
from tests.gateway.memory import (
    START_MS,
    MemoryClient,
    MemoryGateway,
    bodies,
)
from tests.gateway.replies import TOPIC, reply_fields

ASKER = "asker@1"
PROPERTIES = {
    "CORRELATION_ID": "c1",
    "REPLY_TO_CLIENT": ASKER,
    "TTL": "3000",
    "MSG_TYPE": "reply",
    "UNIQ_KEY": "ID1",
}


@pytest.fixture
def asker(gateway: MemoryGateway) -> MemoryClient:
    """The client that waits for a reply."""
    client = gateway.connect()
    client.heartbeat(ASKER, "", producers=["askers"])
    return client


def send(client: MemoryClient, properties: dict[str, str] | None = None, **changes: Any) -> int:
    """Send a reply as Java does (325), and return its opaque."""
    body = changes.pop("body", b"pong")
    given = reply_fields(PROPERTIES if properties is None else properties, **changes)
    letters = SendMessageV2(**{name: getattr(given, name) for name in given.__struct_fields__})
    return client.send(RequestCode.SEND_REPLY_MESSAGE_V2, to_ext(letters), body)


def pushed(asker: MemoryClient) -> Command:
    """Return the one reply that was pushed."""
    (request,) = asker.requests()
    assert request.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    return request


def take(asker: MemoryClient, code: int = ResponseCode.SUCCESS) -> Command:
    """Take the pushed reply, and answer it as Java does."""
    request = pushed(asker)
    asker.raw(encode_response(request.opaque, code, remark="no such request"))
    return request


def answer(client: MemoryClient, opaque: int) -> Command:
    """Return the response to a reply."""
    found = client.answer(opaque)
    assert found is not None
    return found


class TestPushing:
    def test_a_reply_reaches_the_client_that_asked(
        self, gateway: MemoryGateway, client: MemoryClient, asker: MemoryClient
    ) -> None:
        send(client)

        request = pushed(asker)

        assert not request.is_oneway
        assert request.body == b"pong"
        ext = request.ext()
        assert parse(ext.pop("properties")) == {
            **PROPERTIES,
            "PUSH_REPLY_TIME": str(gateway.now_ms),
        }
        peer = client.transport.getPeer()
        assert ext == {
            "producerGroup": "repliers",
            "topic": TOPIC,
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4",
            "queueId": "0",
            "sysFlag": "0",
            "bornTimestamp": str(START_MS - 7),
            "flag": "9",
            "reconsumeTimes": "0",
            "unitMode": "false",
            "bornHost": f"{peer.host}:{peer.port}",
            "storeHost": "127.0.0.1:9876",
            "storeTimestamp": str(gateway.now_ms),
        }

    def test_its_sender_is_answered_when_the_client_has_taken_it(
        self, client: MemoryClient, asker: MemoryClient
    ) -> None:
        opaque = send(client)
        assert client.answer(opaque) is None
        take(asker)
        assert answer(client, opaque).code == ResponseCode.SUCCESS

    def test_go_sends_it_with_long_names(self, client: MemoryClient, asker: MemoryClient) -> None:
        opaque = client.send(
            RequestCode.SEND_REPLY_MESSAGE, to_ext(reply_fields(PROPERTIES)), b"pong"
        )
        assert take(asker).body == b"pong"
        assert answer(client, opaque).code == ResponseCode.SUCCESS

    def test_only_the_client_that_asked_gets_it(
        self, gateway: MemoryGateway, client: MemoryClient, asker: MemoryClient
    ) -> None:
        other = gateway.connect()
        other.heartbeat("asker@2", "", producers=["askers"])
        send(client)
        assert other.requests() == []
        take(asker)

    def test_compressed_replies_pass_as_they_are(
        self, client: MemoryClient, asker: MemoryClient
    ) -> None:
        send(client, sys_flag=1, body=b"\x78\x9c")
        request = take(asker)
        assert request.ext()["sysFlag"] == "1"
        assert request.body == b"\x78\x9c"


def ask(client: MemoryClient, client_id: str = ASKER) -> None:
    """Send a request to which a client wants a reply, as Java's `request` does."""
    properties = {"CORRELATION_ID": "c1", "REPLY_TO_CLIENT": client_id, "TTL": "3000"}
    assert client.send_message("questions", properties=properties).code == ResponseCode.SUCCESS


class TestBeforeTheFirstHeartbeat:
    """Java 5.5.0 may send its first one 30 s after its first request."""

    def test_a_reply_reaches_the_client_that_asked(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        asker = gateway.connect()
        ask(asker)
        opaque = send(client)
        take(asker)
        assert answer(client, opaque).code == ResponseCode.SUCCESS
        asker.disconnect()
        assert answer(client, send(client)).code == ResponseCode.SYSTEM_ERROR

    def test_its_heartbeat_makes_it_no_second_client(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        asker = gateway.connect()
        ask(asker)
        asker.heartbeat(ASKER, "", producers=["producers"])
        clients = gateway.service.broker.clients
        assert [one.client_id for one in clients.producers("producers")] == [ASKER]
        send(client)
        take(asker)

    @pytest.mark.parametrize("group", ["producers", "askers"])
    def test_a_copy_of_a_request_takes_no_reply_away(
        self, gateway: MemoryGateway, client: MemoryClient, group: str
    ) -> None:
        asker, copier = gateway.connect(), gateway.connect()
        asker.heartbeat(ASKER, "", producers=[group])
        ask(copier)
        send(client)
        take(asker)
        assert copier.requests() == []

    def test_a_client_that_is_known_is_nobody_else(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        known = gateway.connect()
        known.heartbeat("known@1", "", producers=["others"])
        for client_id in (ASKER, "x" * 2_000):
            ask(known, client_id)
        ask(gateway.connect(), "x" * 2_000)
        assert answer(client, send(client)).code == ResponseCode.SYSTEM_ERROR
        clients = gateway.service.broker.clients
        assert [name for name, _ in clients.producer_groups()] == ["others"]


class TestFailures:
    def test_a_client_that_is_not_there(self, client: MemoryClient) -> None:
        found = answer(client, send(client))
        assert found.code == ResponseCode.SYSTEM_ERROR
        assert found.remark == f"push reply message fail, channel of <{ASKER}> not found."

    def test_a_reply_to_nobody(self, client: MemoryClient) -> None:
        properties = {**PROPERTIES, "REPLY_TO_CLIENT": ""}
        found = answer(client, send(client, properties))
        assert found.code == ResponseCode.SYSTEM_ERROR
        assert found.remark == "reply message properties[REPLY_TO_CLIENT] is null"

    def test_a_client_that_refuses(self, client: MemoryClient, asker: MemoryClient) -> None:
        opaque = send(client)
        take(asker, ResponseCode.SYSTEM_ERROR)
        found = answer(client, opaque)
        assert found.code == ResponseCode.SYSTEM_ERROR
        assert found.remark == f"push reply message to {ASKER}fail."

    def test_a_client_that_does_not_answer(
        self, gateway: MemoryGateway, client: MemoryClient, asker: MemoryClient
    ) -> None:
        opaque = send(client)
        gateway.advance(9_900)
        assert client.answer(opaque) is None
        gateway.advance(200)
        assert answer(client, opaque).remark == f"push reply message to {ASKER}fail."

    def test_a_client_that_leaves_meanwhile(
        self, client: MemoryClient, asker: MemoryClient
    ) -> None:
        opaque = send(client)
        asker.disconnect()
        assert answer(client, opaque).code == ResponseCode.SYSTEM_ERROR
        again = answer(client, send(client))
        assert again.remark is not None
        assert again.remark.endswith("not found.")

    def test_a_gateway_that_stops_meanwhile(
        self, gateway: MemoryGateway, client: MemoryClient, asker: MemoryClient
    ) -> None:
        opaque = send(client)
        gateway.settle()
        gateway.service.stop()
        assert answer(client, opaque).code == ResponseCode.SYSTEM_ERROR
        gateway.running = False

    def test_what_no_send_may_do_no_reply_may(self, client: MemoryClient) -> None:
        forbidden = answer(client, send(client, topic="SCHEDULE_TOPIC_XXXX"))
        assert forbidden.code == ResponseCode.NO_PERMISSION
        no_queue = answer(client, send(client, queue_id=5))
        assert no_queue.code == ResponseCode.INVALID_PARAMETER
        assert answer(client, send(client, body=b"", topic="new")).code == ResponseCode.SYSTEM_ERROR
        made = client.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "new"})
        assert made.code == ResponseCode.TOPIC_NOT_EXIST
        for batch in (
            send(client, sys_flag=SysFlag.INNER_BATCH),
            send(client, {**PROPERTIES, "INNER_NUM": "2"}),
        ):
            assert answer(client, batch).code == ResponseCode.MESSAGE_ILLEGAL

    def test_a_reply_that_cannot_be_kept_is_answered(
        self, client: MemoryClient, asker: MemoryClient
    ) -> None:
        opaque = send(client, {**PROPERTIES, "x": "x" * 32_700})
        take(asker)
        assert answer(client, opaque).code == ResponseCode.MESSAGE_ILLEGAL

    def test_nor_one_whose_queue_cannot_be_read_is_left_without_an_answer(
        self, gateway: MemoryGateway
    ) -> None:
        with damaged_row(gateway, "ends", queue_prefix(TOPIC.encode(), 0), lambda _: b"short"):
            client, asker = gateway.connect(), gateway.connect()
            asker.heartbeat(ASKER, "", producers=["askers"])
            opaque = send(client)
            take(asker)
            refused = answer(client, opaque)
            assert refused.code == ResponseCode.SYSTEM_ERROR
            assert "cannot be read" in (refused.remark or "")


class TestKeeping:
    def test_a_reply_is_kept_in_its_topic(self, client: MemoryClient, asker: MemoryClient) -> None:
        for number in range(2):
            opaque = send(client)
            take(asker)
            ext = answer(client, opaque).ext()
            assert ext["queueOffset"] == str(number)
        messages = client.pull(TOPIC)
        assert bodies(messages) == ["pong", "pong"]
        assert messages[1].physical_offset == parse_offset_msg_id(ext["msgId"])[1]
        assert messages[1].born_ms == START_MS - 7
        assert "PUSH_REPLY_TIME" not in parse(messages[1].properties)

    def test_one_that_nobody_took_as_well(self, client: MemoryClient) -> None:
        ext = answer(client, send(client)).ext()
        (message,) = client.pull(TOPIC)
        assert message.body == b"pong"
        assert message.physical_offset == parse_offset_msg_id(ext["msgId"])[1]

    def test_it_can_be_left_out(self, make_gateway: MakeGateway) -> None:
        gateway = make_gateway(store_replies=False)
        client, asker = gateway.connect(), gateway.connect()
        asker.heartbeat(ASKER, "", producers=["askers"])
        opaque = send(client)
        take(asker)
        ext = answer(client, opaque).ext()
        assert (ext["msgId"], ext["queueId"], ext["queueOffset"]) == ("0", "0", "0")
        assert client.pull(TOPIC) == []

    def test_a_reply_is_on_disk_before_its_answer(
        self, gateway: MemoryGateway, client: MemoryClient, asker: MemoryClient
    ) -> None:
        opaque = send(client)
        take(asker)
        answer(client, opaque)
        gateway.crash()
        assert bodies(gateway.connect().pull(TOPIC)) == ["pong"]


def test_the_whole_way(gateway: MemoryGateway, client: MemoryClient, asker: MemoryClient) -> None:
    """A request is delivered as a message with all that a replier needs for its reply."""
    asker.send_message("questions", "ping", CORRELATION_ID="c1", REPLY_TO_CLIENT=ASKER, TTL="3000")
    (question,) = client.pull("questions")
    asked = parse(question.properties)
    assert f"{asked['CLUSTER']}_REPLY_TOPIC" == TOPIC
    route = client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC})
    assert route.code == ResponseCode.SUCCESS
    properties = {name: asked[name] for name in ("CORRELATION_ID", "REPLY_TO_CLIENT", "TTL")}
    opaque = send(client, properties)
    assert parse(take(asker).ext()["properties"])["CORRELATION_ID"] == "c1"
    assert answer(client, opaque).code == ResponseCode.SUCCESS


def test_a_reply_looks_at_no_other_producers(
    gateway: MemoryGateway, client: MemoryClient, asker: MemoryClient
) -> None:
    class Unwalked(dict[str, Any]):
        def values(self) -> Any:
            raise AssertionError("every group of producers is looked at")

    clients = gateway.service.broker.clients
    clients._producers = Unwalked(clients._producers)
    send(client)
    pushed(asker)


def test_a_client_is_found_as_long_as_it_is_in_any_group(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    asker = gateway.connect()
    asker.heartbeat(ASKER, "", producers=["askers", "others"])
    for group, is_left in (("askers", True), ("others", False)):
        leaving = {"clientID": ASKER, "producerGroup": group}
        assert asker.ask(RequestCode.UNREGISTER_CLIENT, leaving).code == ResponseCode.SUCCESS
        send(client)
        assert len(asker.requests()) == is_left
