"""Gathers frames that are sent to clients, so that each client's are written by one system call."""

from __future__ import annotations

from typing import Protocol

from gateway.reactor import Reactor


class Sender(Protocol):
    """A connection with frames to write."""

    def flush(self) -> None:
        """Write them."""


class Unwritten:
    """The connections with frames to write.

    They write at the end of the turn. Frames sent within `with unwritten:` are written when that block ends, which
    saves a turn of the reactor.
    """

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._senders: list[Sender] = []
        self._is_gathering = False

    def add(self, sender: Sender) -> None:
        """Add a connection that had nothing to write before."""
        if not self._senders and not self._is_gathering:
            self._reactor.callLater(0, self.flush)
        self._senders.append(sender)

    def flush(self) -> None:
        """Write the frames of all of them now."""
        if self._senders:
            senders, self._senders = self._senders, []
            for sender in senders:
                sender.flush()

    def __enter__(self) -> None:
        self._is_gathering = True

    def __exit__(self, *raised: object) -> None:
        # In nested blocks, frames sent later in the outer block are written at its end, or at the end of the turn.
        self._is_gathering = False
        self.flush()
