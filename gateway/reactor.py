"""The part of Twisted's reactor that the gateway uses, time and delayed calls, and a reactor with bounded turns."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import Final, Protocol

from twisted.internet.epollreactor import EPollReactor

SOCKETS_AT_ONCE: Final = 256
"""Most ready sockets that one turn handles: some 15 ms of work if each has a request."""

HEARING_SECONDS: Final = 0.015
"""CPU seconds that handling them should take. If it takes longer, as with clients that send hundreds of requests
without waiting for answers, the next turn handles fewer sockets."""

FEW_SOCKETS: Final = 8
"""Ready sockets that a turn always handles. With no more than these, the time is not measured, which would cost 1
us."""


class DelayedCall(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancel the call."""

    def reset(self, seconds: float) -> None:
        """Make the call so many seconds from now instead."""


class Reactor(Protocol):
    """Twisted's IReactorTime; its interfaces cannot be checked statically without a plugin."""

    def seconds(self) -> float:
        """Return the reactor's monotonic time."""

    def callLater(self, delay: float, callable: Callable[[], object]) -> DelayedCall:
        """Call the function in so many seconds; 0 means at the end of this turn."""


class TurnReactor(EPollReactor):
    """Twisted's reactor with bounded turns. Twisted handles all ready sockets in one turn; this reactor handles at most
    `SOCKETS_AT_ONCE`, so that due calls and the turn's commit need not wait for the rest."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._some = self._poller = _SomeAtOnce(self._poller)

    def doIteration(self, timeout: float | None) -> None:
        super().doIteration(timeout)  # type: ignore[no-untyped-call]
        self._some.heard()


class _SomeAtOnce:
    """Reports only some of the ready sockets. The kernel reports the others first at the next poll."""

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
        """Note that the sockets of the last `poll` have been handled, and adapt their number to the time it took."""
        took = time.thread_time() - self._told_at if self._told > FEW_SOCKETS else 0.0
        if took > HEARING_SECONDS:
            self._most = max(FEW_SOCKETS, int(self._told * HEARING_SECONDS / took))
        elif self._told == self._most:
            self._most = min(2 * self._most, SOCKETS_AT_ONCE)
