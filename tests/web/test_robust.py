"""The API answers whatever arrives, and its responses are as its document says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from twisted.internet.error import ConnectionDone
from twisted.logger import capturedLogs
from twisted.python.failure import Failure

from gateway.settings.loading import changed
from gateway.settings.values import parse_host_port
from gateway.web.endpoints import PLACEHOLDER, Endpoint
from tests.gateway.memory import MemoryGateway
from tests.scratch import scratch_folder
from tests.web.http import API, HTTP_PORT, HttpClient, api_endpoints

WORDS = st.one_of(
    st.sampled_from(
        ["orders", "now", "+1h", "-5m", "0", "7", "any", "a", "2m", "* * * * *", "UTC"]
    ),
    st.integers(-5, 1 << 70).map(str),
    st.text(max_size=12),
)
VALUES = st.recursive(
    st.one_of(WORDS, st.integers(-5, 1 << 70), st.booleans(), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(WORDS, inner, max_size=2)),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def served() -> Iterator[MemoryGateway]:
    """A gateway with a few pending messages."""
    with scratch_folder() as folder:
        gateway = MemoryGateway(folder / "data", http=parse_host_port(HTTP_PORT))
        for key in ("a", "7"):
            gateway.connect().send_message("orders", KEYS=key, TIMER_DELAY_SEC="3600")
        yield gateway
        gateway.close()


def fields_of(kind: type | None) -> list[str]:
    """Return the names of a request's fields in JSON."""
    return list(getattr(kind, "__struct_encode_fields__", ()))


@given(data=st.data())
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
def test_no_request_is_an_internal_error(served: MemoryGateway, data: st.DataObject) -> None:
    endpoint: Endpoint = data.draw(st.sampled_from(api_endpoints(served)))
    in_path = PLACEHOLDER.findall(endpoint.path)
    path = PLACEHOLDER.sub(lambda _: quote(data.draw(WORDS) or "x", safe=""), endpoint.path)
    names = [name for name in fields_of(endpoint.query) if name not in in_path]
    query = {name: data.draw(WORDS) for name in names if data.draw(st.booleans())}
    body = {
        name: data.draw(VALUES) for name in fields_of(endpoint.body) if data.draw(st.booleans())
    }
    answer = HttpClient(served).ask(
        endpoint.method, f"{API}{path}?{urlencode(query, errors='surrogatepass')}", body
    )
    assert answer.status in (200, 400, 403, 404, 409), answer
    assert isinstance(json.loads(answer.body), dict)


def test_answers_are_what_the_document_says(served: MemoryGateway) -> None:
    http = HttpClient(served)
    document = http.get("/openapi.json")
    (message, *_) = http.get("/messages")["messages"]
    paths = {
        "/messages/{id}": f"/messages/{message['offsetMsgId']}",
        "/bulk/{id}": None,
        "/recurring/{topic}/{name}": None,
        "/recurring-times": "/recurring-times?every=2m",
    }
    for path, ways in document["paths"].items():
        real = paths.get(path, path)
        if "get" in ways and real is not None:
            schema = ways["get"]["responses"]["200"]["content"]["application/json"]["schema"]
            # References in the schema are to the document, so both are merged for the check.
            Draft202012Validator({**document, **schema}).validate(http.get(real))


def test_a_length_of_thousands_of_digits_is_refused(served: MemoryGateway) -> None:
    length = {"Content-Length": "9" * 5_000}
    assert HttpClient(served).ask("POST", f"{API}/messages", headers=length).status == 400


@pytest.mark.parametrize("size", [100, 70_000], ids=["in-pieces", "at-once"])
@pytest.mark.parametrize("line", ["GET /health?{} HTTP/1.1", "GET /health HTTP/1.1\r\nX: {}"])
def test_too_long_a_line_is_told_of(served: MemoryGateway, line: str, size: int) -> None:
    transport = HttpClient(served).connect()
    request = (line.format("x" * 69_000) + "\r\n\r\n").encode()
    for place in range(0, len(request), size):
        transport.protocol.dataReceived(request[place : place + size])
    served.settle()
    assert transport.value() == b"HTTP/1.1 431 Request Header Fields Too Large\r\n\r\n"
    assert not transport.connected


@pytest.mark.parametrize("path", ["/health", "/console/style.css", "/metrics", f"{API}/topics"])
@pytest.mark.parametrize("pieces", [1, 1_000], ids=["at-once", "in-pieces-as-by-TLS"])
def test_who_does_not_wait_for_an_answer_gets_no_more_than_one(
    served: MemoryGateway, path: str, pieces: int
) -> None:
    transport = HttpClient(served).connect()
    request = f"GET {path} HTTP/1.1\r\nHost: {HTTP_PORT}\r\n\r\n".encode()
    for _ in range(pieces):
        transport.protocol.dataReceived(request * (1_000 // pieces))
    served.settle()
    assert transport.value().count(b"HTTP/1.1 ") == 1
    assert not transport.connected


def test_who_reads_no_answers_is_not_read_until_he_does(served: MemoryGateway) -> None:
    transport = HttpClient(served).connect()
    transport.reads = False
    asked = 0
    while transport.producerState == "producing" and asked < 1_000:
        transport.protocol.dataReceived(b"GET /console/style.css HTTP/1.1\r\n\r\n")
        served.settle()
        asked += 1
    assert transport.unread < 2 * transport.BUFFER
    assert transport.value().count(b"HTTP/1.1 200 ") == asked
    transport.clear()
    transport.reads = True
    transport.drained()
    assert transport.producerState == "producing"
    transport.protocol.dataReceived(b"GET /health HTTP/1.1\r\n\r\n")
    served.settle()
    assert transport.value().count(b"HTTP/1.1 200 ") == 1


def test_nothing_is_left_of_who_leaves_in_the_turn_of_the_answer(served: MemoryGateway) -> None:
    transport = HttpClient(served).connect()
    with capturedLogs() as events:
        transport.protocol.dataReceived(b"GET /health HTTP/1.1\r\n\r\n")
        transport.lost(Failure(ConnectionDone()))  # type: ignore[no-untyped-call]
        served.advance(100_000)
    peer = str(transport.getPeer())
    assert not [one for one in events if one.get("peer") == peer]


def test_who_waits_for_each_answer_keeps_the_connection(served: MemoryGateway) -> None:
    transport = HttpClient(served).connect()
    for number in range(1, 4):
        transport.protocol.dataReceived(b"GET /health HTTP/1.1\r\n\r\n")
        served.settle()
        assert transport.value().count(b"HTTP/1.1 200 ") == number
    assert transport.connected


@pytest.mark.parametrize("head", ["HTTP/1.0", "HTTP/1.1\r\nConnection: close", "HTTP/1.1"])
def test_who_does_not_read_the_answer_is_disconnected(served: MemoryGateway, head: str) -> None:
    transport = HttpClient(served).connect()
    transport.reads = False
    transport.protocol.dataReceived(f"GET /health {head}\r\n\r\n".encode())
    served.advance(50_000)
    assert transport.connected
    served.advance(60_000)
    assert not transport.connected


@pytest.mark.parametrize(
    "begin",
    [
        b"",
        b"GET /health HTTP/1.1\r\nX-Slow: ",
        b"POST /api/v1/messages HTTP/1.1\r\nContent-Length: 100000\r\n\r\n",
        b"POST /health HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n186a0\r\n",
    ],
    ids=["first line", "headers", "body", "chunk"],
)
def test_who_sends_a_request_byte_by_byte_is_disconnected(
    served: MemoryGateway, begin: bytes
) -> None:
    transport = HttpClient(served).connect()
    # The time begins with the request.
    served.advance(40_000)
    transport.protocol.dataReceived(begin + b"a")
    for _ in range(5):
        served.advance(10_000)
        transport.protocol.dataReceived(b"a")
    assert not transport.disconnecting
    served.advance(10_000)
    assert transport.disconnecting


def test_each_request_of_a_connection_has_its_own_time(served: MemoryGateway) -> None:
    transport = HttpClient(served).connect()
    for number in range(1, 5):
        transport.protocol.dataReceived(b"GET /health HTTP/1.1\r\nX-Slow: ")
        served.advance(50_000)
        transport.protocol.dataReceived(b"a\r\n\r\n")
        served.settle()
        assert transport.value().count(b"HTTP/1.1 200 ") == number
        served.advance(50_000)
    assert transport.connected


def test_a_connection_above_the_limit_takes_the_place_of_one_that_waits_for_a_request(
    served: MemoryGateway,
) -> None:
    client = HttpClient(served)
    _, factory, *_ = served.reactor.tcpServers[-1]
    served.advance(100_000)
    assert not factory.protocols
    broker = served.service.broker
    broker.reconfigure(changed(broker.config, {"max_http_connections": 3}))
    unread, answered, slow = (client.connect() for _ in range(3))
    unread.reads = False
    while unread.producerState == "producing":
        unread.protocol.dataReceived(b"GET /console/style.css HTTP/1.1\r\n\r\n")
        served.settle()
    with capturedLogs() as events:
        # The metrics take several turns.
        answered.protocol.dataReceived(b"GET /metrics HTTP/1.1\r\n\r\n")
        slow.protocol.dataReceived(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
        new = client.connect()
        assert slow.disconnecting
        new.protocol.dataReceived(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert factory.buildProtocol(None) is None
        served.settle()
    assert [b"HTTP/1.1 200 " in one.value() for one in (answered, new)] == [True, True]
    assert [one.connected for one in (unread, answered, slow, new)] == [True, True, False, True]
    assert client.get("/topics")
    assert [event["limit"] for event in events if "limit" in event] == [3]
    broker.reconfigure(changed(broker.config, {"max_http_connections": 200}))
