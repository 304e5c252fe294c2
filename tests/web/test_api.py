"""The API as a whole: its table, its document, and its responses to invalid requests."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.error import ConnectionLost
from twisted.python.failure import Failure

from gateway.clock import Clock
from gateway.web import site
from gateway.web.endpoints import ApiError
from gateway.web.fields import read_moment
from gateway.web.site import MAX_BODY
from tests.gateway.memory import START_MS, MemoryGateway
from tests.web.http import API, HTTP_PORT, HttpClient, api_endpoints


def references(document: Any) -> set[str]:
    """Return the references in a JSON document."""
    return set(re.findall(r'"\$ref": "([^"]+)"', json.dumps(document)))


def test_the_document_has_every_request(gateway: MemoryGateway, http: HttpClient) -> None:
    document = http.get("/openapi.json")
    described = {
        (method.upper(), path) for path, ways in document["paths"].items() for method in ways
    }
    table = {(one.method, one.path) for one in api_endpoints(gateway)}
    assert described == table - {("GET", "/openapi.json")}
    assert document["openapi"] == "3.1.0"
    for ways in document["paths"].values():
        for operation in ways.values():
            assert operation["summary"]
            for parameter in operation["parameters"]:
                assert parameter["description"], (operation["operationId"], parameter["name"])


def test_the_document_tells_of_refused_bodies_where_there_is_a_body(http: HttpClient) -> None:
    for ways in http.get("/openapi.json")["paths"].values():
        for method, operation in ways.items():
            told = {"413", "415"} & operation["responses"].keys()
            assert len(told) == (2 if method in ("post", "put") else 0), operation["operationId"]


@pytest.mark.parametrize(
    ("path", "body", "detail"),
    [
        ("/messages", b"{", "the body is not JSON: Input data was truncated"),
        ("/messages", b"{}", "missing required field `topic`"),
        (
            "/messages",
            b'{"topic": "t", "body": "x", "tag": "a"}',
            "unknown field `tag`; there are topic, body, encoding, at, tags, keys, properties, queue",
        ),
        (
            "/bulk/preview",
            b'{"action": "abort", "selection": {"from": "now"}}',
            "selection: unknown field `from`; there are topic, key, tag, begin, end",
        ),
        (
            "/bulk/preview",
            b'{"action": "abort", "selection": {}, "to": {"by": "1m"}}',
            "to: unknown field `by`; there are at, shift",
        ),
        ("/messages", b'{"topic": 5}', "topic: Expected `str`, got `int`"),
        ("/bulk/preview", b'{"action": "x"}', "action: Invalid enum value 'x'"),
        (
            "/messages/xyz/abort",
            b"{}",
            "id: Expected an offset id, 32 hexadecimal digits",
        ),
    ],
)
def test_what_is_wrong_is_named(http: HttpClient, path: str, body: bytes, detail: str) -> None:
    answer = http.ask("POST", f"{API}{path}", data=body)
    assert (answer.status, answer.json["detail"]) == (400, detail)


def test_the_document_refers_to_what_it_has(http: HttpClient) -> None:
    document = http.get("/openapi.json")
    for reference in references(document):
        place = document
        for name in reference.removeprefix("#/").split("/"):
            place = place[name]


def test_names_of_operations_are_their_own(gateway: MemoryGateway) -> None:
    names = [one.name for one in api_endpoints(gateway)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/", 404),
        ("GET", "/messages/", 404),
        ("GET", "/messages/a/b/c", 404),
        ("GET", "/%FF", 404),
        ("DELETE", "/messages", 405),
        ("GET", "/bulk/preview", 400),
        ("BREW", "/messages", 405),
        ("GET", "/messages?limit=0", 400),
        ("GET", "/messages?limit=x", 400),
        ("GET", "/messages?topik=orders", 400),
        ("GET", "/messages?key=%FF", 400),
        ("GET", "/messages?cursor=zz", 400),
        ("GET", "/messages?state=odd", 400),
        ("GET", "/messages?state=unknown+field", 400),
        ("GET", "/messages?odd%60+-+at+%60%24.none=1", 400),
        ("GET", "/messages?odd%60+-+at+%60%24.topic=1", 400),
        ("GET", "/messages?begin=soon", 400),
        ("GET", "/status?more=1", 400),
        ("GET", "/bulk/7", 404),
        ("GET", "/timeline?columns=1001", 400),
    ],
)
def test_requests_that_are_none(method: str, path: str, status: int, http: HttpClient) -> None:
    problem = http.refusal(method, path)
    assert problem["status"] == status
    assert problem["detail"]


@pytest.mark.parametrize("path", ["/api", "/api/", "/console", "/console/", "/nothing"])
def test_what_only_has_pages_below_it_is_not_there(http: HttpClient, path: str) -> None:
    answer = http.ask("GET", path)
    assert answer.status == 404
    assert b"No Such Resource" in answer.body


@pytest.mark.parametrize("order", ["abort?id=", "abort?key=a&id="])
def test_what_the_path_says_is_not_said_otherwise(http: HttpClient, order: str) -> None:
    one, other = (
        http.post("/messages", {"topic": "orders", "body": "x", "at": "+1h"})["offsetMsgId"]
        for _ in range(2)
    )
    problem = http.refusal("POST", f"/messages/{one}/{order}{other}", {})
    assert (problem["status"], problem["detail"]) == (400, "id is given twice")
    assert len(http.get("/messages", topic="orders")["messages"]) == 2


@pytest.mark.parametrize(
    "query", ["/messages?end=+1h", "/timeline?begin=2030-01-31T09:30:00+01:00"]
)
def test_a_plus_that_an_address_takes_for_a_blank_is_told_of(http: HttpClient, query: str) -> None:
    assert "; in an address write %2B for the +" in http.refusal("GET", query)["detail"]
    assert "%2B" not in http.refusal("GET", "/messages?end=in 1h".replace(" ", "%20"))["detail"]
    http.get(query.replace("+", "%2B"))


def test_a_parameter_is_given_once(http: HttpClient) -> None:
    problem = http.refusal("GET", "/messages?key=a&key=b")
    assert (problem["status"], problem["detail"]) == (400, "key is given twice")


@pytest.mark.parametrize("data", [b"{", b"[]", b"\xff", b"null", b'"x"', b""])
def test_bodies_that_are_none(data: bytes, http: HttpClient) -> None:
    answer = http.ask("POST", f"{API}/messages", data=data)
    assert answer.status == 400


def test_what_is_too_large_is_not_read(http: HttpClient) -> None:
    assert http.ask("POST", f"{API}/messages", data=b" " * (MAX_BODY + 1)).status == 413
    chunk = b"%x\r\n%s\r\n" % (MAX_BODY, b" " * MAX_BODY)
    headers = {"Transfer-Encoding": "chunked"}
    answer = _chunked(http, headers, chunk + chunk + b"0\r\n\r\n")
    assert answer == 413


def test_a_body_in_very_many_pieces_ends_the_connection(http: HttpClient) -> None:
    """Those of a client that is not admitted would be read as well, though none of them is kept."""
    transport = http.connect()
    head = (
        f"POST {API}/messages HTTP/1.1\r\nHost: {HTTP_PORT}\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    transport.protocol.dataReceived(head.encode())
    for _ in range(19):
        transport.protocol.dataReceived(b"1\r\n \r\n" * 1_000)
    assert not transport.disconnecting
    transport.protocol.dataReceived(b"1\r\n \r\n" * 1_000)
    assert transport.disconnecting


def test_all_bodies_together_are_bounded(http: HttpClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of requests that are still arriving count, and no longer when these have ended."""
    monkeypatch.setattr(site, "MAX_BODIES", 1_000)
    body = json.dumps({"topic": "orders", "body": "x" * 400}).encode()
    unfinished = http.connect()
    head = f"POST {API}/messages HTTP/1.1\r\nHost: {HTTP_PORT}\r\nContent-Length: 700\r\n\r\n"
    unfinished.protocol.dataReceived(head.encode() + b" " * 690)
    assert http.ask("POST", f"{API}/messages", data=body).status == 503
    unfinished.lost(Failure(ConnectionLost()))  # type: ignore[no-untyped-call]
    for _ in range(5):
        assert http.ask("POST", f"{API}/messages", data=body).status == 200


def test_a_long_body_needs_no_temporary_file(
    http: HttpClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway's container has no folder for these."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    body = json.dumps({"topic": "orders", "body": "x" * 150_000}).encode()
    assert http.ask("POST", f"{API}/messages", data=body).status == 200
    chunk = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    assert _chunked(http, {"Transfer-Encoding": "chunked"}, chunk) == 200


def test_head_is_get_without_its_body(http: HttpClient) -> None:
    answer = http.ask("HEAD", f"{API}/status")
    assert (answer.status, answer.body) == (200, b"")
    assert int(answer.headers["content-length"]) > 0


def test_nothing_is_cached_or_guessed(http: HttpClient) -> None:
    headers = http.ask("GET", f"{API}/status").headers
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"


def test_each_answer_has_the_gateways_time(http: HttpClient) -> None:
    assert http.ask("GET", f"{API}/status").headers["tidegate-now"] == str(START_MS)
    assert http.ask("GET", f"{API}/nowhere").headers["tidegate-now"] == str(START_MS)


def test_a_stopping_gateway_sends_away(gateway: MemoryGateway, http: HttpClient) -> None:
    gateway.stop()
    assert http.refusal("GET", "/status")["status"] == 503


def test_a_fault_harms_its_request_alone(
    gateway: MemoryGateway,
    http: HttpClient,
    failures: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway.store.environment, "disk_free", lambda: 1 // 0)
    problem = http.refusal("GET", "/rates")
    assert (problem["status"], "ZeroDivisionError" in problem["detail"]) == (500, True)
    assert "ZeroDivisionError" in failures.pop()
    http.get("/status")


@given(text=st.text(max_size=30))
def test_moments_are_read_or_refused(text: str) -> None:
    try:
        moment = read_moment(text, Clock())
    except ApiError as error:
        moment = error.problem.status
    assert isinstance(moment, int)


def _chunked(http: HttpClient, headers: dict[str, str], data: bytes) -> int:
    lines = [
        f"POST {API}/messages HTTP/1.1",
        "Host: 127.0.0.1:9877",
        "Content-Type: application/json",
        *(f"{name}: {text}" for name, text in headers.items()),
    ]
    transport = http.connect()
    transport.protocol.dataReceived("\r\n".join([*lines, "", ""]).encode() + data)
    http._gateway.settle()
    return int(transport.value().split()[1])
