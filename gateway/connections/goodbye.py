"""Tells when the last of some connections is gone."""

from __future__ import annotations

from collections.abc import Sized

from twisted.internet.defer import Deferred


class Goodbye:
    """Waits for connections that are being closed.

    :param connections: those that are open, kept up to date by their owner.
    """

    def __init__(self, connections: Sized) -> None:
        self._connections = connections
        self._all_gone: Deferred[None] | None = None

    def wait(self) -> Deferred[None]:
        """Return a Deferred that fires when the last connection is gone."""
        all_gone: Deferred[None] = Deferred()
        self._all_gone = all_gone
        self.look()
        return all_gone

    def look(self) -> None:
        """Note that a connection may have been the last one."""
        if self._all_gone is not None and not self._connections:
            all_gone, self._all_gone = self._all_gone, None
            all_gone.callback(None)
