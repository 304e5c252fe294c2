"""The state that all handlers share: the settings, and the parts of the gateway that hold state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from gateway.clients import Clients
from gateway.clock import Clock
from gateway.committer import Committer
from gateway.connections.outgoing import Outgoing
from gateway.firing import Firing
from gateway.intake import Intake
from gateway.kv_config import KvConfig
from gateway.monitoring.audit import AuditLog
from gateway.monitoring.stats import Statistics
from gateway.parked import ParkingLot
from gateway.pops.consume_modes import ConsumeModes
from gateway.pops.orders import PopOrders
from gateway.quotas import Quotas
from gateway.recurring.messages import RecurringMessages
from gateway.resets import Resets
from gateway.settings.config import Config
from gateway.settings.values import HostPort
from gateway.topics import Groups, Topics
from gateway.wire.bodies import MessageQueue
from gateway.wire.group_topics import retry_topic
from storage import Step, Store, expire_messages

FORGOTTEN_AT_ONCE: Final = 2_000
"""Topics of which one turn of the reactor checks whether they were deleted, some 2 ms of work."""


@dataclass(slots=True)
class Broker:
    """A running gateway, without its sockets.

    `advertised` is the address that clients connect to, and `host` the same address as stored in records.
    """

    config: Config
    clock: Clock
    store: Store
    topics: Topics
    groups: Groups
    outgoing: Outgoing
    clients: Clients
    parked: ParkingLot
    committer: Committer
    firing: Firing
    quotas: Quotas
    intake: Intake
    recurring: RecurringMessages
    stats: Statistics
    audit: AuditLog
    resets: Resets
    orders: PopOrders
    kv: KvConfig
    modes: ConsumeModes
    advertised: HostPort
    host: bytes
    workers: int = 1
    """How many processes share one address with this one, itself included."""
    changes: int = 0
    """How often the settings were changed since the start."""
    clean_ups: int = 0
    """How often a tool has asked for a clean-up since the start."""
    _followers: list[Callable[[Config], None]] = field(default_factory=list)

    def follow(self, take_up: Callable[[Config], None]) -> None:
        """Call a function with the settings now and after each change. It is for parts that keep values of settings."""
        self._followers.append(take_up)
        take_up(self.config)

    def reconfigure(self, config: Config) -> None:
        """Apply new settings. Only settings that are marked as live may differ."""
        self.config = config
        self.changes += 1
        for take_up in self._followers:
            take_up(config)

    def expire_messages(self, limit: int, begin: bytes = b"") -> Step:
        """Let at most `limit` messages expire that are past their retention or belong to deleted topics; see
        `storage.expire_messages`. The change joins the store's batch.

        :raises StorageError: when they cannot.
        """
        now_ms = self.clock.now_ms()
        return expire_messages(
            self.store,
            now_ms - self.config.retention_ms,
            limit,
            lambda topic: self.topics.get(topic.decode(errors="replace")) is None,
            lambda topic: self.topics.kept_since(topic.decode(errors="replace"), now_ms),
            begin,
            lambda topic, queue: self.topics.begin_of(topic.decode(errors="replace"), queue),
        )

    def forget_deleted(self) -> bool:
        """Free the memory for deleted topics, and for messages that came into them since. No batch may be open. Return
        True when there may be more: then call it again in another turn of the reactor."""

        def is_known(topic: bytes) -> bool:
            return self.topics.get(topic.decode()) is not None

        unknown, more = self.store.forget_topics(is_known, self.parked.awaits, FORGOTTEN_AT_ONCE)
        for topic in unknown:
            self.quotas.forget_topic(topic.decode())
            self.stats.forget_entered(topic.decode())
        return more

    def message_queue(self, topic: str, number: int) -> MessageQueue:
        """Return a queue of this gateway as tools name it."""
        return MessageQueue(topic, self.config.broker_name, number)

    def topics_with_pending(self) -> list[str]:
        """Return the topics that hold pending messages, deleted ones too: to look for these in a hundred thousand
        others takes 0.1 s."""
        self.store.settled_reader()  # a batch that the look-up would have committed counts
        return [topic.decode() for topic in self.store.held_totals()]

    def topics_consumed_by(self, group: str) -> list[str]:
        """Return the topics in which a group has progress, and those where messages of these that it popped have come
        back, even if it has not popped there yet."""
        topics = {topic.decode() for topic in self.store.progress.of_group(group.encode())}
        back_in = {retry_topic(topic, group) for topic in topics}
        return sorted(topics | {name for name in back_in if self.topics.get(name) is not None})
