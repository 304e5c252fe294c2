"""A worker's own HTTP port, as the leader uses it: the requests it gets, and possible responses."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.error import ConnectionDone
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.python.failure import Failure
from twisted.web.http import HTTPChannel

from gateway.settings.config import Config
from gateway.settings.values import HostPort
from gateway.web.doorkeeper import Doorkeeper
from gateway.web.relay import OpenDoor, Reply
from gateway.workers.vouching import vouched
from gateway.workers.worker_port import PATIENCE, WorkerPort

NOTHING: list[Reply | None] = []
GONE: Any = Failure(ConnectionDone())  # type: ignore[no-untyped-call]


class Asked:
    """A request to a worker, and what came of it."""

    def __init__(self, *, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        self.reactor: Any = MemoryReactorClock()  # type: ignore[no-untyped-call]
        self.worker = WorkerPort(self.reactor, tls=False)
        self.worker.address, self.worker.serves = HostPort("127.0.0.1", 9_878), True
        self.answers: list[Reply | None] = []
        self.worker.ask("POST", "/api/v1/x?a=b", headers or {}, body).addCallback(
            self.answers.append
        )
        self.host, self.port, factory, *_ = self.reactor.tcpClients[0]
        self.factory: Any = factory
        self.transport: Any = StringTransport()  # type: ignore[no-untyped-call]

    def connected(self) -> Any:
        """Accept the connection as the worker would, and return it."""
        protocol = self.factory.buildProtocol(None)
        protocol.makeConnection(self.transport)
        return protocol

    def told(self, *data: bytes) -> list[Reply | None]:
        """Return the responses after the worker has sent this and closed the connection."""
        protocol = self.connected()
        for piece in data:
            protocol.dataReceived(piece)
        assert self.answers == NOTHING
        protocol.connectionLost(GONE)
        return self.answers


def test_a_request_is_one_connection() -> None:
    asked = Asked(headers={"host": "localhost:9877", "authorization": "Bearer x"}, body=b"{}")
    asked.connected()
    assert (asked.host, asked.port) == ("127.0.0.1", 9_878)
    assert asked.transport.value().split(b"\r\n") == [
        b"POST /api/v1/x?a=b HTTP/1.1",
        b"host: localhost:9877",
        b"authorization: Bearer x",
        b"connection: close",
        b"content-length: 2",
        b"",
        b"{}",
    ]


def test_an_answer_comes_in_pieces() -> None:
    head = b"HTTP/1.1 409 Conflict\r\nContent-Length: 2\r\n\r\n"
    assert Asked().told(head[:20], head[20:], b"o", b"k") == [Reply(409, b"ok")]


@pytest.mark.parametrize(
    "data",
    [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok", b"HTTP/1.1 200"],
)
def test_what_is_no_whole_answer_is_none(data: bytes) -> None:
    assert Asked().told(data) == [None]


def test_nobody_is_there() -> None:
    asked = Asked()
    asked.factory.clientConnectionFailed(None, GONE)
    assert asked.answers == [None]


def test_one_that_says_nothing_is_not_waited_for() -> None:
    asked = Asked()
    protocol = asked.connected()
    asked.reactor.advance(PATIENCE - 1)
    assert asked.answers == NOTHING
    asked.reactor.advance(1)
    assert asked.answers == [None]
    protocol.dataReceived(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    protocol.connectionLost(GONE)
    assert asked.answers == [None]


@pytest.mark.parametrize("is_connected", [False, True])
def test_one_that_is_found_to_hang_is_not_waited_for(*, is_connected: bool) -> None:
    asked = Asked()
    protocol = asked.connected() if is_connected else None
    asked.worker.wait_no_more()
    assert asked.answers == [None]
    assert asked.reactor.connectors[0]._disconnected
    if protocol is not None:
        protocol.connectionLost(GONE)
    asked.worker.wait_no_more()
    asked.reactor.advance(PATIENCE)
    assert asked.answers == [None]


@pytest.mark.parametrize("address", [None, HostPort("127.0.0.1", 9_878)])
def test_one_that_does_not_serve_is_not_asked(address: HostPort | None) -> None:
    """Such a worker has not reported its address yet, or has gone, or hangs."""
    reactor: Any = MemoryReactorClock()  # type: ignore[no-untyped-call]
    answers: list[Reply | None] = []
    port = WorkerPort(reactor, tls=False)
    port.address = address
    port.ask("GET", "/", {}, b"").addCallback(answers.append)
    assert (answers, reactor.tcpClients) == ([None], [])


def test_a_header_stays_one_line() -> None:
    given = {"authorization": "Bearer x\r\nx-evil: y", "cookie": "secret", "host": " localhost "}
    asker: Any = OpenDoor(b"k", by_keys=False).admit("GET", given.get, "192.0.2.7")
    own = {"authorization": "Bearer x x-evil: y", "host": "localhost"}
    assert asker.headers == own | vouched("192.0.2.7", b"k")
    assert asker.host == "192.0.2.7"


@pytest.mark.parametrize("longer", [0, 1])
def test_what_is_longer_than_a_worker_reads_is_refused(longer: int) -> None:
    """The worker would close the connection, and its client would be told that it does not answer."""
    reactor: Any = MemoryReactorClock()  # type: ignore[no-untyped-call]
    answers: list[Reply | None] = []
    port = WorkerPort(reactor, tls=False)
    port.address, port.serves = HostPort("127.0.0.1", 9_878), True
    head = b"GET / HTTP/1.1\r\nauthorization: \r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
    text = "x" * (HTTPChannel.totalHeadersSize - len(head) + longer)
    port.ask("GET", "/", {"authorization": text}, b"").addCallback(answers.append)
    assert len(reactor.tcpClients) == 1 - longer
    assert [answer.status for answer in answers if answer is not None] == [431] * longer


@pytest.mark.parametrize(
    ("key", "host"), [(b"k", "192.0.2.7"), (b"another", "127.0.0.1"), (None, "127.0.0.1")]
)
def test_what_the_leader_passes_on_comes_from_its_sender(key: bytes | None, host: str) -> None:
    """The audit log, and the born host of a message, have that address."""
    users: Any = None
    doorkeeper = Doorkeeper(Config(http=HostPort("127.0.0.1", 9_877)), users, None, key)
    headers = {"host": "localhost"} | vouched("192.0.2.7", b"k")
    assert doorkeeper.admit("GET", headers.get, "127.0.0.1").host == host


@pytest.mark.parametrize("lacking", list(vouched("192.0.2.7", b"k")))
def test_an_address_or_a_proof_alone_tells_nothing(lacking: str) -> None:
    """Anybody may send one of these headers."""
    users: Any = None
    doorkeeper = Doorkeeper(Config(http=HostPort("127.0.0.1", 9_877)), users, None, b"k")
    headers = {"host": "localhost"} | vouched("192.0.2.7", b"k")
    del headers[lacking]
    assert doorkeeper.admit("GET", headers.get, "127.0.0.1").host == "127.0.0.1"
