"""A worker's requests to the other workers, by way of the address that all share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from gateway.connections.connection import RemotingFactory
from gateway.connections.outgoing import Outgoing
from gateway.reactor import Reactor
from gateway.settings.config import Config
from gateway.settings.loading import (
    LEADER_ADDRESS_VARIABLE,
    LEADER_KEY_VARIABLE,
    WORKERS_VARIABLE,
)
from gateway.settings.values import HostPort, parse_host_port
from gateway.topics import PERM_READ
from gateway.wire.bodies import MessageQueue, Route, read_body
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import Command
from gateway.wire.signatures import ACCESS_KEY, SIGNATURE, sign
from gateway.workers.link import Link

WORKERS: Final = "the workers of this gateway"
"""The user that the workers sign as where access is controlled; no store has this user."""

PATIENCE: Final = 0.8
"""Seconds that an answer may take: a client that waits for it gives up after one second
(RebalanceImpl.tryQueryAssignment)."""

ROUTE_SECONDS: Final = 5.0
"""Seconds that a topic's queues are used before they are requested again."""

MOST_ROUTES: Final = 10_000
"""Most topics whose queues are remembered."""

OnQueues = Callable[[list[MessageQueue] | None], None]


class SharedAddress(NamedTuple):
    """The leader's address, the key by which the leader and the workers recognise one another, and the number of
    workers."""

    address: HostPort
    key: str
    workers: int

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> SharedAddress | None:
        """Return what the leader passed to this process; None where it is no worker."""
        if LEADER_ADDRESS_VARIABLE not in environ:
            return None
        return cls(
            parse_host_port(environ[LEADER_ADDRESS_VARIABLE]),
            environ[LEADER_KEY_VARIABLE],
            int(environ[WORKERS_VARIABLE]),
        )


class _Known(NamedTuple):
    """A topic's queues, and until when they are used (`Reactor.seconds`)."""

    queues: list[MessageQueue]
    until: float


class Siblings:
    """The workers of a gateway, including this one, as this one sees them."""

    def __init__(
        self, config: Config, reactor: Any, outgoing: Outgoing, shared: SharedAddress
    ) -> None:
        factory = RemotingFactory(
            reactor, outgoing.answered, outgoing.disconnected, config, always_reads=True
        )
        self._link = Link(reactor, factory, outgoing, shared.address)
        self._reactor: Reactor = reactor
        self._key = shared.key.encode()
        self._known: dict[str, _Known] = {}

    def readable_queues(self, topic: str, ready: OnQueues) -> None:
        """Call `ready` with a topic's queues at all workers, by broker name and queue number; with None where they
        cannot be found out."""
        known = self._known.get(topic)
        if known is not None and self._reactor.seconds() < known.until:
            ready(known.queues)
            return
        ext = signed({"topic": topic}, self._key)
        told = partial(self._told, topic, ready)
        self._link.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext, b"", PATIENCE, told)

    def _told(self, topic: str, ready: OnQueues, answer: Command | None) -> None:
        queues = None
        if answer is None:
            # The leader, or a worker that it waits for, is busy or gone: the queues are still where they were.
            known = self._known.get(topic)
            queues = known.queues if known is not None else None
        else:
            self._known.pop(topic, None)
            if answer.code == ResponseCode.SUCCESS:
                queues = _queues(topic, answer.body)
                if len(self._known) >= MOST_ROUTES:
                    del self._known[next(iter(self._known))]
                self._known[topic] = _Known(queues, self._reactor.seconds() + ROUTE_SECONDS)
        ready(queues)


def signed(ext: Mapping[str, str], key: bytes) -> dict[str, str]:
    """Return the fields of a request without a body, signed as by the workers' own user."""
    whole = {**ext, ACCESS_KEY: WORKERS}
    return whole | {SIGNATURE: sign(whole, b"", key)}


def _queues(topic: str, route: bytes) -> list[MessageQueue]:
    places = sorted(read_body(route, Route).queue_datas, key=lambda place: place.broker_name)
    return [
        MessageQueue(topic, place.broker_name, number)
        for place in places
        if place.perm & PERM_READ
        for number in range(place.read_queue_nums)
    ]
