"""Bytes of one kind that the gateway holds for connections, and their limit for all connections together."""

from __future__ import annotations

from typing import Protocol

from twisted.logger import Logger


class Holder(Protocol):
    """A connection for which bytes are held."""

    address: str

    def abort(self) -> None:
        """Close the connection, and free all that is held for it."""


class HeldBytes:
    """Counts the bytes, and closes the connections for which most are held while all together exceed `limit`.

    :param why: what is logged of each closed connection.
    """

    log = Logger()

    def __init__(self, why: str) -> None:
        self.limit = 0
        self._why = why
        self._held: dict[Holder, int] = {}
        """What is held for each connection, if anything is."""
        self._total = 0

    def of(self, holder: Holder) -> int:
        """Return how many bytes are held for a connection."""
        return self._held.get(holder, 0)

    def note(self, holder: Holder, size: int) -> None:
        """Note how many bytes are held for a connection now; 0 once it is lost."""
        before = self._held.get(holder, 0)
        if size == before:
            return
        if size:
            self._held[holder] = size
        else:
            del self._held[holder]
        self._total += size - before
        if size > before and self._total > self.limit:
            self._free(self._total - self.limit)

    def _free(self, excess: int) -> None:
        # Free more than the next bytes need, since this sorts all of them.
        excess += self.limit // 16
        for holder, size in sorted(self._held.items(), key=lambda item: item[1], reverse=True):
            excess -= size
            self.log.warn("closed {peer}: {why}", peer=holder.address, why=self._why)
            holder.abort()
            if excess <= 0:
                return
