"""Clients of a gateway in memory that speak TLS."""

from __future__ import annotations

import ssl
from collections.abc import Iterable

from gateway.wire.commands import Command, decode_command
from tests.gateway.certificates import Authority
from tests.gateway.memory import MemoryClient, MemoryGateway


class TlsClient(MemoryClient):
    """A client's TLS connection, by Python's own `ssl`."""

    def __init__(self, gateway: MemoryGateway, context: ssl.SSLContext, begin: bytes = b"") -> None:
        super().__init__(gateway)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        self._begin = begin
        self._shake_hands()

    def raw(self, data: bytes) -> None:
        self.tls.write(data)
        self._exchange()

    def records(self, pieces: Iterable[bytes]) -> bytes:
        """Return the bytes that carry these pieces, each in a record of its own."""
        for piece in pieces:
            self.tls.write(piece)
        return self._outgoing.read()

    def take(self) -> list[Command]:
        self._exchange()
        arrived = []
        try:
            while data := self.tls.read(1 << 16):
                arrived += [decode_command(frame) for frame in self._frames.feed(data)]
        except ssl.SSLWantReadError:
            pass
        self.received += arrived
        return arrived

    def _shake_hands(self) -> None:
        for _ in range(10):
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                self._exchange()
            else:
                self._exchange()
                return
        raise AssertionError("the handshake does not end")

    def _exchange(self) -> None:
        """Carry the bytes both ways."""
        for _ in range(4):
            sent = self._begin + self._outgoing.read()
            self._begin = b""
            if sent and self.transport.connected:
                self.protocol.dataReceived(sent)
            self._gateway.settle()
            self._incoming.write(self.transport.value())
            self.transport.clear()
            self.transport.drained()


def trusting(authority: Authority) -> ssl.SSLContext:
    """Return the context of a client that trusts this authority alone."""
    return ssl.create_default_context(cadata=authority.pem.decode())


def careless() -> ssl.SSLContext:
    """Return the context of a client that trusts any certificate, as RocketMQ's clients do by default."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
