"""The gateway as a whole in the API: its identity, health and rates."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated

from msgspec import Meta

from gateway.access.permissions import GET
from gateway.access.policies import Need, Resource
from gateway.broker import Broker
from gateway.monitoring.meter import Distribution
from gateway.web.endpoints import Asker, Shown
from storage import usage_of


class Status(Shown):
    """The gateway's identity and health.

    `reasons` says why it should get no traffic, and is empty while all is well. `user` is None where requests need no
    user. `clockMoves` is false on a gateway for tests, whose clock is moved by hand.
    """

    version: str
    broker: str
    cluster: str
    address: str
    user: str | None
    now_ms: int
    started_ms: int
    clock_moves: bool
    reasons: list[str]
    recall_enabled: bool
    max_delay_ms: int


class Speed(Shown):
    """Messages per second in the last ten seconds, in the last minute, and since the start; and the total since
    then."""

    ten_seconds: float
    minute: float
    life: float
    total: int


class Spread(Shown):
    """How often a value fell into each class since the start.

    `bounds` has the upper bounds of the classes in seconds. `counts` has one more item, for values above all bounds.
    """

    bounds: list[float]
    counts: list[int]


class Rates(Shown):
    """How fast messages arrive and leave, and how punctually they fire. All counts begin with the process."""

    at_ms: int
    accepted: Speed
    fired: Speed
    handed_out: Speed
    timed_total: Annotated[int, Meta(description="Messages taken in for later.")]
    firing_error: Spread
    commit: Spread
    held: Annotated[int, Meta(description="Messages that have not fired.")]
    overdue_ms: Annotated[int, Meta(description="How overdue the earliest of them is.")]
    connections: int
    parked_pulls: int
    refused_batches: int
    size_bytes: Annotated[int, Meta(description="Size of the data file.")]
    free_bytes: Annotated[int, Meta(description="Of it, what can be used again.")]
    disk_free_bytes: int


class Overview:
    """Reports the gateway's health and rates.

    :param not_ready: returns why the gateway should get no traffic; empty when it should get it.
    :param connections: returns the number of open connections.
    """

    def __init__(
        self, broker: Broker, not_ready: Callable[[], list[str]], connections: Callable[[], int]
    ) -> None:
        self._broker = broker
        self._not_ready = not_ready
        self._connections = connections

    def show_status(self, asker: Asker) -> Status:
        """Return the gateway's identity and health, and the name of your user."""
        broker = self._broker
        config = broker.config
        return Status(
            version=version("tidegate"),
            broker=config.broker_name,
            cluster=config.cluster_name,
            address=str(broker.advertised),
            user=asker.name or None,
            now_ms=broker.clock.now_ms(),
            started_ms=broker.stats.started_ms,
            clock_moves=broker.clock.moves,
            reasons=self._not_ready(),
            recall_enabled=config.recall_enabled,
            max_delay_ms=config.max_delay_ms,
        )

    def show_rates(self, asker: Asker) -> Rates:
        """Return how fast messages arrive and leave, how late they fire, and the free disk space."""
        broker = self._broker
        asker.check(Need(Resource("Cluster", broker.config.cluster_name), GET))
        stats, meter, usage = broker.stats, broker.committer.meter, usage_of(broker.store)
        now_ms, due_ms = broker.clock.now_ms(), broker.firing.next_due_ms
        return Rates(
            at_ms=now_ms,
            accepted=self._speed("put", stats.put),
            fired=self._speed("fired", broker.firing.fired),
            handed_out=self._speed("got", stats.got),
            timed_total=broker.store.timed_total,
            firing_error=_spread(meter.firing_error),
            commit=_spread(meter.commit_seconds),
            held=broker.store.pending_count(),
            overdue_ms=max(0, now_ms - due_ms) if due_ms is not None else 0,
            connections=self._connections(),
            parked_pulls=len(broker.parked),
            refused_batches=meter.refused,
            size_bytes=usage.size,
            free_bytes=usage.free,
            disk_free_bytes=usage.disk_free,
        )

    def _speed(self, name: str, total: int) -> Speed:
        ten_seconds, minute, life = self._broker.stats.total_rates(name)
        return Speed(ten_seconds=ten_seconds, minute=minute, life=life, total=total)


def _spread(values: Distribution) -> Spread:
    return Spread(bounds=list(values.bounds), counts=list(values.counts))
