"""Requests of the gateway to its clients, over the connections that the clients opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from twisted.logger import Logger

from gateway.reactor import DelayedCall, Reactor
from gateway.router import Peer, overloaded
from gateway.settings.config import Config
from gateway.wire.codes import CommandFlag
from gateway.wire.commands import Command, encode_command

MAX_OPAQUE = (1 << 31) - 1
"""Request numbers are 32-bit and signed."""

MAX_BYTES: Final = 256 << 20
"""Most bytes of requests without an answer, in fields and bodies: those that asked for them keep them until then."""

OnAnswer = Callable[[Command | None], None]
"""Called with a client's answer, or with None: it did not come in time, or the connection is gone."""


class _Waiting(NamedTuple):
    """A request that has no answer yet."""

    on_answer: OnAnswer
    deadline: DelayedCall
    size: int


class Outgoing:
    """Sends requests to clients, and passes each answer to the code that asked.

    The request numbers are the gateway's own, whatever numbers clients give to their requests. At most
    `max_asked_clients` requests wait for their answers.

    :param most_bytes: most bytes of these requests together; a single one may have more.
    """

    log = Logger()

    def __init__(self, reactor: Reactor, most_bytes: int = MAX_BYTES) -> None:
        self._reactor = reactor
        self._opaque = 0
        self._waiting: dict[Peer, dict[int, _Waiting]] = {}
        self._count = 0
        self._bytes = 0
        self._most_bytes = most_bytes
        self._limit = MAX_OPAQUE

    def configure(self, config: Config) -> None:
        """Set how many requests may wait."""
        self._limit = config.max_asked_clients

    def check_room(self, count: int = 1) -> None:
        """Check that so many more requests may wait.

        :raises RequestError: when they may not.
        """
        if self._count + count > self._limit:
            raise overloaded("max_asked_clients", self._limit)

    def oneway(
        self, peer: Peer, code: int, ext: Mapping[str, str] | None = None, body: bytes = b""
    ) -> None:
        """Send a client a request that it does not answer."""
        peer.send(encode_command(code, self._number(), flag=CommandFlag.ONEWAY, ext=ext, body=body))

    def request(
        self,
        peer: Peer,
        code: int,
        ext: Mapping[str, str] | None,
        body: bytes,
        timeout: float,
        on_answer: OnAnswer,
    ) -> None:
        """Send a request to a client.

        :param timeout: seconds to wait for the answer.
        :param on_answer: called exactly once, and never before this returns. If the answer is None, `peer.open` shows
            whether it was late or the connection was lost.
        :raises RequestError: when too many requests wait already; then nothing is sent.
        """
        self.check_room()
        size = len(body) + sum(map(len, (ext or {}).values()))
        if self._bytes and self._bytes + size > self._most_bytes:
            raise overloaded("bytes of requests to clients", self._most_bytes)
        opaque = self._number()
        seconds = timeout if peer.open else 0.0
        waiting = self._waiting.setdefault(peer, {})
        while opaque in waiting:
            opaque = self._number()
        deadline = self._reactor.callLater(seconds, lambda: self._finish(peer, opaque, None))
        waiting[opaque] = _Waiting(on_answer, deadline, size)
        self._count += 1
        self._bytes += size
        peer.send(encode_command(code, opaque, ext=ext, body=body))

    def answered(self, command: Command, peer: Peer) -> None:
        """Take a client's answer. One that answers no request, or comes late, is dropped."""
        waiting = self._waiting.get(peer, {}).get(command.opaque)
        if waiting is not None:
            waiting.deadline.cancel()
            self._finish(peer, command.opaque, command)

    def disconnected(self, peer: Peer) -> None:
        """Note that a connection is lost: requests over it have no answer."""
        for opaque, waiting in list(self._waiting.get(peer, {}).items()):
            waiting.deadline.cancel()
            self._finish(peer, opaque, None)

    def stop(self) -> None:
        """Stop waiting for answers."""
        for peer in list(self._waiting):
            self.disconnected(peer)

    def _finish(self, peer: Peer, opaque: int, answer: Command | None) -> None:
        waiting = self._waiting[peer]
        on_answer, _, size = waiting.pop(opaque)
        self._count -= 1
        self._bytes -= size
        if not waiting:
            del self._waiting[peer]
        try:
            on_answer(answer)
        except Exception:  # noqa: BLE001 - the code that asked must not harm the client's connection
            self.log.failure("an answer of {peer} could not be handled", peer=peer.address)

    def _number(self) -> int:
        self._opaque = self._opaque % MAX_OPAQUE + 1
        return self._opaque
