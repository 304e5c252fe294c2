"""The HTTP port for operators: metrics, health checks, the API, and the console."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import resources
from typing import Any, Final, NamedTuple

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from twisted.internet.defer import Deferred
from twisted.internet.protocol import connectionDone
from twisted.internet.task import Cooperator, TaskStopped
from twisted.logger import Logger
from twisted.protocols.policies import WrappingFactory
from twisted.python.failure import Failure
from twisted.web.http import INTERNAL_SERVER_ERROR, OK, SERVICE_UNAVAILABLE, HTTPChannel
from twisted.web.pages import notFound
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request, Site

from gateway.connections.goodbye import Goodbye
from gateway.connections.tls import TlsLayers, log_failed_tls
from gateway.reactor import Reactor
from gateway.settings.config import Config
from gateway.web.site import BASE, Api, Bodies, BoundedRequest
from gateway.wire.addresses import show_address, unmapped

CONSOLE: Final = "gateway.console"
"""Package with the console's files; its page is served at `/`, its other files at `/console/`."""

PAGE: Final = "index.html"

KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Content types of the console's files."""

CONSOLE_HEADERS: Final = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""The console loads nothing from anywhere else, runs no script but its own files, and is shown in no frame."""


class Page(NamedTuple):
    """An answer to a GET."""

    status: int
    content_type: str
    body: bytes


def report(*reasons: str) -> Page:
    """Return the page for health or readiness as JSON: whether all is well, or the reasons why not."""
    body = msgspec.json.encode({"ready": not reasons, "reasons": reasons})
    return Page(SERVICE_UNAVAILABLE if reasons else OK, "application/json", body)


class _Channel(HTTPChannel):
    """A connection. It refuses a Content-Length of so many digits that Python does not parse it, where Twisted would
    fail with a traceback, lets nobody ask for more than is read, and waits a minute for a request, however it arrives.
    Of too long a line it says so.
    """

    events = Logger()

    _is_dropped = False
    _is_refused = False

    def headerReceived(self, line: bytes) -> bool:
        try:
            return bool(super().headerReceived(line))  # type: ignore[no-untyped-call]
        except ValueError:
            return bool(self._failChooseTransferDecoder())

    def lineLengthExceeded(self, line: bytes) -> None:
        """Answer a line of the header that is too long, as a long address; Twisted would only close."""
        self._is_refused = True
        transport: Any = self.transport
        transport.write(b"HTTP/1.1 431 Request Header Fields Too Large\r\n\r\n")
        self.loseConnection()  # type: ignore[no-untyped-call]

    def dataReceived(self, data: bytes) -> None:
        if self._is_refused:
            # The rest of the line, which came after the refusal, is no request.
            return
        if self._handlingRequest:
            # Nobody will read this, and it does not put off the time when the connection ends.
            self.persistent = False
        else:
            super().dataReceived(data)  # type: ignore[no-untyped-call]

    def resetTimeout(self) -> None:
        """Begin the time that a request has to arrive with its first byte. Twisted would begin it with each piece, and
        who sends a byte now and then could keep the connection for days."""
        if not self.requests and not self._buffer:
            super().resetTimeout()  # type: ignore[no-untyped-call]

    def requestDone(self, request: Any) -> None:
        """Go on in the next turn: TLS passes on what came with one read in pieces, and may be in the midst of them."""
        self.callLater(0, partial(self._go_on_after, request))  # type: ignore[no-untyped-call]

    def _go_on_after(self, request: Any) -> None:
        """End the connection if the client has sent more before it had this answer. Thousands of requests fit into one
        read, and Twisted would answer them all in one go, whether or not the client reads the answers."""
        if not self.requests:
            return
        more: list[bytes] = self._dataBuffer
        if any(more):
            self.persistent = False
        if not self.persistent:
            # Without this, Twisted waits for ever until the client has read the answer.
            self.setTimeout(self._savedTimeOut)  # type: ignore[no-untyped-call]
        super().requestDone(request)  # type: ignore[no-untyped-call]
        if self.persistent and self._waitingForTransport:
            # Twisted reads on if the client was found not to read while its request was handled.
            transport: Any = self._networkProducer
            transport.pauseProducing()

    @property
    def is_idle(self) -> bool:
        """Whether it waits for a request, or for the rest of one, while its client has all earlier answers."""
        return not (self._handlingRequest or self._waitingForTransport or self._is_dropped)

    def drop(self) -> None:
        """Close at once."""
        self._is_dropped = True
        transport: Any = self.transport
        transport.abortConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        super().connectionLost(reason)  # type: ignore[no-untyped-call]
        self.requests.clear()
        peer: Any = self.getPeer()  # type: ignore[no-untyped-call]
        log_failed_tls(self.events, show_address(unmapped(peer.host), peer.port), reason)


class _Site(Site):
    """Logs requests at the level debug, like requests of the remoting protocol."""

    events = Logger()
    protocol: Any = _Channel

    def log(self, request: Any) -> None:
        self.events.debug(
            "{method} {path} answered {code}",
            method=request.method.decode(errors="replace"),
            path=request.path.decode(errors="replace"),
            code=request.code,
            peer=request.getClientAddress().host,
        )


class BoundedSite(WrappingFactory[Any]):
    """Keeps to `max_http_connections`: more would use up file descriptors that clients need. A new connection takes the
    place of the oldest idle one, so that nobody can keep a health check out by connections alone; while there is none,
    it is closed. That the limit is reached is logged once, until the number has fallen to half."""

    noisy = False
    log = Logger()

    def __init__(self, factory: Any, config: Config) -> None:
        super().__init__(factory)  # type: ignore[no-untyped-call]
        self._has_told = False
        self._goodbye = Goodbye(self.protocols)
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Apply new settings."""
        self._most = config.max_http_connections

    def buildProtocol(self, addr: Any) -> Any:
        number = len(self.protocols)
        if number < self._most:
            self._has_told &= number > self._most // 2
            return super().buildProtocol(addr)
        if not self._has_told:
            self._has_told = True
            self.log.warn(
                "max_http_connections = {limit} are open: a new one takes the place of one that waits for a request, "
                "or is refused",
                limit=self._most,
            )
        idle = next((one for one in self._channels() if one.is_idle), None)
        if idle is None:
            return None
        idle.drop()
        return super().buildProtocol(addr)

    def close_all(self) -> Deferred[None]:
        """Close every connection once the answers that were sent to it have left. The Deferred fires when the last one
        is gone."""
        for channel in self._channels():
            channel.loseConnection()  # type: ignore[no-untyped-call]
        return self._goodbye.wait()

    def _channels(self) -> list[_Channel]:
        """Return all connections, the oldest first."""
        channels: list[Any] = [one.wrappedProtocol for one in self.protocols]
        # TLS comes in between.
        return [getattr(channel, "wrappedProtocol", channel) for channel in channels]

    def unregisterProtocol(self, p: Any) -> None:
        super().unregisterProtocol(p)  # type: ignore[no-untyped-call]
        self._goodbye.look()


class _Folder(Resource):
    """A path that has pages below it, but is no page itself."""

    def getChild(self, path: bytes, request: Request) -> Resource:
        return notFound()

    def render(self, request: Request) -> Any:
        page: Any = notFound()
        return page.render(request)


class _Leaf(Resource):
    """A page that is built for each request. HEAD is answered as GET, without a body."""

    def __init__(self, make: Callable[[], Page], headers: dict[str, str] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._make = make
        self._headers = headers or {"Cache-Control": "no-store"}

    def render_GET(self, request: Request) -> bytes:
        return _begun(request, self._make(), self._headers)


class _Scrape(Resource):
    """The page for Prometheus. It is built in pieces, between which other work is done. HEAD is answered as GET,
    without a body."""

    log = Logger()

    def __init__(self, pieces: Callable[[], Iterable[bytes]], reactor: Reactor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._pieces = pieces
        next_turn: Any = partial(reactor.callLater, 0)
        self._cooperator: Any = Cooperator(scheduler=next_turn)

    def render_GET(self, request: Request) -> int:
        body: list[bytes] = []

        def make() -> Iterator[None]:
            for piece in self._pieces():
                body.append(piece)
                yield

        def answer(_: object) -> None:
            self._send(request, Page(OK, CONTENT_TYPE_LATEST, b"".join(body)))

        def fail(failure: Failure) -> None:
            if not isinstance(failure.value, TaskStopped):
                self.log.failure("the metrics could not be read", failure)
                self._send(request, Page(INTERNAL_SERVER_ERROR, "text/plain", b"see the log\n"))

        making = self._cooperator.cooperate(make())
        making.whenDone().addCallbacks(answer, fail)
        finished: Any = request.notifyFinish()
        finished.addErrback(lambda _: making.stop())
        return NOT_DONE_YET

    @staticmethod
    def _send(request: Any, page: Page) -> None:
        request.write(_begun(request, page, {"Cache-Control": "no-store"}))
        request.finish()


def _begun(request: Request, page: Page, headers: dict[str, str]) -> bytes:
    """Set a page's status and headers, and return its body, which is left to send; to a HEAD none is."""
    request.setResponseCode(page.status)
    about = {"Content-Type": page.content_type, "Content-Length": str(len(page.body))}
    for name, value in (about | headers).items():
        request.responseHeaders.setRawHeaders(name, [value])
    # Twisted would leave out the body of an answer to a HEAD too, but logs a warning each time.
    return b"" if request.method == b"HEAD" else page.body


def make_site(
    config: Config,
    metrics: Callable[[], Iterable[bytes]],
    not_ready: Callable[[], list[str]],
    api: Api,
    reactor: Reactor,
    layers: TlsLayers | None = None,
) -> BoundedSite:
    """Return the site that serves the pages.

    :param metrics: makes the text for Prometheus, in pieces.
    :param not_ready: returns the reasons why the gateway is not ready for traffic; empty if it is.
    :param layers: creates the TLS layers of all connections; None is for plain HTTP.
    """
    root: Any = _Folder()  # type: ignore[no-untyped-call]
    root.putChild(b"metrics", _Scrape(metrics, reactor))
    root.putChild(b"health", _Leaf(report))
    root.putChild(b"ready", _Leaf(lambda: report(*not_ready())))
    console: Any = _Folder()  # type: ignore[no-untyped-call]
    for file, page in console_files().items():
        leaf = _Leaf(lambda page=page: page, CONSOLE_HEADERS)  # type: ignore[misc]
        (root if file == PAGE else console).putChild(b"" if file == PAGE else file.encode(), leaf)
    root.putChild(b"console", console)
    first, last = BASE.strip("/").encode().split(b"/")
    above: Any = _Folder()  # type: ignore[no-untyped-call]
    root.putChild(first, above)
    above.putChild(last, api)
    request = partial(
        BoundedRequest, bodies=Bodies(), objection=api.objection, parsePOSTFormSubmission=False
    )
    site = _Site(root, requestFactory=request, reactor=reactor)  # type: ignore[no-untyped-call]
    site.noisy = False
    return BoundedSite(layers.around(site) if layers is not None else site, config)


def console_files() -> dict[str, Page]:
    """Return the console's files by name."""
    return {
        file.name: Page(OK, KINDS[suffix], file.read_bytes())
        for file in resources.files(CONSOLE).iterdir()
        if (suffix := "." + file.name.rpartition(".")[2]) in KINDS
    }
