"""Waits of handlers that are coroutines: for the reactor's next turn, and for the disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from time import perf_counter
from typing import Any, TypeVar

from twisted.internet.defer import Deferred

from gateway.committer import Committer
from gateway.reactor import Reactor
from gateway.router import RequestError

Result = TypeVar("Result")

PIECE_SECONDS = 0.01
"""Time after which a piece of a `Work` ends."""


class Turns:
    """Splits long work into pieces, so that sends and pulls have their turn between two of them."""

    def __init__(self, reactor: Reactor, committer: Committer) -> None:
        self._reactor = reactor
        self._committer = committer
        self._waiting: deque[Deferred[None]] = deque()

    def next(self) -> Deferred[None]:
        """Wait for a turn of the reactor in which no other request does a piece of its work. Many may wait: together,
        their pieces would hold up all else."""
        turn: Deferred[None] = Deferred()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            self._reactor.callLater(0, self._go_on)
        return turn

    def _go_on(self) -> None:
        turn = self._waiting.popleft()
        while turn.called and self._waiting:  # its client is gone
            turn = self._waiting.popleft()
        if self._waiting:
            self._reactor.callLater(0, self._go_on)
        if not turn.called:
            turn.callback(None)

    async def take(self, steps: Generator[None, None, Result]) -> Result:
        """Take steps, each in a turn as `next` waits for. Return what the last one returns."""
        while True:
            await self.next()
            try:
                next(steps)
            except StopIteration as end:
                result: Result = end.value
                return result

    def stored(self) -> Deferred[None]:
        """Wait until all changes are on disk; fail with a `RequestError` when they could not be stored."""
        waiting = _Waiting()
        self._committer.answer(waiting, b"")
        return waiting.done

    def begin(self) -> Work:
        """Begin long work of many steps."""
        return Work(self)


class Work:
    """Splits work into pieces by the time that they take: one step can take a thousand times as long as another. Each
    piece waits for its turn, the first one too."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._begun: float | None = None

    async def step(self) -> None:
        """Go on with the next step, in another turn if the piece has taken `PIECE_SECONDS`. Anything may have changed
        then."""
        if self._begun is None or perf_counter() - self._begun >= PIECE_SECONDS:
            await self._turns.next()
            self._begun = perf_counter()


class _Waiting:
    """Takes a client's place among those that the committer answers."""

    def __init__(self) -> None:
        self.done: Deferred[Any] = Deferred()

    def send(self, frame: bytes) -> None:
        self.done.callback(None)

    def fail(self, code: int, remark: str) -> None:
        self.done.errback(RequestError(code, remark))
