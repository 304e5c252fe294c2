"""One client's connection: bytes in and out, limits, idle close. It knows no request."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from functools import partial
from socket import IPPROTO_TCP, TCP_INFO
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IPushProducer
from twisted.internet.protocol import Protocol, ServerFactory, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer  # type: ignore[import-untyped]

from gateway.config import Config
from gateway.reactor import Reactor
from gateway.tap import Tap
from gateway.tls import TlsLayers
from gateway.unwritten import Unwritten
from gateway.wire.addresses import show_address, unmapped
from gateway.wire.commands import Command, CommandError, decode_command
from gateway.wire.frames import HEADER_LIMIT, Frame, FrameBuffer, FrameError
from gateway.wire.messages import pack_host
from gateway.wire.opening import Opening, OpeningError

MOST_UNWRITTEN_BYTES = 1 << 16
"""Bytes for one client that are gathered before they are written; where it does not take them its transport says that
it does not read."""

SILENCE_LOOK_SECONDS = 10.0
"""How often silent connections, and clients, are looked for."""

CLOSED_AT_ONCE = 100
"""Silent connections that are closed in one turn of the reactor, some 2 ms of work, and as much when they are gone:
those of a network that is cut off fall silent together."""

UNKNOWN_HOST = "127.0.0.1"
"""Stands for an IPv6 peer in a message: old clients cannot read longer addresses (C++, Go)."""

_TCP_INFO_BYTES = 128
_bytes_acked = struct.Struct("=120xQ").unpack_from
"""In Linux' `tcp_info`."""


@implementer(IPushProducer)
class RemotingConnection(Protocol):
    """Splits what arrives into commands and hands them on; is the `Peer` of the calls.

    A client that does not read its answers is not read from either: the transport pauses this connection when its
    output is full (it is the transport's streaming producer). What it had sent until then waits for it to read on, so
    neither side's memory grows; what others send to it meanwhile may not pass `max_unsent_bytes`.

    What is sent to it together is written by one call to the system: see `Unwritten`.
    """

    factory: RemotingFactory
    transport: Any
    log = Logger()

    def __init__(self) -> None:
        self.open = False
        self.congested = False
        self.host = pack_host(UNKNOWN_HOST, 0)
        self.address = ""
        self.last_heard = 0.0
        self._opening = Opening()
        self._receive = self._open
        self._layer: Any = None  # Twisted does not say the types of its methods
        self._frames = FrameBuffer()
        self._received: deque[Frame] = deque()
        self._malformed = ""  # what is wrong with what it sent
        self._unwritten: list[bytes] = []
        self._unwritten_bytes = 0
        self._has_backlog = False  # whether the transport may have something that is not written
        self._unsent = 0
        self._taken = 0
        self.unfinished = 0
        self._closing = False
        self._aborted = False

    def connectionMade(self) -> None:
        peer = self.transport.getPeer()
        host = unmapped(peer.host)
        self.address = show_address(host, peer.port)
        self.host = pack_host(UNKNOWN_HOST if ":" in host else host, peer.port)
        self.transport.setTcpNoDelay(True)
        self._frames = FrameBuffer(self.factory.max_frame_size, HEADER_LIMIT)
        self.open = True
        self.last_heard = self.factory.reactor.seconds()
        self.transport.registerProducer(self, True)
        self.factory.connected(self)

    def dataReceived(self, data: bytes) -> None:
        self.last_heard = self.factory.reactor.seconds()
        self._receive(data)

    def _open(self, data: bytes) -> None:
        """Find out what begins here: a balancer's header, TLS, frames."""
        opening, factory = self._opening, self.factory
        try:
            is_known = opening.feed(data)
        except OpeningError as error:
            self.log.info("closed {peer}: {error}", peer=self.address, error=str(error))
            self.close()
            return
        # Messages keep the address that connected, as upstream.
        self.address = opening.source or self.address
        if not is_known:
            self._note_unfinished(len(opening.rest))
            return
        self._note_unfinished(0)
        if opening.is_tls and factory.tls is not None:
            self._start_tls(factory.tls)
        elif opening.is_tls:
            self.log.info("closed {peer}: it wants TLS, which is disabled", peer=self.address)
            self.close()
            return
        elif factory.tls_only:
            self.log.info("closed {peer}: it does not use TLS", peer=self.address)
            self.close()
            return
        else:
            self._receive = self._read
        self._receive(opening.rest)

    def _start_tls(self, tls: TlsLayers) -> None:
        """From now on what arrives goes through TLS, and so does what is sent."""
        layer: Any = tls.layer(self.address, self._read)
        self._layer = layer
        self.transport.unregisterProducer()
        layer.makeConnection(self.transport)
        self.transport = layer
        layer.registerProducer(self, True)
        self._receive = layer.dataReceived

    def _read(self, data: bytes) -> None:
        """Take the bytes of frames."""
        try:
            self._received += self._frames.feed(data)
        except FrameError as error:
            self._received += error.frames
            self._malformed = str(error)
        self._note_unfinished(self._frames.pending)
        self._work()

    def _work(self) -> None:
        """Hand on the commands of the frames that have arrived, as long as the client reads its answers."""
        received, on_command = self._received, self.factory.on_command
        tap = self.factory.tap
        try:
            with self.factory.unwritten:
                # One that is closing is told only where to go, in a few bytes.
                while received and (
                    self._closing or not self.congested or self.factory.always_reads
                ):
                    frame = received.popleft()
                    if tap is not None:
                        tap.received(self, frame)
                    on_command(decode_command(frame), self)
        except CommandError as error:
            self._malformed = str(error)
            received.clear()
        if self._malformed and not received:
            # As upstream: what cannot be parsed is not answered. What was answered before it still leaves.
            self.log.info(
                "closed {peer}: it sent a malformed frame: {reason}",
                peer=self.address,
                reason=self._malformed[:200],
            )
            self.close()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self._layer is not None:
            self._layer.connectionLost(reason)
        self.open = False
        self._note_unfinished(0)
        self.factory.disconnected(self)

    def send(self, frame: bytes) -> None:
        if not self.open or self._aborted:
            return
        if not self._unwritten:
            self.factory.unwritten.add(self)
        self._unwritten.append(frame)
        self._unwritten_bytes += len(frame)
        if self._unwritten_bytes > MOST_UNWRITTEN_BYTES or self._closing:
            self.flush()
        if self.factory.tap is not None:
            self.factory.tap.sent(self, frame)
        if self.congested:
            self._unsent += len(frame)
            if self._unsent > self.factory.max_unsent_bytes:
                self.log.warn(
                    "closed {peer}: it does not read, and max_unsent_bytes = {limit} wait for it",
                    peer=self.address,
                    limit=self.factory.max_unsent_bytes,
                )
                self.abort()

    def flush(self) -> None:
        """Write what was sent and not written yet."""
        if not self._unwritten or not self.open:
            return
        if self._layer is not None or self._closing:
            self._write()
        elif self._has_backlog:
            self._write()
            self.transport.doWrite()
            self._has_backlog = bool(self.transport.dataBuffer)
        else:
            self._write_directly()

    def _write(self) -> None:
        """Leave it to the transport, which has the reactor say when the client takes more."""
        if self._unwritten:
            self._has_backlog = True
            self.transport.write(self._take_unwritten())

    def _write_directly(self) -> None:
        """Spare the reactor to poll whether the client takes more: it nearly always does. What it does not take, and
        the end of the connection, are the transport's affair."""
        frames = self._take_unwritten()
        sent = self.transport.writeSomeData(frames)
        if sent != len(frames):
            self._has_backlog = True
            self.transport.write(frames[sent:] if isinstance(sent, int) else frames)

    def _take_unwritten(self) -> bytes:
        frames = b"".join(self._unwritten)
        self._unwritten.clear()
        self._unwritten_bytes = 0
        return frames

    def close(self) -> None:
        """Close once everything that was sent has left; asked again, close at once."""
        if self._closing:
            self.abort()
            return
        self._write()
        self._closing = True
        # A transport does not close while a producer is registered that it has paused.
        self.transport.unregisterProducer()
        self.transport.loseConnection()

    def abort(self) -> None:
        """Close at once, and let go of what it holds."""
        self._aborted = True
        self._frames = FrameBuffer(self.factory.max_frame_size, HEADER_LIMIT)
        self._note_unfinished(0)
        self._received.clear()
        self._unwritten.clear()
        self.transport.abortConnection()

    def note_taking(self) -> None:
        """Of one that is not read from, as it is slow to take its answers, count it as heard that it took some."""
        if self.congested:
            transport = self.transport if self._layer is None else self._layer.transport
            info = transport.getHandle().getsockopt(IPPROTO_TCP, TCP_INFO, _TCP_INFO_BYTES)
            # Kernels older than 4.1 do not tell.
            (taken,) = _bytes_acked(info.ljust(_TCP_INFO_BYTES, b"\0"))
            if taken != self._taken:
                self._taken = taken
                self.last_heard = self.factory.reactor.seconds()

    def pauseProducing(self) -> None:
        self.congested = True
        if not self.factory.always_reads:
            self.transport.pauseProducing()

    def resumeProducing(self) -> None:
        self.congested = False
        self._unsent = 0
        if self.open:
            self.transport.resumeProducing()
            if self._received:
                self.factory.reactor.callLater(0, self._work)

    def stopProducing(self) -> None:
        """The transport says it wants no more; `connectionLost` follows."""

    def _note_unfinished(self, size: int) -> None:
        if size != self.unfinished:
            change, self.unfinished = size - self.unfinished, size
            self.factory.note_unfinished(change)


class RemotingFactory(ServerFactory):
    """Accepts connections up to a limit and closes silent ones.

    :param on_command: what to do with each command.
    :param on_disconnect: told of each connection that is lost.
    :param tls: what makes the TLS of those that ask for it; None refuses them.
    :param always_reads: for connections that were opened from here: the answers are read also while the other side does
        not read. It does not where its answers are not read, and else neither would ever read on.
    """

    noisy = False
    log = Logger()

    def __init__(
        self,
        reactor: Reactor,
        on_command: Callable[[Command, RemotingConnection], None],
        on_disconnect: Callable[[RemotingConnection], None],
        config: Config,
        tls: TlsLayers | None = None,
        *,
        always_reads: bool = False,
    ) -> None:
        self.reactor = reactor
        self.always_reads = always_reads
        self.on_command = on_command
        self.on_disconnect = on_disconnect
        self.tls = tls
        self.tls_only = tls is not None and config.tls == "enforcing"
        self.unwritten = Unwritten(reactor)
        self.tap: Tap | None = None
        """What records the frames of all connections; None when nobody wants to know them."""
        self._unfinished = 0
        self._refused = 0
        self._all_gone: Deferred[None] | None = None
        self.connections: set[RemotingConnection] = set()
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Keep connections by these settings."""
        self.max_connections = config.max_connections
        self.max_frame_size = config.max_frame_size
        self._max_unfinished_bytes = config.max_unfinished_bytes
        self.max_unsent_bytes = config.max_unsent_bytes
        self.idle_seconds = config.connection_idle_ms / 1000

    def buildProtocol(self, addr: object) -> Any:
        if len(self.connections) >= self.max_connections:
            self._refused += 1
            if self._refused == 1:
                self.log.warn(
                    "refused a connection: max_connections = {limit} are open",
                    limit=self.max_connections,
                )
            return None
        connection = RemotingConnection()
        connection.factory = self
        return connection

    def connected(self, connection: RemotingConnection) -> None:
        """A connection is ready."""
        self.connections.add(connection)

    def disconnected(self, connection: RemotingConnection) -> None:
        """A connection is gone."""
        self.connections.discard(connection)
        if self.tap is not None:
            self.tap.closed(connection)
        self.on_disconnect(connection)
        self._tell_if_gone()

    def note_unfinished(self, change: int) -> None:
        """A connection holds more, or less, of a frame that has not arrived whole."""
        self._unfinished += change
        if change < 0 or self._unfinished <= self._max_unfinished_bytes:
            return
        # Room for more than the next bytes: all connections are looked at.
        enough = self._max_unfinished_bytes - self._max_unfinished_bytes // 16
        for connection in sorted(self.connections, key=lambda one: -one.unfinished):
            self.log.warn("closed {peer}: unfinished frames fill memory", peer=connection.address)
            connection.abort()
            if self._unfinished <= enough:
                return

    def tell_refused(self) -> None:
        """Say how many connections were refused beside the one that was told of at once: clients that are refused try
        again and again, and a line for each time would fill the log."""
        more, self._refused = self._refused - 1, 0
        if more > 0:
            self.log.warn(
                "refused {more} more connections: max_connections = {limit} are open",
                more=more,
                limit=self.max_connections,
            )

    def close_silent(self) -> None:
        """Close the connections that nothing was heard of for long; of many, some in each turn."""
        self.tell_refused()
        for connection in self.connections:
            connection.note_taking()
        silent_since = self.reactor.seconds() - self.idle_seconds
        self._close_some([one for one in self.connections if one.last_heard < silent_since])

    def _close_some(self, silent: list[RemotingConnection]) -> None:
        for connection in silent[:CLOSED_AT_ONCE]:
            if connection.open:
                self.log.info("closed {peer}: it was silent", peer=connection.address)
                connection.close()
        if len(silent) > CLOSED_AT_ONCE:
            self.reactor.callLater(0, partial(self._close_some, silent[CLOSED_AT_ONCE:]))

    def close_all(self) -> Deferred[None]:
        """Close every connection once what was sent to it has left; fires when the last one is gone."""
        all_gone: Deferred[None] = Deferred()
        self._all_gone = all_gone
        for connection in list(self.connections):
            connection.close()
        self._tell_if_gone()
        return all_gone

    def _tell_if_gone(self) -> None:
        if self._all_gone is not None and not self.connections:
            all_gone, self._all_gone = self._all_gone, None
            all_gone.callback(None)
