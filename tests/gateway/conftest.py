"""Fixtures of the gateway's tests without sockets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.memory import MemoryClient, MemoryGateway


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[MemoryGateway]:
    """A gateway with the default settings."""
    gateway = MemoryGateway(tmp_path / "data")
    yield gateway
    gateway.close()


@pytest.fixture
def client(gateway: MemoryGateway) -> MemoryClient:
    """A connection to it."""
    return gateway.connect()
