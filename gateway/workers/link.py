"""The connection between two processes of a gateway with several workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.protocol import ClientCreator

from gateway.connections.connection import RemotingConnection, RemotingFactory
from gateway.connections.outgoing import OnAnswer, Outgoing
from gateway.router import RequestError
from gateway.settings.values import HostPort

PATIENCE = 5.0
"""Seconds after which an attempt to connect fails."""


class Link:
    """A connection that is opened for the first request, and kept.

    :param factory: makes the connection, whose answers go to `outgoing`.
    :param address: where the other process listens.
    """

    def __init__(
        self, reactor: Any, factory: RemotingFactory, outgoing: Outgoing, address: HostPort
    ) -> None:
        creator: Any = ClientCreator
        self._creator = creator(reactor, factory.buildProtocol, address)
        self._outgoing = outgoing
        self._address = address
        self._connection: RemotingConnection | None = None
        self._waiting: list[Deferred[RemotingConnection | None]] = []

    @property
    def is_congested(self) -> bool:
        """Whether the other process has not read yet what was sent to it."""
        connection = self._connection
        return connection is not None and connection.open and connection.congested

    def ask(
        self,
        code: int,
        ext: Mapping[str, str] | None,
        body: bytes,
        timeout: float,
        on_answer: OnAnswer,
    ) -> None:
        """Send the other process a request: see `Outgoing.request`. The answer is None also if no connection can be
        opened or too many requests wait, perhaps before this returns."""

        def send(connection: RemotingConnection | None) -> None:
            if connection is None:
                on_answer(None)
                return
            try:
                self._outgoing.request(connection, code, ext, body, timeout, on_answer)
            except RequestError:
                on_answer(None)

        self._use(send)

    def _use(self, ready: Callable[[RemotingConnection | None], None]) -> None:
        """Call `ready` with an open connection, or with None if none can be opened."""
        if self._connection is not None and self._connection.open:
            ready(self._connection)
            return
        self._waiting.append(Deferred().addCallback(ready))
        if len(self._waiting) == 1:
            opening = self._creator.connectTCP(*self._address, PATIENCE)
            opening.addCallbacks(self._opened, lambda _: self._opened(None))

    def _opened(self, connection: RemotingConnection | None) -> None:
        self._connection = connection
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.callback(connection)
