"""The way from one process of a gateway with several workers to another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.protocol import ClientCreator

from gateway.connection import RemotingConnection, RemotingFactory
from gateway.setting_values import HostPort

PATIENCE = 5.0
"""Seconds that a connection has to come about."""


class Link:
    """A connection that is opened when something is to be asked, and kept.

    :param address: where the other process listens.
    """

    def __init__(self, reactor: Any, factory: RemotingFactory, address: HostPort) -> None:
        creator: Any = ClientCreator
        self._creator = creator(reactor, factory.buildProtocol, address)
        self._address = address
        self._connection: RemotingConnection | None = None

    def use(self, ready: Callable[[RemotingConnection | None], None]) -> None:
        """Call with an open connection; with None where there is none to be had."""
        if self._connection is not None and self._connection.open:
            ready(self._connection)
            return
        opening = self._creator.connectTCP(*self._address, PATIENCE)
        opening.addCallbacks(
            lambda connection: self._opened(connection, ready), lambda _: ready(None)
        )

    def _opened(
        self, connection: RemotingConnection, ready: Callable[[RemotingConnection | None], None]
    ) -> None:
        self._connection = connection
        ready(connection)
