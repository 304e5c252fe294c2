"""Sends requests to a worker's own HTTP port: one connection for each, on this machine, and the whole answer."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from io import BytesIO
from typing import Any, Final, cast

import msgspec
from OpenSSL import SSL
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator
from twisted.internet.protocol import ClientFactory, Protocol, connectionDone
from twisted.logger import Logger
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure
from zope.interface import implementer  # type: ignore[import-untyped]

from gateway.settings.values import HostPort
from gateway.web.endpoints import ApiError
from gateway.web.relay import Reply

PATIENCE: Final = 30.0
"""Seconds that a worker has to answer: it counts millions of messages in less."""

CONNECT_PATIENCE: Final = 5.0
"""Seconds that a worker has to accept the connection."""

MOST_HEAD: Final = 16_384
"""Most bytes of a request before its body that a worker reads (`HTTPChannel.totalHeadersSize`). What is passed on may
be longer than what came, as percent signs and replacements of letters take up to three times the room."""


class WorkerPort:
    """A worker's own HTTP port.

    :param tls: whether the port speaks TLS.
    """

    log = Logger()

    def __init__(self, reactor: Any, *, tls: bool) -> None:
        self._reactor = reactor
        self._tls = tls
        self.address: HostPort | None = None
        """The port's address; None until the worker has reported it."""
        self.serves = False
        """Whether the worker is known to serve. If not, a request ends at once without an answer."""
        self.starts = 0
        """How many processes have served as this worker, one after the other."""
        self._asked: dict[Deferred[Reply | None], Any] = {}

    def ask(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> Deferred[Reply | None]:
        """Send a request to the worker; see `relay.Ask`."""
        answer: Deferred[Reply | None] = Deferred()
        if self.address is None or not self.serves:
            answer.callback(None)
            return answer
        own = {**headers, "connection": "close", "content-length": str(len(body))}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {text}" for name, text in own.items())]
        head = "\r\n".join([*lines, "", ""]).encode()
        if len(head) > MOST_HEAD:
            answer.callback(_too_long())
            return answer
        factory: Any = _Requests(head + body, answer)
        if self._tls:
            factory = TLSMemoryBIOFactory(cast(Any, _Believing()), True, factory)
        opening = self._reactor.connectTCP(*self.address, factory, CONNECT_PATIENCE)
        answer.addTimeout(PATIENCE, self._reactor, onTimeoutCancel=lambda *_: opening.disconnect())
        answer.addErrback(partial(self._failed, answer))
        self._asked[answer] = opening
        answer.addCallback(partial(self._forget, answer))
        return answer

    def wait_no_more(self) -> None:
        """End all requests under way without an answer, as the worker hangs."""
        for answer, opening in list(self._asked.items()):
            answer.callback(None)
            opening.disconnect()

    def _forget(self, answer: Deferred[Reply | None], reply: Reply | None) -> Reply | None:
        del self._asked[answer]
        return reply

    def _failed(self, answer: Deferred[Reply | None], failure: Failure) -> None:
        if isinstance(failure.value, CancelledError):
            # Who asked is gone. Without a connection the worker does not go on either.
            self._asked[answer].disconnect()
            return
        self.log.warn(
            "the worker at {address} does not answer by HTTP: {reason}",
            address=str(self.address),
            reason=failure.getErrorMessage(),
        )


class _Request(Protocol):
    """A request that is sent once the connection is open."""

    def __init__(self, request: bytes, answer: Deferred[Reply | None]) -> None:
        self._request = request
        self._answer = answer
        self._data: list[bytes] = []

    def connectionMade(self) -> None:
        cast(Any, self.transport).write(self._request)

    def dataReceived(self, data: bytes) -> None:
        self._data.append(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self._answer.called:
            return
        try:
            self._answer.callback(_parse(b"".join(self._data)))
        except (http.client.HTTPException, ValueError) as error:
            self._answer.errback(error)


class _Requests(ClientFactory):
    noisy = False

    def __init__(self, request: bytes, answer: Deferred[Reply | None]) -> None:
        self._request = request
        self._answer = answer

    def buildProtocol(self, addr: object) -> _Request:
        return _Request(self._request, self._answer)

    def clientConnectionFailed(self, connector: object, reason: Failure) -> None:
        if not self._answer.called:
            self._answer.errback(reason)


class _Received:
    """Bytes in the form that `http.client` reads, a socket."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, mode: str) -> BytesIO:
        return BytesIO(self._data)


def _parse(data: bytes) -> Reply:
    """Parse a whole answer.

    :raises http.client.HTTPException: when it is not an answer, or its end is missing.
    """
    response = http.client.HTTPResponse(cast(Any, _Received(data)))
    response.begin()
    if response.length is None:
        raise http.client.HTTPException("the answer does not say how long it is")
    return Reply(response.status, response.read())


def _too_long() -> Reply:
    error = ApiError(
        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
        f"path and headers have more than the {MOST_HEAD} bytes that workers read",
    )
    return Reply(error.problem.status, msgspec.json.encode(error.problem))


@implementer(IOpenSSLClientConnectionCreator)
class _Believing:
    """Makes connections that accept any certificate: the ports are those of processes that this one started."""

    def __init__(self) -> None:
        self._context = SSL.Context(SSL.TLS_METHOD)

    def clientConnectionForTLS(self, tlsProtocol: object) -> SSL.Connection:  # noqa: N803 - Twisted's name
        return SSL.Connection(self._context, None)
