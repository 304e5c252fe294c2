"""Answers HTTP requests: finds the endpoint in the table, checks who asks, and returns the handler's result as JSON."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from http import HTTPStatus
from io import BytesIO
from typing import Any, Final, Protocol

import msgspec
from twisted.internet.defer import CancelledError, Deferred, ensureDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request

from gateway.clock import Clock
from gateway.router import RequestError, not_available
from gateway.web.doorkeeper import Header
from gateway.web.endpoints import ApiError, Asker, Endpoint
from gateway.wire.addresses import unmapped
from storage import StorageError, as_told

BASE = "/api/v1"

MAX_BODY = 8 << 20
"""Most bytes of a request's body: more than a message of the default `max_message_size` in base64."""

MAX_BODIES = 64 << 20
"""Most bytes of the bodies of all requests under way."""

MAX_PIECES: Final = 20_000
"""Most pieces in which a body may come: chunks, or reads of the connection. Each takes 1 us, however small it is."""

HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Headers of every answer."""

NOW: Final = "Tidegate-Now"
"""A header of every answer: the gateway's time in epoch ms, from which the console computes how far off times are."""


class Door(Protocol):
    """Admits or refuses requests, as `Doorkeeper` does."""

    @property
    def challenge(self) -> str:
        """The challenge sent to a client without credentials."""

    def admit(self, method: str, header: Header, peer: str) -> Asker:
        """Return who sends the request; raise `ApiError` when it is not admitted."""


class Api(Resource):
    """The API.

    :param is_stopping: whether to refuse requests because the gateway is stopping.
    :param acting: returns a context; changes inside it are audited as this asker's.
    :param settled: called after each handler, to commit its changes.
    """

    isLeaf = True  # noqa: N815 - Twisted's name
    log = Logger()

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        doorkeeper: Door,
        clock: Clock,
        is_stopping: Callable[[], bool],
        acting: Callable[[Asker], AbstractContextManager[None]],
        settled: Callable[[], None],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._endpoints = endpoints
        self._doorkeeper = doorkeeper
        self._clock = clock
        self._is_stopping = is_stopping
        self._acting = acting
        self._settled = settled

    def objection(self, request: Any) -> ApiError | None:
        """Return why nobody will read the body of a request of which only the headers have arrived."""
        try:
            # Its method is not known yet; other methods are checked as this one and more.
            self._admit(request, "GET")
        except ApiError as error:
            return error
        return None

    def render(self, request: Any) -> int:
        """Answer a request, now or later; Twisted calls this."""
        answer = _Answer(request, self._clock)
        answering: Any = ensureDeferred(self._answer(request, answer))
        if request.method in (b"GET", b"HEAD"):
            answer.belongs_to(answering)
        answering.addErrback(self._failed, answer)
        return NOT_DONE_YET

    async def _answer(self, request: Any, answer: _Answer) -> None:
        done = self._handle(request)
        if inspect.isawaitable(done):
            done = await done
        answer.send(HTTPStatus.OK, "application/json", msgspec.json.encode(done))

    def _handle(self, request: Any) -> Any:
        if self._is_stopping():
            raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "the gateway is stopping")
        method = request.method.decode("ascii", "replace")
        asker = self._admit(request, method)
        if isinstance(request, BoundedRequest) and request.refusal is not None:
            raise request.refusal
        endpoint, values = self._find(request, "GET" if method == "HEAD" else method)
        try:
            for name, given in (request.args or {}).items():
                for one in given:
                    _put(values, name.decode(), one.decode())
        except UnicodeDecodeError:
            raise ApiError(HTTPStatus.BAD_REQUEST, "the parameters are not UTF-8") from None
        body = request.content.read() if request.content is not None else b""
        try:
            with self._acting(asker):
                done = endpoint.call(asker, values, body)
                # Start a coroutine here. It runs up to its first wait, which comes after its first change.
                return ensureDeferred(done) if inspect.iscoroutine(done) else done
        finally:
            self._settled()

    def _admit(self, request: Any, method: str) -> Asker:
        peer = unmapped(request.getClientAddress().host)
        return self._doorkeeper.admit(method, partial(_header, request), peer)

    def _find(self, request: Any, method: str) -> tuple[Endpoint, dict[str, str]]:
        try:
            segments = tuple(part.decode() for part in request.postpath or ())
        except UnicodeDecodeError:
            segments = ()
        fitting = [
            (endpoint, values)
            for endpoint in self._endpoints
            if (values := endpoint.match(segments)) is not None
        ]
        if not fitting:
            raise ApiError(HTTPStatus.NOT_FOUND, "there is no such path; see /api/v1/openapi.json")
        for endpoint, values in fitting:
            if endpoint.method == method:
                return endpoint, values
        methods = ", ".join(endpoint.method for endpoint, _ in fitting)
        request.setHeader("Allow", methods)
        raise ApiError(HTTPStatus.METHOD_NOT_ALLOWED, f"this path takes {methods}")

    def _failed(self, failure: Failure, answer: _Answer) -> None:
        if isinstance(failure.value, CancelledError):
            return
        error = as_told(failure.value)
        if isinstance(error, StorageError):
            error = not_available(error)
        if isinstance(error, RequestError):
            error = ApiError.of(error)
        elif not isinstance(error, ApiError):
            self.log.failure("HTTP request {path} failed", failure, path=answer.path)
            text = f"{type(error).__name__}: {error}"
            error = ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, text)
        problem = error.problem
        if problem.status == HTTPStatus.UNAUTHORIZED:
            answer.challenge(self._doorkeeper.challenge)
        answer.send(problem.status, "application/problem+json", msgspec.json.encode(problem))


class _Answer:
    """Sends the answer to a client that may have disconnected meanwhile."""

    def __init__(self, request: Any, clock: Clock) -> None:
        self._request = request
        self._clock = clock
        self._gone = False
        self._answering: Any = None
        finished: Deferred[None] = request.notifyFinish()
        finished.addErrback(self._left)

    def belongs_to(self, answering: Any) -> None:
        """Cancel this work when the client disconnects: it changes nothing, and nobody would see what it finds."""
        self._answering = answering

    def _left(self, _: Failure) -> None:
        self._gone = True
        if self._answering is not None:
            self._answering.cancel()

    @property
    def path(self) -> str:
        """The path of the request."""
        path: bytes = self._request.path
        return path.decode("ascii", "replace")

    def challenge(self, text: str) -> None:
        """Ask for credentials. The console asks the user itself, so its browser gets a scheme that it does not know."""
        by_console = _header(self._request, "Tidegate-Console") is not None
        self._request.setHeader("WWW-Authenticate", f"Console-{text}" if by_console else text)

    def send(self, status: int, kind: str, body: bytes) -> None:
        """Send the answer."""
        if self._gone:
            return
        request = self._request
        request.setResponseCode(status)
        request.setHeader("Content-Type", kind)
        request.setHeader("Content-Length", str(len(body)))
        for name, value in HEADERS.items():
            request.setHeader(name, value)
        request.setHeader(NOW, str(self._clock.now_ms()))
        if request.method != b"HEAD":
            request.write(body)
        request.finish()


def _put(values: dict[str, str], name: str, value: str) -> None:
    """Add a parameter. Refuse it if the path or the query already has it, since the two could contradict each other."""
    if name in values:
        raise ApiError(HTTPStatus.BAD_REQUEST, f"{name} is given twice")
    values[name] = value


def _header(request: Any, name: str) -> str | None:
    """Return a header of a request. Twisted's own decoding would fail on a header that is not UTF-8."""
    found: bytes | None = request.getHeader(name.encode())
    return found.decode(errors="replace") if found is not None else None


class Bodies:
    """Counts the bytes of the bodies of all requests under way."""

    def __init__(self) -> None:
        self.held = 0


class BoundedRequest(Request):
    """A request whose body is kept in memory, if it has at most `MAX_BODY` bytes, and those of all requests at most
    `MAX_BODIES`. Twisted would want a temporary file for larger ones, which a container without a writable folder does
    not have. Whoever is not admitted cannot use up memory: nothing of such a body is kept. Nor can the body be so many
    pieces that it holds up others.

    :param bodies: counts the bytes of this body too.
    :param objection: returns why a request is refused whatever its body is.
    """

    def __init__(
        self,
        *args: Any,
        bodies: Bodies,
        objection: Callable[[Request], ApiError | None],
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)  # type: ignore[no-untyped-call]
        self._bodies = bodies
        self._objection = objection
        self._held = 0
        self._pieces = 0
        self.refusal: ApiError | None = None
        """Why the body was not kept."""

    def gotLength(self, length: int | None) -> None:
        self.content = BytesIO()
        if length == 0:
            return
        self.refusal = self._objection(self)
        if self.refusal is None and length is not None and length > MAX_BODY:
            self._refuse_as_too_large()

    def handleContentChunk(self, data: bytes) -> None:
        self._pieces += 1
        if self._pieces == MAX_PIECES:
            # Over TLS, a connection that is only closed is read until the client closes it too.
            transport: Any = self.channel.transport
            transport.abortConnection()
        if self.refusal is not None:
            return
        if self._held + len(data) > MAX_BODY:
            self._refuse_as_too_large()
        elif self._bodies.held + len(data) > MAX_BODIES:
            detail = f"the bodies of all requests under way have {MAX_BODIES} bytes: try again"
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, detail)
        else:
            self._held += len(data)
            self._bodies.held += len(data)
            super().handleContentChunk(data)  # type: ignore[no-untyped-call]

    def finish(self) -> None:
        self._drop()
        super().finish()  # type: ignore[no-untyped-call]

    def connectionLost(self, reason: Failure) -> None:
        self._drop()
        super().connectionLost(reason)  # type: ignore[no-untyped-call]

    def _refuse_as_too_large(self) -> None:
        detail = f"the body has more than {MAX_BODY} bytes"
        self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail)

    def _refuse(self, status: HTTPStatus, detail: str) -> None:
        self.refusal = ApiError(status, detail)
        self._drop()

    def _drop(self) -> None:
        self.content = BytesIO()
        self._bodies.held -= self._held
        self._held = 0
