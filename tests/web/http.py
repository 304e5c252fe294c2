"""HTTP requests to a gateway in memory, byte for byte as a client writes them."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

from gateway.web.endpoints import Endpoint
from tests.gateway.memory import MemoryGateway, MemoryTransport

API = "/api/v1"

HTTP_PORT = "127.0.0.1:9877"
"""The setting `http` of the gateways in these tests."""


class HttpAnswer(NamedTuple):
    """Status, headers in lower case, and the body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class HttpClient:
    """Sends requests to a gateway's HTTP port.

    :param peer: the address from which requests come.
    """

    def __init__(self, gateway: MemoryGateway, peer: str = "127.0.0.1", **headers: str) -> None:
        self._gateway = gateway
        self._peer = peer
        self._headers = {"Host": HTTP_PORT, **headers}

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
    ) -> HttpAnswer:
        """Send a request on a connection of its own, and return its answer. In a header, a lone surrogate stands for a
        byte that is not UTF-8.

        :param body: sent as JSON.
        :param data: sent unchanged.
        """
        if data is None:
            data = json.dumps(body).encode() if body is not None else b""
        sent = {**self._headers, "Connection": "close"}
        if method != "GET":
            sent |= {"Content-Type": "application/json", "Content-Length": str(len(data))}
        sent |= headers or {}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {text}" for name, text in sent.items())]
        transport = self.connect()
        head = "\r\n".join([*lines, "", ""]).encode(errors="surrogateescape")
        transport.protocol.dataReceived(head + data)
        self._gateway.settle()
        return _parse(transport.value(), method)

    def connect(self) -> Any:
        """Return the gateway's end of a new connection."""
        _, factory, *_ = self._gateway.reactor.tcpServers[-1]
        transport: Any = MemoryTransport(self._gateway.reactor, self._peer)
        transport.protocol = factory.buildProtocol(transport.getPeer())
        transport.protocol.makeConnection(transport)
        return transport

    def get(self, path: str, **query: object) -> Any:
        """Send a GET to the API, which must succeed. Return the JSON of the answer."""
        answer = self.ask("GET", API + path + ("?" + urlencode(query) if query else ""))
        assert answer.status == 200, answer
        return answer.json

    def post(self, path: str, body: object = None) -> Any:
        """Send a POST to the API, which must succeed. Return the JSON of the answer."""
        answer = self.ask("POST", API + path, body if body is not None else {})
        assert answer.status == 200, answer
        return answer.json

    def refusal(self, method: str, path: str, body: object = None, **query: object) -> Any:
        """Send a request that must be refused. Return the problem in the answer."""
        answer = self.ask(method, API + path + ("?" + urlencode(query) if query else ""), body)
        assert answer.status >= 400, answer
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json["status"] == answer.status
        return answer.json


def api_endpoints(gateway: MemoryGateway) -> list[Endpoint]:
    """Return a gateway's table of endpoints."""
    _, factory, *_ = gateway.reactor.tcpServers[-1]
    endpoints: list[Endpoint] = (
        factory.wrappedFactory.resource.children[b"api"].children[b"v1"]._endpoints
    )
    return endpoints


def _parse(data: bytes, method: str) -> HttpAnswer:
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): text for name, _, text in (line.partition(": ") for line in lines)}
    if method != "HEAD" and "content-length" in headers:
        assert len(body) == int(headers["content-length"])
    return HttpAnswer(int(first.split()[1]), headers, body)


def basic(name: str, key: str) -> str:
    """Return the header that names a user."""
    return "Basic " + base64.b64encode(f"{name}:{key}".encode()).decode()
