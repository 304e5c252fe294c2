"""The part of Twisted's reactor that the gateway uses, time and delayed calls, and a reactor with bounded turns."""

from __future__ import annotations

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
    `SOCKETS_AT_ONCE`, so that due calls and the turn's commit need not wait for the rest. The kernel reports the others
    first in the next turn.

    Nor does it note in each log line's context which socket it has just handled: no line shows that, and it takes 2 us
    a socket.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._most = SOCKETS_AT_ONCE

    def doIteration(self, timeout: float | None) -> None:
        """Wait until sockets are ready, at most so many seconds, and handle some of them."""
        ready = self._poller.poll(-1 if timeout is None else timeout, self._most)
        is_timed = len(ready) > FEW_SOCKETS
        begun = time.thread_time() if is_timed else 0.0
        for number, event in ready:
            # One that was handled before it may have closed it.
            if (socket := self._selectables.get(number)) is not None:
                self._doReadOrWrite(socket, number, event)  # type: ignore[no-untyped-call]
        took = time.thread_time() - begun if is_timed else 0.0
        if took > HEARING_SECONDS:
            self._most = max(FEW_SOCKETS, int(len(ready) * HEARING_SECONDS / took))
        elif len(ready) == self._most:
            self._most = min(2 * self._most, SOCKETS_AT_ONCE)
