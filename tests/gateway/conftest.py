"""Fixtures of the gateway's tests without sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.logger import LogEvent, globalLogPublisher

from tests.gateway.memory import MemoryClient, MemoryGateway

MakeGateway = Callable[..., MemoryGateway]
"""Makes a gateway with the given settings."""


@pytest.fixture
def failures() -> Iterator[list[str]]:
    """Errors that were logged with their traceback. Work goes on after such an error, so a test would not notice it. A
    test that causes such errors removes them from the list; any that are left fail the test."""
    logged: list[str] = []

    def note(event: LogEvent) -> None:
        if "log_failure" in event:
            logged.append(event["log_failure"].getTraceback())

    observer: Any = note
    globalLogPublisher.addObserver(observer)
    yield logged
    globalLogPublisher.removeObserver(observer)
    assert logged == []


@pytest.fixture
def make_gateway(tmp_path: Path, failures: list[str]) -> Iterator[MakeGateway]:
    """Makes gateways. Each is checked and stopped when the test is over."""
    made: list[MemoryGateway] = []

    def make(**settings: Any) -> MemoryGateway:
        made.append(MemoryGateway(tmp_path / f"data{len(made)}", **settings))
        return made[-1]

    yield make
    for gateway in made:
        gateway.close()


@pytest.fixture
def gateway(make_gateway: MakeGateway) -> MemoryGateway:
    """A gateway with the default settings."""
    return make_gateway()


@pytest.fixture
def client(gateway: MemoryGateway) -> MemoryClient:
    """A connection to the gateway."""
    return gateway.connect()


@pytest.fixture
def writes(client: MemoryClient, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The bytes of each call that writes to the client from now on."""
    written: list[bytes] = []
    write = client.transport.write

    def note(data: bytes) -> None:
        written.append(data)
        write(data)

    monkeypatch.setattr(client.transport, "write", note)
    return written
