"""How a worker finds out about a topic's queues at the other workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from twisted.internet.error import ConnectError
from twisted.python.failure import Failure

from gateway.connections.outgoing import Outgoing
from gateway.settings.config import Config
from gateway.settings.values import HostPort
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import decode_command, encode_response
from gateway.wire.frames import FrameBuffer
from gateway.wire.signatures import ACCESS_KEY, is_signed
from gateway.workers.siblings import PATIENCE, ROUTE_SECONDS, WORKERS, SharedAddress, Siblings
from tests.gateway.memory import MemoryTransport, TurnReactor

KEY = "k" * 32
Queues = list[tuple[str, int]] | None


class Worker:
    """One of several workers; the test plays their leader."""

    def __init__(self, data: Path) -> None:
        self.reactor: Any = TurnReactor()  # type: ignore[no-untyped-call]
        config = Config(data=data, listen=HostPort("127.0.0.1", 9886))
        shared = SharedAddress(HostPort("127.0.0.1", 9876), KEY, 2)
        self.siblings = Siblings(config, self.reactor, Outgoing(self.reactor), shared)
        self.leader: Any = None

    def look(self) -> list[Queues]:
        """Look for a topic's queues. They are in the list once the worker knows them."""
        found: list[Queues] = []
        self.siblings.readable_queues(
            "orders",
            lambda queues: found.append(
                None if queues is None else [(one.broker_name, one.queue_id) for one in queues]
            ),
        )
        self.turns()
        return found

    def connect(self) -> None:
        """Have the leader accept the connection."""
        _, _, factory, *_ = self.reactor.tcpClients.pop()
        self.leader = factory.buildProtocol(None)
        transport = MemoryTransport(self.reactor, "127.0.0.1")
        transport.protocol = self.leader
        self.leader.makeConnection(transport)
        self.turns()

    def refuse(self) -> None:
        """Have no leader there to connect to."""
        _, _, factory, *_ = self.reactor.tcpClients.pop()
        factory.clientConnectionFailed(None, Failure(ConnectError()))  # type: ignore[no-untyped-call]
        self.turns()

    def answer(self, *places: tuple[str, int, int], code: int = ResponseCode.SUCCESS) -> None:
        """Have the leader answer the request, with brokers, permissions and numbers of queues."""
        (frame,) = FrameBuffer().feed(self.leader.transport.value())
        self.leader.transport.clear()
        asked = decode_command(frame)
        assert asked.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
        ext = asked.ext()
        assert (ext["topic"], ext[ACCESS_KEY]) == ("orders", WORKERS)
        assert is_signed(ext, b"", asked.version, KEY.encode())
        route = [
            {"brokerName": broker, "perm": perm, "readQueueNums": count, "writeQueueNums": 9}
            for broker, perm, count in places
        ]
        body = msgspec.json.encode({"brokerDatas": [], "queueDatas": route})
        self.leader.dataReceived(encode_response(asked.opaque, code, body=body))
        self.turns()

    def turns(self) -> None:
        """Run all of the reactor's turns."""
        while self.reactor.turn():
            pass


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    return Worker(tmp_path)


OF_BOTH: Queues = [("a-0", 0), ("a-0", 1), ("a-1", 0)]


def test_the_queues_of_all_that_can_be_read(worker: Worker) -> None:
    found = worker.look()
    worker.connect()
    assert found == []
    worker.answer(("a-1", 4, 1), ("a-2", 2, 5), ("a-0", 6, 2))
    assert found == [OF_BOTH]


def test_what_was_told_counts_for_some_seconds(worker: Worker) -> None:
    worker.look()
    worker.connect()
    worker.answer(("a-0", 6, 2), ("a-1", 6, 1))
    worker.reactor.advance(ROUTE_SECONDS - 0.1)
    assert worker.look() == [OF_BOTH]
    worker.reactor.advance(0.1)
    found = worker.look()
    worker.answer(("a-0", 6, 1))
    assert found == [[("a-0", 0)]]


def test_it_counts_on_while_the_leader_does_not_answer(worker: Worker) -> None:
    found = worker.look()
    worker.refuse()
    assert found == [None]
    worker.look()
    worker.connect()
    worker.answer(("a-0", 6, 2), ("a-1", 6, 1))
    worker.reactor.advance(ROUTE_SECONDS)
    found = worker.look()
    worker.reactor.advance(PATIENCE)
    assert found == [OF_BOTH]


def test_a_topic_that_is_nowhere_has_none(worker: Worker) -> None:
    worker.look()
    worker.connect()
    worker.answer(("a-0", 6, 2))
    worker.reactor.advance(ROUTE_SECONDS)
    found = worker.look()
    worker.answer(code=ResponseCode.TOPIC_NOT_EXIST)
    assert found == [None]
    found = worker.look()
    worker.reactor.advance(PATIENCE)
    assert found == [None]


def test_what_is_asked_while_no_connection_is_open_shares_the_one_that_is_opened(
    worker: Worker,
) -> None:
    first, second = worker.look(), worker.look()
    assert len(worker.reactor.tcpClients) == 1
    worker.refuse()
    assert (first, second) == ([None], [None])
    worker.look()
    worker.look()
    assert len(worker.reactor.tcpClients) == 1
    worker.connect()
    assert len(FrameBuffer().feed(worker.leader.transport.value())) == 2
    worker.look()
    assert not worker.reactor.tcpClients
