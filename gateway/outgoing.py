"""What the gateway asks of its clients, over the connections that they opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from twisted.logger import Logger

from gateway.config import Config
from gateway.reactor import DelayedCall, Reactor
from gateway.router import Peer, overloaded
from gateway.wire.codes import CommandFlag
from gateway.wire.commands import Command, encode_command

MAX_OPAQUE = (1 << 31) - 1
"""Request numbers are 32-bit and signed."""

OnAnswer = Callable[[Command | None], None]
"""Told of a client's answer, or of None: it did not come in time, or the connection is gone."""


class _Waiting(NamedTuple):
    """A request that has no answer yet."""

    on_answer: OnAnswer
    deadline: DelayedCall


class Outgoing:
    """Sends requests to clients and brings each answer to whoever asked.

    The numbers are the gateway's own: they have nothing to do with those that clients give theirs. At most
    `max_asked_clients` requests wait for their answers.
    """

    log = Logger()

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._opaque = 0
        self._waiting: dict[Peer, dict[int, _Waiting]] = {}
        self._count = 0
        self._limit = MAX_OPAQUE

    def configure(self, config: Config) -> None:
        """Let as many wait as the settings say."""
        self._limit = config.max_asked_clients

    def check_room(self, count: int = 1) -> None:
        """See whether so many more clients may be asked.

        :raises RequestError: when they may not.
        """
        if self._count + count > self._limit:
            raise overloaded("max_asked_clients", self._limit)

    def oneway(
        self, peer: Peer, code: int, ext: Mapping[str, str] | None = None, body: bytes = b""
    ) -> None:
        """Tell a client something that it does not answer."""
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
        """Ask a client something.

        :param timeout: seconds to wait for the answer.
        :param on_answer: called exactly once, and never before this returns. `peer.open` then tells
            a late answer from a lost connection.
        :raises RequestError: when too many requests wait already; nothing was asked then.
        """
        self.check_room()
        opaque = self._number()
        seconds = timeout if peer.open else 0.0
        waiting = self._waiting.setdefault(peer, {})
        while opaque in waiting:
            opaque = self._number()
        deadline = self._reactor.callLater(seconds, lambda: self._finish(peer, opaque, None))
        waiting[opaque] = _Waiting(on_answer, deadline)
        self._count += 1
        peer.send(encode_command(code, opaque, ext=ext, body=body))

    def answered(self, command: Command, peer: Peer) -> None:
        """A client answered. An answer to nothing that was asked of it, or a late one, is dropped."""
        waiting = self._waiting.get(peer, {}).get(command.opaque)
        if waiting is not None:
            waiting.deadline.cancel()
            self._finish(peer, command.opaque, command)

    def disconnected(self, peer: Peer) -> None:
        """A connection is lost: what was asked over it has no answer."""
        for opaque, waiting in list(self._waiting.get(peer, {}).items()):
            waiting.deadline.cancel()
            self._finish(peer, opaque, None)

    def stop(self) -> None:
        """Wait for no answer any more."""
        for peer in list(self._waiting):
            self.disconnected(peer)

    def _finish(self, peer: Peer, opaque: int, answer: Command | None) -> None:
        waiting = self._waiting[peer]
        on_answer, _ = waiting.pop(opaque)
        self._count -= 1
        if not waiting:
            del self._waiting[peer]
        try:
            on_answer(answer)
        except Exception:  # noqa: BLE001 - whoever asked must not harm the client's connection
            self.log.failure("an answer of {peer} was not handled", peer=peer.address)

    def _number(self) -> int:
        self._opaque = self._opaque % MAX_OPAQUE + 1
        return self._opaque
