"""The HTTP port that several workers share: console and API of all workers, and whether they are well.

Each worker also has a port of its own, to which requests are passed on (`gateway.web.relay`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from twisted.internet import error

from gateway.clock import Clock
from gateway.process import cannot_listen
from gateway.settings.config import Config
from gateway.settings.named_files import tls_layers
from gateway.settings.values import HostPort
from gateway.web.port import make_site
from gateway.web.relay import OpenDoor, Relay
from gateway.web.shared import WorkerFor
from gateway.web.site import Api
from gateway.web.table import shared_endpoints
from gateway.wire.messages import pack_host
from gateway.workers.worker_port import WorkerPort


class SharedHttp:
    """Answers at the shared HTTP port.

    :param names: the workers, in their order.
    :param key: the key by which the workers recognize this process.
    :param worker_for: returns which worker a recurring message is to be set at.
    """

    def __init__(
        self,
        config: Config,
        reactor: Any,
        names: Sequence[str],
        key: str,
        worker_for: WorkerFor,
    ) -> None:
        assert config.http is not None
        self._config = config
        self._reactor = reactor
        self._worker_for = worker_for
        self._ports = {name: WorkerPort(reactor, tls=config.http_tls) for name in names}
        self._owners: dict[bytes, str] = {}
        self._unready: set[str] = set()
        self._is_stopping = False
        self._door = OpenDoor(key.encode(), by_keys=config.authentication)
        self._port: Any = None
        self.address = ""
        """The address where clients request routes."""

    def listen(self) -> None:
        """Begin to answer.

        :raises StartError: when the address is taken, or a file of TLS cannot be used.
        """
        config, address = self._config, self._config.http
        assert address is not None
        relay = Relay(
            {name: port.ask for name, port in self._ports.items()},
            lambda name: self._ports[name].serves,
            lambda name: self._ports[name].starts,
        )
        clock = Clock()
        api = Api(
            shared_endpoints(
                relay, clock, self._owners.get, self._worker_for, lambda: self.address
            ),
            self._door,
            clock,
            lambda: self._is_stopping,
            lambda _: nullcontext(),
            lambda: None,
        )
        layers = tls_layers(config, self._reactor) if config.http_tls else None
        self._site = make_site(
            *(config, self._metrics, self._not_ready, api, self._reactor, layers)
        )
        try:
            self._port = self._reactor.listenTCP(address.port, self._site, interface=address.host)
        except error.CannotListenError as failure:
            raise cannot_listen(failure, "http", address) from failure

    def configure(self, config: Config) -> None:
        """Keep connections by these settings from now on, and ask for the credentials that the workers ask for."""
        self._site.configure(config)
        self._door.by_keys = config.authentication

    @property
    def port(self) -> int:
        """The port that is really bound."""
        return int(self._port.getHost().port)

    def expected(self, name: str, advertised: HostPort) -> None:
        """Register a worker that will serve, or does.

        :param advertised: the address that the worker gives to clients, which is in its messages' offset ids.
        """
        self._owners[pack_host(*advertised)] = name

    def joined(self, name: str, http: HostPort, advertised: HostPort) -> None:
        """Note that a worker serves. For `advertised` see `expected`.

        :param http: the worker's own HTTP address.
        """
        self._ports[name].address = http.from_here
        self._ports[name].starts += 1
        self.expected(name, advertised)
        self.serves(name)

    def serves(self, name: str) -> None:
        """Note that a worker that has joined serves, perhaps again."""
        self._ports[name].serves = True

    def ready(self, name: str, *, is_ready: bool) -> None:
        """Note whether traffic should come to a worker that serves."""
        if is_ready:
            self._unready.discard(name)
        else:
            self._unready.add(name)

    def left(self, name: str) -> None:
        """Note that a worker no longer serves, or hangs: it gets no requests."""
        self._ports[name].serves = False
        self._unready.discard(name)

    def hangs(self, name: str) -> None:
        """Note that a worker that has left hangs: stop waiting for its answers."""
        self._ports[name].wait_no_more()

    def stop(self) -> None:
        """Stop answering."""
        self._is_stopping = True
        if self._port is not None:
            self._port.stopListening()

    def _not_ready(self) -> list[str]:
        lacking = [
            f"{name} does not serve" for name, port in self._ports.items() if not port.serves
        ]
        unready = [name for name in self._ports if name in self._unready]
        return lacking + [f"{name} is not ready: its own /ready says why" for name in unready]

    def _metrics(self) -> list[bytes]:
        lines = [
            "# HELP tidegate_worker_up Whether a worker serves; its own figures are at its own port.",
            "# TYPE tidegate_worker_up gauge",
            *(
                f'tidegate_worker_up{{worker="{name}"}} {int(port.serves)}'
                for name, port in self._ports.items()
            ),
        ]
        return [("\n".join(lines) + "\n").encode()]
