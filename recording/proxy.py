"""A proxy between clients and servers that records their traffic.

Bytes are passed on as they arrive; for the record they are cut into frames separately. Only a name server's answers
wait until they are whole. Answers that name brokers are changed so that clients connect to the proxy's own listeners
for these brokers (`routes`). Bytes that are no frames, such as TLS, are passed on and not recorded.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from collections.abc import Coroutine
from contextlib import suppress
from typing import Final, NamedTuple

from gateway.wire.addresses import VIP_CHANNEL_DISTANCE, show_address
from recording.format import LONGEST_FRAME, Kind
from recording.routes import Address, answered, asks_for_brokers, rewrite
from recording.writer import CaptureWriter

_MOST_QUESTIONS: Final = 1000
"""The most unanswered route requests of a connection that are tracked; the answers of any more are not changed."""
_CONNECT_LIMIT_S: Final = 10.0
REFUSAL_PAUSE_S: Final = 1.0
"""How long a connection stays open that its server did not accept. A Java 5 client whose connection opens and is
closed connects again at once, hundreds of times a second."""
_BACKLOG: Final = 1024

log = logging.getLogger(__name__)


class Route(NamedTuple):
    """Where the proxy listens, and for which server."""

    name: str
    listen: Address
    server: Address
    is_followed: bool = False
    """Whether answers that name brokers are changed, so that clients connect to the proxy for those brokers too."""


class Splitter:
    """Cuts the bytes of one direction into whole frames, with their length fields."""

    __slots__ = ("_partial", "is_broken")

    def __init__(self) -> None:
        self._partial = bytearray()
        self.is_broken = False
        """Whether something was no frame: no more frames are returned."""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the frames that these bytes complete; none after bytes that are no frame."""
        if not self._partial and int.from_bytes(data[:4], "big") == len(data) - 4 > 0:
            return [data]
        partial = self._partial
        partial += data
        frames = []
        at = 0
        while len(partial) - at >= 4:
            length = int.from_bytes(partial[at : at + 4], "big")
            if length > LONGEST_FRAME:
                self.is_broken = True
                break
            end = at + 4 + length
            if end > len(partial):
                break
            frames.append(bytes(partial[at:end]))
            at = end
        del partial[:at]
        return frames

    def take_rest(self) -> bytes:
        """Return the bytes after the last whole frame."""
        rest, self._partial = bytes(self._partial), bytearray()
        return rest


class Proxy:
    """Listens for clients of some servers, entirely in the running event loop.

    :param broker_host: the address on which listeners for brokers are created.
    :param advertise: the host that clients are given for brokers; None gives each client the address of the proxy to
        which it connected.
    """

    def __init__(
        self,
        writer: CaptureWriter,
        *,
        broker_host: str = "127.0.0.1",
        advertise: str | None = None,
    ) -> None:
        self.writer = writer
        self.refused = 0
        """Connections that their server did not accept."""
        self.unreadable = 0
        """Directions of connections in which something was no frame."""
        self.brokers: dict[Address, int] = {}
        """The proxy's port for each broker that was named."""
        self.numbers = itertools.count(1)
        self.links: set[Link] = set()
        self._here: dict[Address, int] = {}
        """The ports at which it listens from the start, by server."""
        self._broker_host = broker_host
        self._advertise = advertise
        self._servers: list[asyncio.AbstractServer] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, route: Route) -> Address:
        """Listen for one server. Return the actual address. Raises OSError."""
        here = _listener(route.listen)
        address: Address = here.getsockname()[:2]
        self._here.setdefault(route.server, address[1])
        await self._serve(here, route)
        return address

    async def close(self) -> None:
        """Accept no more connections, and end the existing ones."""
        for server in self._servers:
            server.close()
        for link in list(self.links):
            link.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def place_of(self, broker: Address, told_host: str) -> Address:
        """Return the address at which clients reach a broker: a listener of its own, created when the broker is first
        named. A gateway is its own name server, for which this listens already."""
        port = self.brokers.get(broker)
        if port is None:
            port = self._here.get(broker) or self._listen_for(broker)
            self.brokers[broker] = port
            self._listen_for_vip(broker, port)
        return self._advertise or told_host, port

    def _listen_for(self, broker: Address) -> int:
        """Listen on the broker's own port if it is free here, else on any."""
        try:
            here = _listener((self._broker_host, broker[1]))
        except OSError:
            here = _listener((self._broker_host, 0))
        port: int = here.getsockname()[1]
        log.info("broker %s is at port %d", show_address(*broker), port)
        self._begin(self._serve(here, Route(f"broker {show_address(*broker)}", ("", port), broker)))
        return port

    def _listen_for_vip(self, broker: Address, port: int) -> None:
        vip = (broker[0], broker[1] - VIP_CHANNEL_DISTANCE)
        with suppress(OSError):  # few clients still want it
            here = _listener((self._broker_host, port - VIP_CHANNEL_DISTANCE))
            self._begin(self._serve(here, Route(f"broker {show_address(*vip)}", ("", 0), vip)))

    async def _serve(self, here: socket.socket, route: Route) -> None:
        loop = asyncio.get_running_loop()
        self._servers.append(await loop.create_server(lambda: _ClientSide(self, route), sock=here))

    def connect(self, link: Link) -> None:
        """Connect a new link to its server."""
        self._begin(self._connect(link))

    async def _connect(self, link: Link) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_CONNECT_LIMIT_S):
                await loop.create_connection(lambda: _ServerSide(link), *link.route.server)
        except OSError:  # a TimeoutError is one
            self.refused += 1
            await asyncio.sleep(REFUSAL_PAUSE_S)
            link.end()  # the client sees its connection closed, as if the server had refused it

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class Link:
    """A client's connection, and the connection to its server."""

    def __init__(self, proxy: Proxy, route: Route, client: asyncio.Transport) -> None:
        self.route = route
        self.client = client
        self.server: asyncio.Transport | None = None
        self._proxy = proxy
        self._writer = proxy.writer
        self._number = 0
        self._from_client = Splitter()
        self._from_server = Splitter()
        self._questions: set[int] = set()
        self._ends = 0
        self._told_host: str = client.get_extra_info("sockname")[0]
        proxy.links.add(self)
        # Python 3.11.2 starts reading after `connection_made` even though that paused reading.
        self._early = bytearray()
        self._ended_early = False
        client.pause_reading()
        proxy.connect(self)

    def connected(self, server: asyncio.Transport) -> None:
        """Handle that the server has accepted the connection."""
        self.server = server
        if self.client.is_closing():
            server.close()
            return
        self._number = next(self._proxy.numbers)
        self._writer.opened(self._number, self.route.name)
        if self._early:
            self.client_said(bytes(self._early))
            self._early.clear()
        if self._ended_early:
            self.ended(by_client=True)
        else:
            self.client.resume_reading()

    def client_said(self, data: bytes) -> None:
        """Handle bytes from the client."""
        if self.server is None:
            self._early += data
            return
        for frame in self._split(self._from_client, data):
            self._writer.record(self._number, Kind.FROM_CLIENT, frame)
            if self.route.is_followed and len(self._questions) < _MOST_QUESTIONS:
                opaque = asks_for_brokers(frame)
                if opaque is not None:
                    self._questions.add(opaque)
        self.server.write(data)

    def server_said(self, data: bytes) -> None:
        """Handle bytes from the server."""
        splitter = self._from_server
        if splitter.is_broken:
            self.client.write(data)
            return
        frames = self._split(splitter, data)
        for frame in frames:
            self._writer.record(self._number, Kind.FROM_SERVER, frame)
        if not self.route.is_followed:
            self.client.write(data)
            return
        told = [self._for_client(frame) for frame in frames]
        if splitter.is_broken:
            told.append(splitter.take_rest())
        if told:
            self.client.writelines(told)

    def ended(self, *, by_client: bool) -> bool:
        """Handle the end of one side's data. Return whether that side's connection stays open for the other side's
        data."""
        if self.server is None:
            self._ended_early = True
            return True
        if not by_client:
            self.client.write(self._from_server.take_rest() if self.route.is_followed else b"")
        other = self.server if by_client else self.client
        self._ends += 1
        if self._ends == 2 or other.is_closing():
            return False
        other.write_eof()
        return True

    def _split(self, splitter: Splitter, data: bytes) -> list[bytes]:
        if splitter.is_broken:
            return []
        frames = splitter.feed(data)
        self._proxy.unreadable += splitter.is_broken
        return frames

    def _for_client(self, frame: bytes) -> bytes:
        if not self._questions:
            return frame
        opaque = answered(frame)
        if opaque not in self._questions:
            return frame
        self._questions.discard(opaque)
        return rewrite(frame, lambda broker: self._proxy.place_of(broker, self._told_host))

    def end(self) -> None:
        """Close both sides after all pending bytes were sent."""
        self.client.close()
        if self.server is not None:
            self.server.close()
        if self in self._proxy.links:
            self._proxy.links.discard(self)
            if self._number:
                self._writer.closed(self._number)

    def abort(self) -> None:
        """Close both sides at once."""
        self.end()
        self.client.abort()
        if self.server is not None:
            self.server.abort()


class _ClientSide(asyncio.Protocol):
    def __init__(self, proxy: Proxy, route: Route) -> None:
        self._proxy = proxy
        self._route = route

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._link = Link(self._proxy, self._route, transport)

    def data_received(self, data: bytes) -> None:
        self._link.client_said(data)

    def eof_received(self) -> bool:
        return self._link.ended(by_client=True)

    def connection_lost(self, error: Exception | None) -> None:
        self._link.end()

    # When one side does not read, stop reading from the other.
    def pause_writing(self) -> None:
        if self._link.server is not None:
            self._link.server.pause_reading()

    def resume_writing(self) -> None:
        if self._link.server is not None:
            self._link.server.resume_reading()


class _ServerSide(asyncio.Protocol):
    def __init__(self, link: Link) -> None:
        self._link = link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._link.connected(transport)

    def data_received(self, data: bytes) -> None:
        self._link.server_said(data)

    def eof_received(self) -> bool:
        return self._link.ended(by_client=False)

    def connection_lost(self, error: Exception | None) -> None:
        self._link.end()

    def pause_writing(self) -> None:
        self._link.client.pause_reading()

    def resume_writing(self) -> None:
        self._link.client.resume_reading()


def _listener(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    return socket.create_server(address, family=family, backlog=_BACKLOG)
