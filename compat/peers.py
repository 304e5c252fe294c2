"""The two servers of a comparison, each behind a recorder unless it was already running."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from compat import children
from compat.questions import Questions
from compat.real_broker import PATIENT, RealBroker
from compat.recorder import Recorder
from gateway.client import RemotingClient
from gateway.wire.addresses import VIP_CHANNEL_DISTANCE, parse_address, show_address
from gateway.wire.codes import RequestCode
from gateway.wire.dialect import to_json
from recording.proxy import Route

TOLD_HOST: Final = "127.0.0.2"
"""The host that clients are given for the servers. The recorders listen there instead."""

_MOST_CHECKS: Final = "1000"
"""The setting for the most checks of a transaction. Checks are a second apart, so this limit is not
reached before a client on a busy machine has registered with its heartbeat."""

_HOST: Final = "127.0.0.1"

Address = tuple[str, int]


class PeerError(Exception):
    """An address is not that of a name server with a broker; one line of text."""


@dataclass(frozen=True)
class Peer:
    """A name server with a broker. Scenarios do not depend on whose they are."""

    name: str
    namesrv: Address
    broker: Address
    direct: Address
    """The broker's own address, past the recorder, which passes on whole frames only."""
    capture: Path | None = None
    """The file where its traffic is recorded."""
    questions: Questions | None = None
    """The requests that it has not answered yet; None if nothing is recorded."""

    @property
    def namesrv_text(self) -> str:
        """The name server's address as clients are configured with it."""
        return show_address(*self.namesrv)

    @property
    def broker_text(self) -> str:
        """The broker's address as tools take it."""
        return show_address(*self.broker)


@contextmanager
def rocketmq(folder: Path) -> Iterator[Peer]:
    """Run a real RocketMQ, with options switched on that are on by default in the gateway."""
    capture = folder / "rocketmq.capture"
    provider = "org.apache.rocketmq.auth.{0}.provider.Local{1}MetadataProvider"
    settings = {
        "transactionTimeOut": "3000",
        "transactionCheckInterval": "1000",
        "transactionCheckMax": _MOST_CHECKS,
        **PATIENT,
        "authenticationMetadataProvider": provider.format("authentication", "Authentication"),
        "authorizationMetadataProvider": provider.format("authorization", "Authorization"),
    }
    with RealBroker(advertised_host=TOLD_HOST, settings=settings) as broker:
        routes = [
            Route(name, (TOLD_HOST, port), (_HOST, port))
            for name, port in (
                ("namesrv", broker.namesrv_port),
                ("broker", broker.port),
                ("vip channel", broker.port - VIP_CHANNEL_DISTANCE),
            )
        ]
        with Recorder(capture, routes) as recorder:
            yield Peer(
                "RocketMQ 5.5.0",
                (TOLD_HOST, broker.namesrv_port),
                (TOLD_HOST, broker.port),
                (_HOST, broker.port),
                capture,
                recorder.questions,
            )


@contextmanager
def tidegate(folder: Path, data: Path) -> Iterator[Peer]:
    """Run a gateway in a process of its own, with the same settings."""
    capture = folder / "tidegate.capture"
    words = (
        *("gateway", "serve", "--data", data / "data"),
        *("--listen", f"{_HOST}:0", "--advertise", TOLD_HOST),
        *("--transaction-timeout", "3s", "--transaction-check-interval", "1s"),
        *("--transaction-check-max", _MOST_CHECKS),
    )
    with children.server(*words, output=data / "tidegate.log") as server:
        _, port = parse_address(server.address)
        routes = [
            Route(name, (TOLD_HOST, each), (_HOST, each))
            for name, each in (("gateway", port), ("vip channel", port - VIP_CHANNEL_DISTANCE))
        ]
        with Recorder(capture, routes) as recorder:
            told = (TOLD_HOST, port)
            yield Peer("Tidegate", told, told, (_HOST, port), capture, recorder.questions)


def running(name: str, namesrv: Address) -> Peer:
    """Return a running name server with the first broker of its table; nothing is recorded."""
    with RemotingClient(*namesrv) as client:
        answer = client.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
    try:
        table = msgspec.json.decode(to_json(answer.body))["brokerAddrTable"]
        broker = parse_address(next(iter(table.values()))["brokerAddrs"]["0"])
    except (ValueError, LookupError, StopIteration, AttributeError) as error:
        raise PeerError(f"{show_address(*namesrv)} knows no broker") from error
    return Peer(name, namesrv, broker, broker)


@contextmanager
def built_in_pair(folder: Path, data: Path) -> Iterator[tuple[Peer, Peer]]:
    """Run a fresh real broker and a fresh gateway, with both captures in `folder`.

    `data` is a scratch folder that the caller removes.
    """
    with ExitStack() as stack:
        gateway = stack.enter_context(tidegate(folder, data))
        yield stack.enter_context(rocketmq(folder)), gateway
