"""Prometheus metrics. Every figure is read when it is scraped, so nothing is paid for between two scrapes.

Names and labels are those of RocketMQ 5.5.0 where it has the same figure (DefaultStoreMetricsManager,
BrokerMetricsManager); the others begin with `tidegate_`.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from twisted.logger import Logger

from gateway.broker import Broker
from gateway.limits import ATTRIBUTES
from gateway.monitoring.client_metrics import client_metrics
from gateway.monitoring.meter import Distribution
from gateway.quotas import COUNTED
from gateway.wire.messages import decode_message
from recording.writer import Counts
from storage import StorageError, as_told, count_overdue, count_soon, usage_of

SAMPLES_AT_ONCE = 250
"""Samples of a family that are written in one piece, some 1 ms of work."""

SNAPSHOT_BOUNDS = (5, 60, 300, 900, 3_600, 14_400, 28_800, 86_400)
"""Bounds of the snapshot, in seconds from now (TimerMetrics)."""

_COMMON = ("cluster", "node_type", "node_id")


class Metrics:
    """A gateway's figures, as the text that Prometheus reads.

    :param connections: returns how many connections are open.
    :param recorded: returns the counts of the traffic that was recorded.
    :param not_ready: returns the reasons why the gateway is not ready for traffic; empty if it is.
    """

    log = Logger()

    def __init__(
        self,
        broker: Broker,
        connections: Callable[[], int],
        recorded: Callable[[], Counts],
        not_ready: Callable[[], list[str]],
    ) -> None:
        self._broker = broker
        self._not_ready = not_ready
        self._recorded = recorded
        self._connections = connections
        config = broker.config
        self._labels = (config.cluster_name, "broker", config.broker_name)
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def pieces(self) -> Iterator[bytes]:
        """Yield all figures in Prometheus' text format 0.0.4, in pieces that each take little work: with 20,000 topics
        all of it takes most of a second. Anything may happen between two pieces."""
        for family in self._families():
            if family is None:
                yield b""
            else:
                yield from _written(family)
        yield generate_latest(self._registry)

    def _families(self) -> Iterator[Metric | None]:
        """Yield all figures, each as it is when its turn comes. Yield None while a figure of many samples is still
        being read: others may have a turn there, as after each figure."""
        broker = self._broker
        for part in (
            self._timers(),
            self._snapshot(),
            self._overdue(),
            self._paused(),
            self._recurring(),
            self._traffic(),
            self._quotas(),
            self._heartbeat(),
            self._storage(),
            self._stored(),
            client_metrics(broker, _COMMON, self._labels),
            self._capture(),
        ):
            yield from self._readable(part)
        yield self._gauge(
            "tidegate_ready",
            "1 while /ready answers 200, 0 while it answers 503 and says why",
            not self._not_ready(),
        )
        yield self._gauge(
            "tidegate_connections",
            "Open connections of clients, without those to the HTTP port",
            self._connections(),
        )
        yield self._gauge(
            "tidegate_parked_pulls",
            "Pulls, pops and notifications that wait for a message",
            len(broker.parked),
        )
        yield self._gauge(
            "rocketmq_topic_number",
            "Topics, also those of the system and of groups",
            sum(1 for _ in broker.topics),
        )
        yield self._gauge(
            "rocketmq_consumer_group_number",
            "Consumer groups that have settings",
            sum(1 for _ in broker.groups),
        )
        groups = sum(1 for _ in broker.clients.consumer_groups())
        yield self._gauge(
            "tidegate_consumer_groups", "Consumer groups with a connected client", groups
        )

    def _readable(self, part: Iterator[Metric | None]) -> Iterator[Metric | None]:
        """Yield figures up to one that LMDB cannot read. The others say what else is wrong then."""
        try:
            yield from part
        except Exception as failure:
            error = as_told(failure)
            if not isinstance(error, StorageError):
                raise
            self.log.error("some metrics are left out: {error}", error=str(error))

    def _timers(self) -> Iterator[Metric | None]:
        broker = self._broker
        by_topic = (*_COMMON, "topic")
        # No variable here keeps a family: to free the samples of several at once takes some time.
        yield from self._by_topic(
            GaugeMetricFamily("rocketmq_timing_messages", "Pending messages", labels=by_topic),
            broker.store.held_totals(),
        )
        yield from self._by_topic(
            CounterMetricFamily(
                "rocketmq_timer_enqueue", "Timed messages accepted", labels=by_topic
            ),
            broker.store.timed,
        )
        yield from self._by_topic(
            CounterMetricFamily("rocketmq_timer_dequeue", "Messages fired", labels=by_topic),
            broker.store.fired,
        )
        # The commit that acknowledges a message also puts it among the timers: nothing lags behind.
        yield self._gauge(
            "rocketmq_timer_enqueue_lag", "Messages accepted but without a timer yet", 0
        )
        yield self._gauge(
            "rocketmq_timer_enqueue_latency",
            "How long messages without a timer have waited, in ms",
            0,
        )

    def _overdue(self) -> Iterator[Metric | None]:
        broker = self._broker
        due_ms = broker.firing.next_due_ms
        now_ms = broker.clock.now_ms()
        late_ms = max(0, now_ms - due_ms) if due_ms is not None else 0
        yield self._gauge(
            "rocketmq_timer_dequeue_latency", "How overdue the earliest message is, in ms", late_ms
        )
        overdue = (yield from count_overdue(broker.store, now_ms)) if late_ms else 0
        yield self._gauge(
            "rocketmq_timer_dequeue_lag",
            "Overdue messages, without those of paused topics",
            overdue,
        )

    def _recurring(self) -> Iterator[Metric]:
        broker = self._broker
        yield self._gauge(
            "tidegate_recurring",
            "Recurring messages, including paused ones",
            broker.recurring.count(),
        )
        yield self._counter(
            "tidegate_recurring_fired",
            "Messages made by recurring ones",
            broker.firing.recurred,
        )
        yield self._counter(
            "tidegate_recurring_misfires",
            "How often a recurring message was later than recurring_misfire_threshold",
            broker.firing.misfired,
        )

    def _paused(self) -> Iterator[Metric | None]:
        waiting = GaugeMetricFamily(
            "tidegate_paused_messages",
            "Due messages that wait because their topic is paused",
            labels=(*_COMMON, "topic"),
        )
        paused = self._broker.store.paused
        for number, topic in enumerate(paused.topics(), 1):
            if number % SAMPLES_AT_ONCE == 0:
                yield None
            # It may have been resumed in an earlier turn.
            if pause := paused.get(topic):
                waiting.add_metric((*self._labels, topic.decode()), pause.waiting)
        yield waiting

    def _snapshot(self) -> Iterator[Metric | None]:
        """Count the messages due between each of upstream's bounds (TimerMetrics.timerDist) and the bound before it.
        Yield nothing where counting them would hold up the gateway."""
        broker = self._broker
        counts = yield from count_soon(broker.store, broker.clock.now_ms(), SNAPSHOT_BOUNDS)
        if counts is None:
            return
        family = GaugeMetricFamily(
            "rocketmq_timer_message_snapshot",
            "Messages due up to a bound, in seconds from now, and after the previous bound",
            labels=(*_COMMON, "timer_bound_s"),
        )
        for bound, count in zip(SNAPSHOT_BOUNDS, counts, strict=True):
            family.add_metric((*self._labels, str(bound)), count)
        yield family

    def _traffic(self) -> Iterator[Metric | None]:
        """Yield what entered queues, and what consumers were handed."""
        by_topic, by_group = (*_COMMON, "topic"), (*_COMMON, "topic", "consumer_group")
        families = {
            "TOPIC_PUT_NUMS": CounterMetricFamily(
                "rocketmq_messages_in",
                "Messages that entered their queue, timed ones when they fire",
                labels=by_topic,
            ),
            "TOPIC_PUT_SIZE": CounterMetricFamily(
                "rocketmq_throughput_in",
                "Bytes of messages that entered their queue",
                labels=by_topic,
            ),
            "GROUP_GET_NUMS": CounterMetricFamily(
                "rocketmq_messages_out", "Messages delivered to consumers", labels=by_group
            ),
            "GROUP_GET_SIZE": CounterMetricFamily(
                "rocketmq_throughput_out",
                "Bytes of messages delivered to consumers",
                labels=by_group,
            ),
        }
        for counter in self._broker.stats.counters():
            if counter is None:
                yield None
                continue
            name, key, value = counter
            family = families.get(name)
            if family is not None:
                topic, _, group = key.partition("@")
                family.add_metric((*self._labels, topic, *([group] if group else [])), value)
        yield from families.values()
        accepted = self._broker.stats.put
        yield self._counter("tidegate_accepted", "Messages accepted, timed or not", accepted)

    def _quotas(self) -> Iterator[Metric | None]:
        """Yield the topics' own limits, and how many sends were refused for any limit."""
        limits = GaugeMetricFamily(
            "tidegate_topic_limit",
            "Limits set on topics, in messages, bytes, messages per second or ms",
            labels=(*_COMMON, "topic", "limit"),
        )
        refusals: dict[tuple[str, str], int] = {}
        for number, topic in enumerate(list(self._broker.topics), 1):
            if number % SAMPLES_AT_ONCE == 0:
                yield None
            for name, value in zip(ATTRIBUTES, topic.limits, strict=True):
                if value is not None:
                    limits.add_metric((*self._labels, topic.name, name), value)
                    # With a row before the first refusal, Prometheus counts that one too.
                    if name in COUNTED:
                        refusals[topic.name, name] = 0
        yield limits
        size = GaugeMetricFamily(
            "tidegate_held_bytes",
            "Bytes of pending messages",
            labels=(*_COMMON, "topic"),
        )
        yield from self._by_topic(size, self._broker.store.held.sizes)
        refused = CounterMetricFamily(
            "tidegate_quota_refusals",
            "Sends refused because of a topic's limits",
            labels=(*_COMMON, "topic", "limit"),
        )
        refusals |= self._broker.quotas.refusals
        for number, ((name, limit), count) in enumerate(refusals.items(), 1):
            if number % SAMPLES_AT_ONCE == 0:
                yield None
            refused.add_metric((*self._labels, name, limit), count)
        yield refused

    def _heartbeat(self) -> Iterator[Metric]:
        meter = self._broker.committer.meter
        yield self._histogram(
            "tidegate_commit_seconds",
            "Time of a commit, in seconds, mostly the disk's sync",
            meter.commit_seconds,
        )
        yield self._histogram(
            "tidegate_write_seconds",
            "Time of a commit's write to the redo log and its sync, in seconds",
            meter.write_seconds,
        )
        yield self._histogram(
            "tidegate_checkpoint_seconds",
            "Time of a checkpoint in which nothing else is done, in seconds",
            meter.checkpoint_seconds,
        )
        yield self._histogram(
            "tidegate_checkpoint_sync_seconds",
            "Time until the disk had a checkpoint, in seconds, in a thread beside the gateway's work",
            meter.checkpoint_sync_seconds,
        )
        yield self._histogram(
            "tidegate_batch_requests",
            "Number of requests that a commit answered",
            meter.batch_answers,
        )
        yield self._histogram(
            "tidegate_firing_error_seconds",
            "How late timed messages entered their queue, in seconds, each as late as the earliest of its step",
            meter.firing_error,
        )
        yield self._counter(
            "tidegate_refused_batches", "Batches that could not be stored", meter.refused
        )
        yield self._counter(
            "tidegate_failed_checkpoints",
            "Checkpoints that could not be written; nothing is lost",
            meter.failed_checkpoints,
        )

    def _storage(self) -> Iterator[Metric]:
        usage = usage_of(self._broker.store)
        rows = (
            ("tidegate_lmdb_size_bytes", "Size of data.mdb at the last checkpoint", usage.size),
            (
                "tidegate_lmdb_used_bytes",
                "Bytes in pages with data, also of those that the next checkpoint writes to data.mdb",
                usage.used,
            ),
            (
                "tidegate_lmdb_free_bytes",
                "Bytes of data.mdb in pages that are reused before the file grows",
                usage.free,
            ),
            (
                "tidegate_lmdb_map_bytes",
                "Address space of LMDB, which takes no memory",
                usage.map_size,
            ),
            (
                "tidegate_disk_free_bytes",
                "Free space of the disk of the data folder",
                usage.disk_free,
            ),
            (
                "tidegate_stored_messages",
                "Messages stored, in any state, and those that are still to be removed",
                usage.messages,
            ),
            ("rocketmq_half_messages", "Undecided transactions", usage.halves),
        )
        for name, meaning, value in rows:
            yield self._gauge(name, meaning, value)
        yield self._counter(
            "tidegate_damaged_messages",
            "Damaged messages, queues and rows met since the start; see docs/disaster-recovery.md",
            len(self._broker.store.damaged),
        )

    def _stored(self) -> Iterator[Metric]:
        """Yield the figures that upstream has of its storage."""
        broker = self._broker
        disk = shutil.disk_usage(broker.store.environment.folder)
        yield self._gauge(
            "rocketmq_storage_size",
            "Used space of the disk of the data folder, by anybody, in bytes",
            disk.used,
        )
        # The commit that stores a message also stores all that leads to it.
        yield self._gauge(
            "rocketmq_storage_dispatch_behind_bytes", "Bytes that are not indexed yet", 0
        )
        oldest = broker.store.oldest_record()
        if oldest is not None:
            age_ms = max(0, broker.clock.now_ms() - decode_message(oldest).store_ms)
            yield self._gauge(
                "rocketmq_storage_message_reserve_time",
                "How long ago the oldest stored message was accepted, in ms",
                age_ms,
            )

    def _capture(self) -> Iterator[Metric]:
        counts = self._recorded()
        yield self._counter(
            "tidegate_capture_frames",
            "Frames that passed while the setting capture recorded, lost ones included",
            counts.frames,
        )
        yield self._counter(
            "tidegate_capture_lost",
            "Records of the setting capture that could not be written",
            counts.lost,
        )
        yield self._counter(
            "tidegate_capture_bytes", "Bytes of capture files written", counts.bytes
        )
        yield self._gauge(
            "tidegate_capture_failing",
            "1 while traffic should be recorded but cannot be; the log says why",
            counts.trouble is not None,
        )

    def _gauge(self, name: str, meaning: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, meaning, labels=_COMMON)
        family.add_metric(self._labels, value)
        return family

    def _counter(self, name: str, meaning: str, value: float) -> Metric:
        family = CounterMetricFamily(name, meaning, labels=_COMMON)
        family.add_metric(self._labels, value)
        return family

    def _by_topic(
        self, family: GaugeMetricFamily | CounterMetricFamily, counts: Mapping[bytes, int]
    ) -> Iterator[Metric | None]:
        for number, topic in enumerate(list(counts), 1):
            # Its last message may have gone in an earlier turn.
            if topic in counts:
                family.add_metric((*self._labels, topic.decode()), counts[topic])
            if number % SAMPLES_AT_ONCE == 0:
                yield None
        yield family

    def _histogram(self, name: str, meaning: str, values: Distribution) -> Metric:
        family = HistogramMetricFamily(name, meaning, labels=_COMMON)
        family.add_metric(self._labels, values.cumulative(), values.total)
        return family


class _Single(Collector):
    """Collects a single family."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


def _written(family: Metric) -> Iterator[bytes]:
    """Yield a family as text, in pieces."""
    part = copy.copy(family)
    for begin in range(0, max(1, len(family.samples)), SAMPLES_AT_ONCE):
        part.samples = family.samples[begin : begin + SAMPLES_AT_ONCE]
        text = generate_latest(_Single(part))
        # Only the first piece keeps the two lines with the family's meaning and type.
        yield text.split(b"\n", 2)[2] if begin else text
