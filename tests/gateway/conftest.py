"""Fixtures of the gateway's tests without sockets."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.logger import LogEvent, globalLogPublisher

from tests.gateway.memory import MemoryClient, MemoryGateway

MakeGateway = Callable[..., MemoryGateway]
"""Makes a gateway with settings of one's own."""

MEMORY_DISK = "/dev/shm"
"""A file system in memory, where there is one: every commit is synced, and a busy disk takes its time over that."""


def scratch_place() -> str | None:
    """Where folders of tests are, in memory where possible; None for where the system has them."""
    return MEMORY_DISK if os.access(MEMORY_DISK, os.W_OK) else None


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder of the test's own."""
    with tempfile.TemporaryDirectory(prefix="tidegate-test-", dir=scratch_place()) as folder:
        yield Path(folder)


@pytest.fixture
def failures() -> Iterator[list[str]]:
    """The errors that were logged with their traceback: work goes on after them, so a test would not see that it was
    cut short. One that makes them happen takes them out; any that is left fails the test."""
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
def make_gateway(scratch: Path, failures: list[str]) -> Iterator[MakeGateway]:
    """Makes gateways; each is checked and stopped when the test is over."""
    made: list[MemoryGateway] = []

    def make(**settings: Any) -> MemoryGateway:
        made.append(MemoryGateway(scratch / f"data{len(made)}", **settings))
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
    """A connection to it."""
    return gateway.connect()


@pytest.fixture
def writes(client: MemoryClient, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What is written to the client from now on, by call."""
    written: list[bytes] = []
    write = client.transport.write

    def note(data: bytes) -> None:
        written.append(data)
        write(data)

    monkeypatch.setattr(client.transport, "write", note)
    return written
