"""Overload: each limit refuses in terms that clients understand, and a client that does not read harms nobody else."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from collections.abc import Callable

import pytest

from gateway import parked
from gateway.connections.connection import RemotingConnection
from gateway.wire.codes import CommandFlag, RequestCode, ResponseCode
from gateway.wire.commands import Command, encode_command
from gateway.wire.fields import to_ext
from gateway.wire.messages import decode_messages
from storage import store
from tests.gateway.conftest import MakeGateway
from tests.gateway.memory import MemoryClient, MemoryGateway, bodies
from tests.gateway.popping import pop_fields
from tests.gateway.replies import reply_fields
from tests.gateway.tls import TlsClient, careless
from tests.gateway.tools import create_topic, ok

MIB = 1 << 20


class TestWaitingRequests:
    @pytest.fixture
    def gateway(self, make_gateway: MakeGateway) -> MemoryGateway:
        return make_gateway(max_waiting_requests=2)

    def test_pulls_are_refused(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        client.send_message()
        first = client.park(offset=1)
        gateway.connect().park(offset=1)
        refused = gateway.connect().ask_pull(offset=1, wait_ms=15_000)
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert refused.remark == (
            "[OVERLOAD]system busy, start flow control for a while: max_waiting_requests = 2 is reached"
        )
        # A request that need not wait gets its response as usual, and so do those that wait.
        assert len(gateway.connect().pull()) == 1
        client.send_message(body="new")
        answer = client.answer(first)
        assert answer is not None
        assert answer.code == ResponseCode.SUCCESS

    @pytest.mark.parametrize(
        "leave",
        [
            lambda gateway, waiting: gateway.connect().send_message(),
            lambda gateway, waiting: gateway.advance(16_000),
            lambda gateway, waiting: (waiting.disconnect(), gateway.advance(1_000)),
        ],
        ids=["a message comes", "their time is over", "their client leaves"],
    )
    def test_there_is_room_again(
        self,
        gateway: MemoryGateway,
        client: MemoryClient,
        leave: Callable[[MemoryGateway, MemoryClient], object],
    ) -> None:
        client.send_message()
        waiting = gateway.connect()
        for _ in range(2):
            waiting.park(offset=1)
        assert len(gateway.service.broker.parked) == 2
        leave(gateway, waiting)
        assert len(gateway.service.broker.parked) == 0
        client.send_message("others")
        client.park("others", offset=1)

    def test_pops_are_told_that_it_is_full(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        client.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "consumers"})
        client.send_message("empty", fields={"topic_queues": 4})
        gateway.connect().park("empty", offset=1)
        where = pop_fields(gateway, topic="empty", queueId=1, pollTime=15_000)
        answer = client.ask(RequestCode.POP_MESSAGE, where)
        assert answer.code == ResponseCode.POLLING_FULL

    def test_one_connection_leaves_room_for_others(
        self, make_gateway: MakeGateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ten pops of a topic with 10,000 queues left nobody else room for a long poll."""
        monkeypatch.setattr(parked, "UNSHARED", 10)
        gateway = make_gateway(max_waiting_requests=100)
        clumsy, other = gateway.connect(), gateway.connect()
        ok(create_topic(clumsy, "wide", 16))
        ok(clumsy.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "consumers"}))

        def pops(client: MemoryClient) -> int:
            """Send pops that count 17 each until one is refused. Return how many wait."""
            wide = pop_fields(gateway, topic="wide", queueId=-1, pollTime=15_000)
            opaques = [client.send(RequestCode.POP_MESSAGE, wide) for _ in range(6)]
            full = [client.answer(one) for one in opaques]
            assert {one.code for one in full if one is not None} == {ResponseCode.POLLING_FULL}
            return full.count(None)

        lot = gateway.service.broker.parked
        assert pops(clumsy) == 4
        for _ in range(12):
            clumsy.park("wide")
        refused = clumsy.ask_pull("wide", wait_ms=15_000)
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert refused.remark is not None
        assert "one connection's share of max_waiting_requests = 80" in refused.remark
        for _ in range(16):
            other.park("wide")
        assert other.ask_pull("wide", wait_ms=15_000).code == ResponseCode.SYSTEM_BUSY
        gateway.connect().park("wide")
        # There is as much room as before once its pops are over.
        gateway.advance(16_000)
        assert len(lot) == 0
        assert pops(clumsy) == 4
        clumsy.disconnect()
        gateway.advance(2_000)
        assert len(lot) == 0
        assert pops(other) == 4

    def test_those_with_long_filters_count_more(self, make_gateway: MakeGateway) -> None:
        """Each kept a filter of up to 65,536 characters, 1 MB: 100,000 of them more than a machine has."""
        gateway = make_gateway(max_waiting_requests=13)
        lot, client = gateway.service.broker.parked, gateway.connect()
        client.send_message("orders", fields={"queue": 3})
        long = "t" * 1_000
        client.park(tags=long)
        assert client.ask_pull(tags=long, wait_ms=15_000).code == ResponseCode.SYSTEM_BUSY
        where = pop_fields(gateway, queueId=0, pollTime=15_000, exp=long)
        assert client.ask(RequestCode.POP_MESSAGE, where).code == ResponseCode.POLLING_FULL
        assert len(lot) == 1
        client.park()
        # A heartbeat has brought the expression of a group: its pulls share it.
        client.heartbeat("c1", "consumers", {"orders": long})
        assert client.ask_pull(tags=f"{long}s", wait_ms=15_000).code == ResponseCode.SYSTEM_BUSY
        client.park(tags=long)
        client.disconnect()
        gateway.advance(2_000)
        peer = client.protocol
        assert (len(lot), lot.has_room(13, peer), lot.has_room(14, peer)) == (
            0,
            True,
            False,
        )

    @pytest.mark.parametrize(
        "code", [RequestCode.PULL_MESSAGE, RequestCode.POP_MESSAGE, RequestCode.NOTIFICATION]
    )
    def test_their_bodies_and_what_nobody_reads_of_their_headers_are_not_kept(
        self, make_gateway: MakeGateway, code: int
    ) -> None:
        gateway = make_gateway()
        client = gateway.connect()
        client.send_message("orders", fields={"queue": 3})
        client.heartbeat("c1", "consumers", {"orders": "*"})
        fields = (
            client.pull_request(wait_ms=15_000, tags=None)
            if code == RequestCode.PULL_MESSAGE
            else pop_fields(gateway, queueId=0, pollTime=15_000, exp=None)
        )
        unread = ("more", "expressionType", "expType", "liteTopic", "proxyFrowardClientId")
        fields |= dict.fromkeys(unread, "x" * 150_000)
        client.ask(code, fields | {"pollTime": "0", "suspendTimeoutMillis": "0"})
        tracemalloc.start()
        for _ in range(20):
            client.send(code, fields, bytes(500_000))
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(gateway.service.broker.parked) >= 20
        assert kept < 2 * MIB

    @pytest.mark.parametrize(
        "code",
        [
            RequestCode.SEND_REPLY_MESSAGE,
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        ],
    )
    def test_nor_is_what_another_client_does_not_get_while_its_answer_is_waited_for(
        self, make_gateway: MakeGateway, code: int
    ) -> None:
        gateway = make_gateway()
        client, other = gateway.connect(), gateway.connect()
        message_id = client.send_message("orders").ext()["msgId"]
        other.heartbeat("other", "consumers", producers=["askers"])
        if code == RequestCode.SEND_REPLY_MESSAGE:
            properties = {"REPLY_TO_CLIENT": "other"}
            fields = {**to_ext(reply_fields(properties)), "more": "x" * 500_000}
            body = b"pong"
        else:
            fields = {"consumerGroup": "consumers", "group": "consumers", "topic": "orders"}
            fields |= {"clientId": "other", "msgId": message_id}
            body = bytes(500_000)
        tracemalloc.start()
        for _ in range(20):
            client.send(code, fields, body)
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(other.requests()) == 20
        assert kept < 2 * MIB

    def test_can_be_changed_while_serving(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        client.send_message()
        changed = client.ask(
            RequestCode.UPDATE_BROKER_CONFIG, None, b"maxPopPollingSize=3\nmax_unsent_bytes=2MiB\n"
        )
        assert changed.code == ResponseCode.SUCCESS
        for _ in range(3):
            client.park(offset=1)
        assert client.ask_pull(offset=1, wait_ms=15_000).code == ResponseCode.SYSTEM_BUSY


class TestAskedClients:
    def ask(self, client: MemoryClient) -> int:
        fields = {"consumerGroup": "consumers", "clientId": "worker", "jstackEnable": "false"}
        return client.send(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)

    def test_tools_are_refused(self, make_gateway: MakeGateway) -> None:
        gateway = make_gateway(max_asked_clients=1)
        client, worker = gateway.connect(), gateway.connect()
        client.send_message()
        worker.heartbeat("worker")
        worker.take()
        waiting = self.ask(client)
        assert client.answer(waiting) is None
        refused = client.answer(self.ask(client))
        assert refused is not None
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert len(worker.requests()) == 1
        # The first request has timed out, so another one is accepted.
        gateway.advance(60_000)
        assert client.answer(waiting) is not None
        assert client.answer(self.ask(client)) is None


class TestManyRequestsAtOnce:
    """Each request takes 4 ms here."""

    @pytest.fixture
    def gateway(self, make_gateway: MakeGateway) -> MemoryGateway:
        gateway = make_gateway()
        factory = gateway.service.factory
        handle = factory.on_command

        def handle_slowly(command: Command, peer: RemotingConnection) -> None:
            gateway.reactor.rightNow += 0.004
            handle(command, peer)

        factory.on_command = handle_slowly
        return gateway

    @pytest.mark.parametrize("uses_tls", [False, True], ids=["plain", "TLS"])
    def test_hold_up_nobody_for_long(self, gateway: MemoryGateway, *, uses_tls: bool) -> None:
        client = TlsClient(gateway, careless()) if uses_tls else gateway.connect()
        frame = encode_command(RequestCode.GET_ALL_TOPIC_CONFIG, 1, flag=CommandFlag.ONEWAY)
        data = client.records([frame] * 100) if isinstance(client, TlsClient) else frame * 100
        began = gateway.reactor.seconds()
        client.protocol.dataReceived(data)
        assert 0 < gateway.reactor.seconds() - began < 0.02
        assert client.transport.producerState == "paused"
        assert gateway.reactor.turn()
        assert gateway.reactor.seconds() - began < 0.04
        # All are handled in the end, and the connection is read from again.
        assert client.ask(RequestCode.GET_ALL_TOPIC_CONFIG).code == ResponseCode.SUCCESS
        assert gateway.reactor.seconds() - began > 100 * 0.004
        assert client.transport.producerState == "producing"

    def test_are_carried_out_though_the_client_has_left(self, gateway: MemoryGateway) -> None:
        client, other = gateway.connect(), gateway.connect()
        fields = client.send_fields(queue=1)
        send = encode_command(
            RequestCode.SEND_MESSAGE_V2, 1, flag=CommandFlag.ONEWAY, ext=fields, body=b"hello"
        )
        producer = b'{"clientID": "c1", "producerDataSet": [{"groupName": "producers"}]}'
        heartbeat = encode_command(RequestCode.HEART_BEAT, 2, body=producer)
        client.protocol.dataReceived(send * 20 + heartbeat)
        client.disconnect()
        gateway.settle()
        assert len(other.pull(queue=1)) == 20
        # The end of the connection comes after them: nobody is left who is not there.
        listed = other.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "producers"})
        assert listed.code == ResponseCode.SYSTEM_ERROR
        assert client.protocol not in gateway.service.factory.connections

    def test_a_malformed_one_after_them_closes_the_connection(self, gateway: MemoryGateway) -> None:
        client = gateway.connect()
        client.raw(encode_command(RequestCode.GET_ALL_TOPIC_CONFIG, 1) * 50 + b"\0\0\0\0")
        assert len(client.take()) == 50
        assert client.closed


def test_queues_that_were_only_asked_about_leave_the_memory(
    gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that asked about 500 topics of 10,000 queues took 1.9 GB for good."""
    monkeypatch.setattr(store, "MANY_UNUSED", 50)
    ok(create_topic(client, "wide", 100))
    client.send_message("wide", "old", fields={"queue": 6})
    waiting = [client.park("wide", 7), client.park("wide", 6, offset=1)]
    opened = {7, 6}
    for _ in range(2):
        ok(client.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "wide"}))
        assert len(list(gateway.store.open_queues(b"wide"))) == 100
        client.park("wide", 8)
        opened.add(8)
        gateway.advance(1_100)
        assert {queue.number for queue in gateway.store.open_queues(b"wide")} == opened
    for number, opaque in zip((7, 6), waiting, strict=True):
        gateway.connect().send_message("wide", "new", fields={"queue": number})
        answer = client.answer(opaque)
        assert answer is not None
        assert bodies(decode_messages(answer.body)) == ["new"]
    client.send_message("wide", "first", fields={"queue": 9})
    assert bodies(client.pull("wide", 9)) == ["first"]


class TestUnread:
    """A client that asks for much and reads nothing."""

    @pytest.fixture
    def gateway(self, make_gateway: MakeGateway) -> MemoryGateway:
        gateway = make_gateway(max_unsent_bytes=MIB)
        gateway.connect().send_message(body=bytes(200_000))
        return gateway

    def greedy(self, gateway: MemoryGateway) -> MemoryClient:
        """A client that has sent 50 pulls at once. Their responses would have 10 MB."""
        client = gateway.connect()
        client.stop_reading()
        for _ in range(50):
            client.send(RequestCode.PULL_MESSAGE, client.pull_request())
        gateway.settle()
        return client

    def test_is_answered_as_it_reads(self, gateway: MemoryGateway) -> None:
        client = self.greedy(gateway)
        assert client.transport.unread < 2 * 210_000
        answers: list[Command] = []
        while arrived := client.take():
            answers += arrived
            assert len(arrived) <= 2
        assert [one.code for one in answers] == [ResponseCode.SUCCESS] * 50
        assert sorted(one.opaque for one in answers) == [one.opaque for one in answers]

    def test_harms_nobody(self, gateway: MemoryGateway) -> None:
        for _ in range(10):
            self.greedy(gateway)
        client = gateway.connect()
        client.send_message("others", "hello")
        assert bodies(client.pull("others")) == ["hello"]

    def test_is_closed_when_too_much_waits_for_it(self, gateway: MemoryGateway) -> None:
        slow, quick = gateway.connect(), gateway.connect()
        for _ in range(20):
            slow.park(offset=1)
        waiting = quick.park(offset=1)
        slow.stop_reading()
        gateway.connect().send_message(body=bytes(200_000))
        gateway.settle()
        assert slow.closed
        assert slow.transport.unread < MIB + 3 * 210_000
        answer = quick.answer(waiting)
        assert answer is not None
        assert len(answer.body) > 200_000

    def test_gets_a_message_that_is_larger_than_what_may_wait(self, gateway: MemoryGateway) -> None:
        """It would pull it again and again."""
        gateway.connect().send_message("large", body=bytes(3 * MIB))
        client = gateway.connect()
        client.stop_reading()
        client.send(RequestCode.PULL_MESSAGE, client.pull_request("large"))
        assert not client.closed
        [answer] = client.take()
        assert len(answer.body) > 3 * MIB

    @pytest.mark.parametrize("uses_tls", [False, True], ids=["plain", "TLS"])
    @pytest.mark.parametrize("is_closed_here", [False, True], ids=["left", "closed"])
    def test_nothing_of_it_is_left_once_its_client_is_gone(
        self, gateway: MemoryGateway, uses_tls: bool, is_closed_here: bool
    ) -> None:
        """Python would look for cycles of objects later, perhaps much later."""
        client = TlsClient(gateway, careless()) if uses_tls else gateway.connect()
        client.stop_reading()
        client.send(RequestCode.PULL_MESSAGE, client.pull_request())
        gateway.settle()
        transport = weakref.ref(client.transport)
        gc.collect()
        gc.disable()
        try:
            if is_closed_here:
                client.protocol.abort()
                gateway.settle()
            else:
                client.disconnect()
            del client
            assert transport() is None
        finally:
            gc.enable()

    def test_those_for_whom_most_waits_are_closed_when_too_much_waits_for_all(
        self, gateway: MemoryGateway
    ) -> None:
        def slow(topic: str) -> MemoryClient:
            client = gateway.connect()
            client.stop_reading()
            client.send(RequestCode.PULL_MESSAGE, client.pull_request(topic))
            gateway.settle()
            return client

        gateway.connect().send_message("others", body=bytes(100_000))
        modest = slow("others")
        assert modest.transport.unread > 100_000
        for _ in range(2):
            clients = [slow("orders") for _ in range(60)]
            kept = [client for client in clients if not client.closed]
            assert 30 < len(kept) < 60
            assert sum(client.transport.unread for client in kept) < 8 * MIB
            assert not modest.closed
            # There is room for others once these have read it, or have left.
            for number, client in enumerate(kept):
                if number % 2:
                    assert len(client.take()) == 1
                else:
                    client.disconnect()
        assert len(modest.take()) == 1
