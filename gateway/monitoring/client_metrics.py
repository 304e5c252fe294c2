"""Prometheus metrics of the clients: how many are connected, and how far consumers are behind.

They are computed at each scrape, like all of `gateway.monitoring.metrics`. Names and labels are RocketMQ's
(BrokerMetricsManager, ConsumerLagCalculator).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator
from typing import Final, NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric

from gateway.broker import Broker
from gateway.clients import ConsumerGroup
from gateway.topics import Topic
from gateway.wire.group_topics import RETRY_PREFIX, retry_topic

QUEUES_AT_ONCE: Final = 500
"""Queues of which a group's lag is read in one piece, some 3 ms of work."""

_SYSTEM_GROUP: Final = "cid_rmq_sys_"
_OF_LAG: Final = ("consumer_group", "topic", "is_retry", "is_system")
_OF_CONSUMERS: Final = ("consumer_group", "language", "version", "consume_mode", "is_system")
_MODES: Final = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push", "CONSUME_POP": "pop"}
"""Upstream's names of the consume types in labels (ConsumeType.getTypeCN)."""

_V5_3_1: Final = 475
_V4_0_0: Final = 213
_V5_9_9: Final = 611
"""Upstream's last version with a name."""


class _Lag(NamedTuple):
    """Messages of a topic that a group has not confirmed, and how long the earliest has been in its queue, in ms."""

    messages: int
    latency_ms: int


def client_metrics(
    broker: Broker, common: tuple[str, ...], values: tuple[str, ...]
) -> Iterator[Metric | None]:
    """Yield the current figures, and None after each part of what was read for them: a group's members, its topics, and
    queues of them.

    :param common: names of the labels that all series have.
    :param values: their values.
    """
    yield _producers(broker, common, values)
    yield from _consumers(broker, common, values)
    yield from _lags(broker, common, values)


def version_name(version: int) -> str:
    """Return a client's version as labels show it. Upstream has two numbers for each release since 4.0.0, the first for
    its snapshot, and one name for all versions that are higher (MQVersion). An older version is shown as its number."""
    if version > _V5_9_9:
        return "higher_version"
    if version < _V4_0_0:
        return str(version)
    releases, is_final = divmod(version - _V5_3_1 + 1, 2)
    digits = "_".join(str(531 + releases))
    return f"v{digits}" if is_final else f"v{digits}_snapshot"


def _producers(broker: Broker, common: tuple[str, ...], values: tuple[str, ...]) -> Metric:
    family = GaugeMetricFamily(
        "rocketmq_producer_connections",
        "Clients in producer groups, counted once per group",
        labels=(*common, "language", "version"),
    )
    counts = Counter(
        (client.language.lower(), version_name(client.version))
        for _, members in broker.clients.producer_groups()
        for client in members
    )
    for labels, count in sorted(counts.items()):
        family.add_metric((*values, *labels), count)
    return family


def _consumers(
    broker: Broker, common: tuple[str, ...], values: tuple[str, ...]
) -> Iterator[Metric | None]:
    family = GaugeMetricFamily(
        "rocketmq_consumer_connections",
        "Clients in consumer groups, counted once per group",
        labels=(*common, *_OF_CONSUMERS),
    )
    for group in sorted(broker.clients.consumer_groups(), key=lambda group: group.name):
        mode = _MODES.get(str(group.data.consume_type), "unknown")
        counts = Counter(
            (client.language.lower(), version_name(client.version))
            for client in group.members.values()
        )
        for client_labels, count in sorted(counts.items()):
            one = (group.name, *client_labels, mode, _truth(_is_system(group.name)))
            family.add_metric((*values, *one), count)
        yield None
    yield family


def _lags(
    broker: Broker, common: tuple[str, ...], values: tuple[str, ...]
) -> Iterator[Metric | None]:
    labels = (*common, *_OF_LAG)
    messages = GaugeMetricFamily(
        "rocketmq_consumer_lag_messages",
        "Messages that an online group has not committed",
        labels=labels,
    )
    latency = GaugeMetricFamily(
        "rocketmq_consumer_lag_latency",
        "How long the earliest message that an online group has not committed has been in its queue, in ms",
        labels=labels,
    )
    now_ms = broker.clock.now_ms()
    for group in sorted(broker.clients.consumer_groups(), key=lambda group: group.name):
        for name in sorted(group.subscriptions):
            if name.startswith(RETRY_PREFIX):
                continue
            for is_retry in (False, True):
                topic = broker.topics.get(retry_topic(name, group.name) if is_retry else name)
                if topic is None:
                    continue
                lag = yield from _lag(broker, group, topic, now_ms, is_retry=is_retry)
                system = _truth(_is_system(group.name))
                one = (*values, group.name, name, _truth(is_retry), system)
                messages.add_metric(one, lag.messages)
                latency.add_metric(one, lag.latency_ms)
            yield None
    yield messages
    yield latency


def _lag(
    broker: Broker, group: ConsumerGroup, topic: Topic, now_ms: int, *, is_retry: bool
) -> Generator[None, None, _Lag]:
    """Return a group's lag in a topic, or in the one where a topic's popped messages come back for it (`is_retry`). Of
    that one every group begins at the oldest message. Yield None after some queues."""
    store = broker.store
    behind = 0
    earliest_ms: int | None = None
    for queue in store.readable_queues(topic.stored_name, topic.queues):
        if queue.number % QUEUES_AT_ONCE == QUEUES_AT_ONCE - 1:
            yield None
        offset = store.progress.get(group.name.encode(), topic.stored_name, queue.number)
        if offset is None and not is_retry:
            continue
        offset = max(offset or 0, queue.first)
        if offset >= queue.visible:
            continue
        behind += queue.visible - offset
        stored_ms = store.stored_ms(queue, offset)
        if stored_ms is not None and (earliest_ms is None or stored_ms < earliest_ms):
            earliest_ms = stored_ms
    return _Lag(behind, max(0, now_ms - earliest_ms) if earliest_ms is not None else 0)


def _is_system(group: str) -> bool:
    return group.lower().startswith(_SYSTEM_GROUP)


def _truth(value: bool) -> str:
    return "true" if value else "false"
