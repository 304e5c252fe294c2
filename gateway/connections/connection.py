"""A client's connection: bytes in and out, limits, and the closing of idle ones. It does not interpret requests."""

from __future__ import annotations

import struct
import sys
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

from gateway.connections.goodbye import Goodbye
from gateway.connections.held_bytes import HeldBytes
from gateway.connections.tap import Tap
from gateway.connections.tls import TlsLayers
from gateway.connections.unwritten import Unwritten
from gateway.reactor import Reactor
from gateway.settings.config import Config
from gateway.wire.addresses import show_address, unmapped
from gateway.wire.commands import Command, CommandError, decode_command
from gateway.wire.frames import FRAME_LIMIT, HEADER_LIMIT, Frame, FrameBuffer, FrameError
from gateway.wire.messages import pack_host
from gateway.wire.opening import Opening, OpeningError

MOST_UNWRITTEN_BYTES = 1 << 16
"""Most bytes that are gathered for one client before they are written. If the client does not take them, it counts as
not reading, and its transport pauses the connection."""

SILENCE_LOOK_SECONDS = 10.0
"""Seconds between checks for silent connections and clients."""

LONGEST_WORK_SECONDS = 0.01
"""Seconds that one client's requests are handled for in one turn. Hundreds may arrive together; who does not ask for
answers, or only for short ones, is not held up by having to read them."""

CLOSED_AT_ONCE = 100
"""Silent connections that are closed in one turn of the reactor: some 2 ms of work, and again as much once they are
closed. When a network is cut off, many connections fall silent together."""

UNSENT_OF_ALL = 8
"""How many times `max_unsent_bytes` may wait for all clients together. What waits for each client before its transport
pauses does not count: some 64 KiB there, and up to `MOST_UNWRITTEN_BYTES` that were gathered for it."""

UNKNOWN_HOST = "127.0.0.1"
"""The host that messages show for an IPv6 peer: old clients (C++, Go) cannot read longer addresses."""

_TCP_INFO_BYTES = 128
_bytes_acked = struct.Struct("=120xQ").unpack_from
"""Reads the acknowledged bytes from Linux' `tcp_info`."""


@implementer(IPushProducer)
class RemotingConnection(Protocol):
    """Splits the received bytes into commands and passes them on. It is the `Peer` of the calls.

    While a client does not read its answers, the gateway does not read its requests either: the transport pauses this
    connection, its streaming producer, when its output is full. Requests received before that wait until the client
    reads on, so memory grows on neither side. What is sent to the client meanwhile, by others too, may not exceed
    `max_unsent_bytes`; what filled the output does not count. Nor is anything read while requests that came together
    wait for their turn.

    All frames that are sent to it in one turn are written by one system call: see `Unwritten`.
    """

    factory: RemotingFactory
    transport: Any
    log = Logger()

    def __init__(self) -> None:
        self.open = False
        self.congested = False
        self.host = pack_host(UNKNOWN_HOST, 0)
        self.address = ""
        self.source = ""
        self.last_heard = 0.0
        self._opening = Opening()
        self._receive = self._open
        self._layer: Any = None  # Twisted's methods have no type hints
        self._frames = FrameBuffer()
        self._received: deque[Frame] = deque()
        self._malformed = ""  # what is wrong with the frame that ends the connection
        self._unwritten: list[bytes] = []
        self._unwritten_bytes = 0
        self._has_backlog = False  # whether the transport may hold unwritten bytes
        self._taken = 0
        self._is_behind = False  # whether received frames wait for the next turn
        self._closing = False
        self._aborted = False

    def connectionMade(self) -> None:
        peer = self.transport.getPeer()
        host = unmapped(peer.host)
        self.address = show_address(host, peer.port)
        self.source = host
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
        """Find out what the connection begins with: a load balancer's header, TLS, or frames."""
        opening, factory = self._opening, self.factory
        try:
            is_known = opening.feed(data)
        except OpeningError as error:
            self.log.info("closed {peer}: {error}", peer=self.address, error=str(error))
            self.close()
            return
        # As upstream, messages are stored with the address that connected, even if it is a load balancer's. Policies
        # are about that too, since anybody can send a header.
        self.address = opening.source or self.address
        if not is_known:
            factory.unfinished.note(self, len(opening.rest))
            return
        factory.unfinished.note(self, 0)
        if opening.is_tls and factory.tls is not None:
            self._start_tls(factory.tls)
        elif opening.is_tls:
            self.log.info(
                "closed {peer}: it uses TLS, and {reason}",
                peer=self.address,
                reason=factory.why_no_tls,
            )
            self.close()
            return
        elif factory.tls_only:
            self.log.info(
                "closed {peer}: it does not use TLS, and tls = enforcing", peer=self.address
            )
            self.close()
            return
        else:
            self._receive = self._read
        rest, opening.rest = opening.rest, b""
        self._receive(rest)

    def _start_tls(self, tls: TlsLayers) -> None:
        """Pass all received and sent bytes through TLS from now on."""
        layer: Any = tls.layer(self.address, self._read_decrypted)
        self._layer = layer
        self.transport.unregisterProducer()
        layer.makeConnection(self.transport)
        self.transport = layer
        layer.registerProducer(self, True)
        self._receive = layer.dataReceived

    def _read_decrypted(self, data: bytes) -> None:
        """Receive bytes of frames from TLS, which passes on what came together in pieces."""
        if self.factory.reactor.seconds() > self.last_heard + LONGEST_WORK_SECONDS:
            self._fall_behind()
        self._read(data)

    def _read(self, data: bytes) -> None:
        """Receive bytes of frames."""
        try:
            self._received += self._frames.feed(data)
        except FrameError as error:
            self._received += error.frames
            self._malformed = str(error)
        self.factory.unfinished.note(self, self._frames.pending)
        self._work()

    def _work(self) -> None:
        """Pass on the commands of the received frames, as long as the client reads its answers and it does not take too
        long."""
        if self._is_behind:
            return
        received, on_command = self._received, self.factory.on_command
        tap, seconds = self.factory.tap, self.factory.reactor.seconds
        enough = self.last_heard + LONGEST_WORK_SECONDS
        try:
            with self.factory.unwritten:
                # A closing connection gets only short answers that send the client elsewhere.
                while received and (
                    self._closing or not self.congested or self.factory.always_reads
                ):
                    # Reading the clock each time would make every request dearer.
                    if not len(received) & 3 and seconds() > enough and self._fall_behind():
                        break
                    frame = received.popleft()
                    if tap is not None:
                        tap.received(self, frame)
                    on_command(decode_command(frame), self)
        except CommandError as error:
            self._malformed = str(error)
            received.clear()
        if self._malformed and not received:
            # As upstream, a frame that cannot be parsed gets no answer. Earlier answers are still sent.
            self.log.info(
                "closed {peer}: it sent a malformed frame: {reason}",
                peer=self.address,
                reason=self._malformed[:200],
            )
            self.close()

    def _fall_behind(self) -> bool:
        """Leave what has been received for the next turn, and read nothing until it is done. Return whether it is left:
        a connection that always reads goes on."""
        if not self._is_behind and not self.factory.always_reads:
            self._is_behind = True
            if self.open:
                self.transport.pauseProducing()
            self.factory.reactor.callLater(0, self._go_on)
        return self._is_behind

    def _go_on(self) -> None:
        """Pass on the commands of frames that were left, and read on."""
        self._is_behind = False
        # A client whose requests wait is not silent, and they have their time from now on.
        self.last_heard = self.factory.reactor.seconds()
        if self.open and not self.congested:
            self.transport.resumeProducing()
        self._work()
        if not self.open and not self._is_behind:
            self.factory.disconnected(self)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self._layer is not None:
            self._layer.unregisterProducer()
            self._layer.connectionLost(reason)
        self.open = False
        # The transport has what the client did not read. Without cycles of objects it is freed with this connection;
        # else it would be when Python looks for them, perhaps hours later.
        self._receive = _ignore
        self._drop_unfinished()
        self.factory.unsent.note(self, 0)
        # What it sent before comes first, such as messages for which it wants no answer.
        if not self._is_behind:
            self._received.clear()
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
            unsent = self.factory.unsent
            waiting = unsent.of(self)
            unsent.note(self, waiting + len(frame))
            # One frame alone may be larger: its client would ask for it again and again.
            if waiting and waiting + len(frame) > self.factory.max_unsent_bytes:
                self.log.warn(
                    "closed {peer}: more than max_unsent_bytes = {limit} wait for it to read them",
                    peer=self.address,
                    limit=self.factory.max_unsent_bytes,
                )
                self.abort()

    def flush(self) -> None:
        """Write the frames that were sent and are not written yet."""
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
        """Write through the transport, which waits in the reactor until the client takes more."""
        if self._unwritten:
            self.transport.write(self._take_unwritten())

    def _write_directly(self) -> None:
        """Write to the socket at once, without asking the reactor first whether the client takes more: it nearly always
        does. The transport writes the rest later, and handles a lost connection."""
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
        """Close once everything that was sent has left; a second call closes at once."""
        if self._closing:
            self.abort()
            return
        self._write()
        self._closing = True
        # A transport does not close while it has a registered producer that it has paused.
        self.transport.unregisterProducer()
        self.transport.loseConnection()

    def abort(self) -> None:
        """Close at once, and free all buffers."""
        self._aborted = True
        self._drop_unfinished()
        self.factory.unsent.note(self, 0)
        self._received.clear()
        self._unwritten.clear()
        self.transport.abortConnection()

    def note_taking(self) -> None:
        """Count a paused connection as active if its client has received some of its answers since the last call."""
        if self.congested and self.open:
            transport = self.transport if self._layer is None else self._layer.transport
            info = transport.getHandle().getsockopt(IPPROTO_TCP, TCP_INFO, _TCP_INFO_BYTES)
            # Kernels older than 4.1 do not have this field.
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
        self.factory.unsent.note(self, 0)
        if self._received:
            self._fall_behind()
        elif self.open and not self._is_behind:
            self.transport.resumeProducing()

    def stopProducing(self) -> None:
        """Do nothing: `connectionLost` follows."""

    def _drop_unfinished(self) -> None:
        """Free the beginning of a frame whose rest will not come. Once the connection is lost, it would stay in memory
        until Python looks for cycles of objects, which may take hours."""
        self._frames = FrameBuffer(self.factory.max_frame_size, HEADER_LIMIT)
        self.factory.unfinished.note(self, 0)


def _ignore(data: bytes) -> None:
    """Receive nothing from a connection that is lost."""


class RemotingFactory(ServerFactory):
    """Accepts connections up to a limit and closes silent ones.

    :param on_command: called with each command.
    :param on_disconnect: called with each connection that is lost.
    :param tls: creates the TLS layers of clients that ask for TLS; None refuses them.
    :param always_reads: for connections that this process opened: read answers also while the other side does not read.
        Otherwise each side could wait for the other to read, for ever.
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
        self.why_no_tls = (
            "tls = disabled"
            if config.tls == "disabled"
            else "the address that workers share does not offer it: each worker's own address does"
        )
        self.unwritten = Unwritten(reactor)
        self.tap: Tap | None = None
        """Records the frames of all connections; None when no recorder is attached."""
        self.unfinished = HeldBytes("unfinished frames exceed max_unfinished_bytes")
        """Of frames that have not arrived whole."""
        self.unsent = HeldBytes(
            f"what waits for clients to read it exceeds {UNSENT_OF_ALL} times max_unsent_bytes"
        )
        """What was sent to each client since its transport has paused."""
        self._refused = 0
        self.connections: set[RemotingConnection] = set()
        self._goodbye = Goodbye(self.connections)
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Apply these settings to all connections."""
        self.max_connections = config.max_connections
        self.max_frame_size = config.max_frame_size
        if self.always_reads:
            # These connections are no clients'. The other side answers with as much as clients accept
            # (`Router.configure`).
            self.max_connections = sys.maxsize
            self.max_frame_size = max(FRAME_LIMIT, self.max_frame_size)
        self.unfinished.limit = config.max_unfinished_bytes
        self.max_unsent_bytes = config.max_unsent_bytes
        self.unsent.limit = UNSENT_OF_ALL * config.max_unsent_bytes
        self.idle_seconds = config.connection_idle.total_seconds()

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
        """Add a connection that is ready."""
        self.connections.add(connection)

    def disconnected(self, connection: RemotingConnection) -> None:
        """Remove a connection that was lost."""
        self.connections.discard(connection)
        if self.tap is not None:
            self.tap.closed(connection)
        self.on_disconnect(connection)
        self._goodbye.look()

    def tell_refused(self) -> None:
        """Log how many connections were refused since the first one, which was logged at once. Refused clients try
        again and again, and a line for each time would fill the log."""
        more, self._refused = self._refused - 1, 0
        if more > 0:
            self.log.warn(
                "refused {more} more connections: max_connections = {limit} are open",
                more=more,
                limit=self.max_connections,
            )

    def close_silent(self) -> None:
        """Close the connections that were silent for too long; if there are many, some in each turn."""
        self.tell_refused()
        for connection in self.connections:
            connection.note_taking()
        silent_since = self.reactor.seconds() - self.idle_seconds
        self._close_some([one for one in self.connections if one.last_heard < silent_since])

    def _close_some(self, silent: list[RemotingConnection]) -> None:
        for connection in silent[:CLOSED_AT_ONCE]:
            if connection.open:
                self.log.info(
                    "closed {peer}: it was silent for longer than connection_idle",
                    peer=connection.address,
                )
                connection.close()
        if len(silent) > CLOSED_AT_ONCE:
            self.reactor.callLater(0, partial(self._close_some, silent[CLOSED_AT_ONCE:]))

    def close_all(self) -> Deferred[None]:
        """Close every connection once everything sent to it has left. The Deferred fires when the last one is gone."""
        for connection in list(self.connections):
            connection.close()
        return self._goodbye.wait()
