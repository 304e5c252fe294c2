"""Waits of handlers that are coroutines: for the reactor's next turn, and for the disk."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred

from gateway.committer import Committer
from gateway.reactor import Reactor
from gateway.router import RequestError


class Turns:
    """Splits long work into pieces, so that sends and pulls have their turn between two of them."""

    def __init__(self, reactor: Reactor, committer: Committer) -> None:
        self._reactor = reactor
        self._committer = committer

    def next(self) -> Deferred[None]:
        """Wait for the reactor's next turn."""
        turn: Deferred[None] = Deferred()
        self._reactor.callLater(0, lambda: turn.callback(None))
        return turn

    def stored(self) -> Deferred[None]:
        """Wait until all changes are on disk; fail with a `RequestError` when they could not be stored."""
        waiting = _Waiting()
        self._committer.answer(waiting, b"")
        return waiting.done


class _Waiting:
    """Takes a client's place among those that the committer answers."""

    def __init__(self) -> None:
        self.done: Deferred[Any] = Deferred()

    def send(self, frame: bytes) -> None:
        self.done.callback(None)

    def fail(self, code: int, remark: str) -> None:
        self.done.errback(RequestError(code, remark))
