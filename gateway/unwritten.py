"""What is sent to clients and not written yet: it is gathered, so that each gets it by one call to the system."""

from __future__ import annotations

from typing import Protocol

from gateway.reactor import Reactor


class Sender(Protocol):
    """A connection that has something to write."""

    def flush(self) -> None:
        """Write it."""


class Unwritten:
    """The connections that have something to write.

    They write at the end of the turn. What is sent within `with unwritten:` is written at the end of that, which saves
    a turn of the reactor.
    """

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._senders: list[Sender] = []
        self._is_gathering = False

    def add(self, sender: Sender) -> None:
        """A connection has something to write that had nothing before."""
        if not self._senders and not self._is_gathering:
            self._reactor.callLater(0, self.flush)
        self._senders.append(sender)

    def flush(self) -> None:
        """Have all of them write now."""
        if self._senders:
            senders, self._senders = self._senders, []
            for sender in senders:
                sender.flush()

    def __enter__(self) -> None:
        self._is_gathering = True

    def __exit__(self, *raised: object) -> None:
        # Where one is within another, what is left of the outer one's is written at the end of the turn or of that.
        self._is_gathering = False
        self.flush()
