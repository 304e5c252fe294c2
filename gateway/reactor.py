"""What the gateway needs of Twisted's reactor, its time and calls later; and one whose turns are bounded."""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Final, Protocol

from twisted.internet.epollreactor import EPollReactor

SOCKETS_AT_ONCE: Final = 256
"""Sockets that one turn hears of, some 15 ms of work where each has a request."""


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
    `SOCKETS_AT_ONCE`, and what is due and the commit of the turn come between them and the next ones."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._poller = _SomeAtOnce(self._poller)


class _SomeAtOnce:
    """Tells of some of the sockets that are ready; the kernel begins with the others when it is asked again."""

    def __init__(self, epoll: select.epoll) -> None:
        self._epoll = epoll
        self.register = epoll.register
        self.modify = epoll.modify
        self.unregister = epoll.unregister

    def poll(self, timeout: float, most: int) -> list[tuple[int, int]]:
        return self._epoll.poll(timeout, min(most, SOCKETS_AT_ONCE))
