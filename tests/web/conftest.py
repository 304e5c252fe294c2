"""A gateway in memory with its HTTP port."""

from __future__ import annotations

import pytest

from gateway.settings.values import parse_host_port
from tests.gateway.conftest import MakeGateway, failures, make_gateway
from tests.gateway.memory import MemoryGateway
from tests.web.http import HTTP_PORT, HttpClient

__all__ = ["failures", "make_gateway"]


@pytest.fixture
def gateway(make_gateway: MakeGateway) -> MemoryGateway:
    """A gateway with its HTTP port on loopback, open to everybody on the machine."""
    return make_gateway(http=parse_host_port(HTTP_PORT))


@pytest.fixture
def http(gateway: MemoryGateway) -> HttpClient:
    """An HTTP client of the gateway."""
    return HttpClient(gateway)
