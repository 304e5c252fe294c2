"""Fixtures of the gateway's tests without sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.memory import MemoryClient, MemoryGateway

MakeGateway = Callable[..., MemoryGateway]
"""Makes a gateway with settings of one's own."""


@pytest.fixture
def make_gateway(tmp_path: Path) -> Iterator[MakeGateway]:
    """Makes gateways; each is checked and stopped when the test is over."""
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
    """A connection to it."""
    return gateway.connect()
