"""The leader of several workers, on a reactor that starts no processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from twisted.internet.testing import MemoryReactorClock, StringTransport

from gateway.config import Config
from gateway.workers import Leader


class Process:
    """A worker's process, as far as its leader knows it."""

    def __init__(self) -> None:
        self.signals: list[str] = []

    def signalProcess(self, name: str) -> None:
        """It is sent a signal."""
        self.signals.append(name)


class ProcessReactor(MemoryReactorClock):
    """Notes which processes were to be started."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.started: list[Process] = []

    def spawnProcess(self, *_: object, **options: object) -> Process:
        """Start one."""
        process = Process()
        self.started.append(process)
        return process


@pytest.fixture
def reactor() -> Any:
    return ProcessReactor()


@pytest.fixture
def leader(reactor: Any, tmp_path: Path) -> Leader:
    """The leader of two workers that have been started."""
    logs: Any = None
    leader = Leader(Config(data=tmp_path, workers=2), reactor, {}, logs)
    leader.start()
    return leader


def test_a_silent_connection_to_the_shared_address_is_closed(reactor: Any, leader: Leader) -> None:
    factory = reactor.tcpServers[0][1]
    connection = factory.buildProtocol(None)
    transport: Any = StringTransport()  # type: ignore[no-untyped-call]
    transport.setTcpNoDelay = lambda _: None
    connection.makeConnection(transport)
    reactor.pump([10.0] * 12)
    assert not transport.disconnecting
    reactor.pump([10.0] * 2)
    assert transport.disconnecting
