"""What the gateway needs of Twisted's reactor, its time and calls later; and one whose turns are bounded."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import Final, Protocol

from twisted.internet.epollreactor import EPollReactor

SOCKETS_AT_ONCE: Final = 256
"""Sockets that one turn hears of at most, some 15 ms of work where each has a request."""

HEARING_SECONDS: Final = 0.015
"""CPU time that this is to take. Where it takes longer, as each has hundreds of requests of a client that waits for no
answers, the next turn hears of fewer."""

FEW_SOCKETS: Final = 8
"""Sockets that a turn hears of however long that takes. With no more it is not measured: that costs 1 us."""


class DelayedCall(Protocol):
    """A call that has not been made."""

    def cancel(self) -> None:
        """Have it not made."""

    def reset(self, seconds: float) -> None:
        """Have it made in so many seconds from now instead."""


class Reactor(Protocol):
    """Twisted's IReactorTime; its interfaces cannot be checked statically without a plugin."""

    def seconds(self) -> float:
        """The reactor's own time, which never goes back."""

    def callLater(self, delay: float, callable: Callable[[], object]) -> DelayedCall:
        """Call in so many seconds; 0 is at the end of this turn."""


class TurnReactor(EPollReactor):
    """Twisted's reactor, which does in one turn what all sockets have to say that are ready: here it is that of
    `SOCKETS_AT_ONCE` or fewer, and what is due and the commit of the turn come between them and the next ones."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._some = self._poller = _SomeAtOnce(self._poller)

    def doIteration(self, timeout: float | None) -> None:
        super().doIteration(timeout)  # type: ignore[no-untyped-call]
        self._some.heard()


class _SomeAtOnce:
    """Tells of some of the sockets that are ready; the kernel begins with the others when it is asked again."""

    def __init__(self, epoll: select.epoll) -> None:
        self._epoll = epoll
        self._most = SOCKETS_AT_ONCE
        self._told = 0
        self._told_at = 0.0
        self.register = epoll.register
        self.modify = epoll.modify
        self.unregister = epoll.unregister

    def poll(self, timeout: float, most: int) -> list[tuple[int, int]]:
        self._told = 0
        ready = self._epoll.poll(timeout, min(most, self._most))
        self._told = len(ready)
        if self._told > FEW_SOCKETS:
            self._told_at = time.thread_time()
        return ready

    def heard(self) -> None:
        """What those had to say that `poll` told of last is done."""
        took = time.thread_time() - self._told_at if self._told > FEW_SOCKETS else 0.0
        if took > HEARING_SECONDS:
            self._most = max(FEW_SOCKETS, int(self._told * HEARING_SECONDS / took))
        elif self._told == self._most:
            self._most = min(2 * self._most, SOCKETS_AT_ONCE)
