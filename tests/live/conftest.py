"""Real gateway processes, and Java clients connected to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compat.clients.driver import Driver, Received
from compat.clients.java import VERSIONS, JavaClient, Version
from tests.live.process import GatewayProcess

JavaMaker = Callable[..., JavaClient]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway that the tests of a file share; each test uses topics of its own."""
    with GatewayProcess(tmp_path_factory.mktemp("gateway") / "data") as gateway:
        yield gateway


@pytest.fixture
def own_gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    """A gateway that a test may kill."""
    with GatewayProcess(tmp_path / "data") as gateway:
        yield gateway


@pytest.fixture
def java_client(drivers: dict[Version, Driver]) -> Iterator[JavaMaker]:
    """Makes Java clients of a version for a gateway; closes them afterwards."""
    clients: list[JavaClient] = []

    def make(gateway: GatewayProcess, version: Version = "5.5.0", **options: object) -> JavaClient:
        driver = drivers[version]
        driver.start()
        client = JavaClient(gateway.address, version, driver=driver, **options)  # type: ignore[arg-type]
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()


@pytest.fixture(params=VERSIONS)
def java(
    request: pytest.FixtureRequest, java_client: JavaMaker, gateway: GatewayProcess
) -> JavaClient:
    """The Java client, of either generation, connected to the shared gateway."""
    return java_client(gateway, request.param)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic for this test alone."""
    name = request.node.name.replace("[", "-").replace("]", "").replace(".", "_")
    return f"T-{name}"[:100]


def bodies(messages: list[Received]) -> list[bytes]:
    """Return the bodies in a fixed order."""
    return sorted(message.body or b"" for message in messages)
