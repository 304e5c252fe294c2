"""JSON bodies about queues and the progress of groups in them.

Maps keyed by queues are written in the form that Java reads, which is not plain JSON (see `dialect`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from gateway.wire.admin_bodies import DataVersion, subscription_data
from gateway.wire.bodies import MessageQueue, Subscription
from gateway.wire.dialect import entries_by_objects, joined_entries, map_by_objects

_encode = msgspec.json.Encoder().encode


class QueueEnds(NamedTuple):
    """A queue's ends, and when its last message entered it, epoch ms, or 0 if it holds none (TopicOffset)."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    last_update_ms: int


class Progress(NamedTuple):
    """A group's progress in a queue (OffsetWrapper).

    `pull_offset` is the offset after the last message handed out; `last_ms` is when the last consumed message entered
    the queue.
    """

    queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    pull_offset: int
    last_ms: int


class TimeSpan(NamedTuple):
    """When a queue's messages entered it, epoch ms (QueueTimeSpan): the oldest, the newest, and the last one that the
    group has consumed; -1 where there is none. `delay_ms` is how long the next one has waited.
    """

    queue: MessageQueue
    min_ms: int
    max_ms: int
    consumed_ms: int
    delay_ms: int


class QueueRow(msgspec.Struct, rename="camel"):
    """A message's entry in its queue (ConsumeQueueData)."""

    physic_offset: int
    physic_size: int
    tags_code: int
    eval: bool = False
    """Whether the message passes the group's filter."""


def encode_topic_stats(queues: Iterable[QueueEnds], put_per_second: float) -> bytes:
    """Return the answer to 202 (TopicStatsTable)."""
    table = map_by_objects(
        (
            ends.queue,
            {
                "lastUpdateTimestamp": ends.last_update_ms,
                "maxOffset": ends.max_offset,
                "minOffset": ends.min_offset,
            },
        )
        for ends in queues
    )
    return _encode({"offsetTable": table, "topicPutTps": put_per_second})


def encode_progress(progress: Iterable[Progress]) -> bytes:
    """Return the part of an answer to 208 or 317 about some of the queues."""
    return entries_by_objects(
        (
            one.queue,
            {
                "brokerOffset": one.broker_offset,
                "consumerOffset": one.consumer_offset,
                "lastTimestamp": one.last_ms,
                "pullOffset": one.pull_offset,
            },
        )
        for one in progress
    )


def encode_consume_stats(parts: Iterable[bytes], per_second: float) -> bytes:
    """Return the answer to 208 (ConsumeStats).

    :param parts: the parts from `encode_progress`.
    """
    return _encode(_consume_stats(parts, per_second))


def encode_stats_of_group(group: str, topics: Iterable[tuple[Iterable[bytes], float]]) -> bytes:
    """Return a group's part of the answer to 317.

    :param topics: for each topic the parts from `encode_progress`, and the group's messages per second.
    """
    return _encode({group: [_consume_stats(parts, rate) for parts, rate in topics]})


def encode_broker_consume_stats(
    broker_address: str, groups: Iterable[bytes], behind: int, in_flight: int
) -> bytes:
    """Return the answer to 317 (ConsumeStatsList).

    :param groups: the part of each group, from `encode_stats_of_group`.
    :param behind: the sum of messages that the groups have not confirmed.
    :param in_flight: how many of these have been handed out.
    """
    return _encode(
        {
            "brokerAddr": broker_address,
            "consumeStatsList": msgspec.Raw(b"[" + b",".join(groups) + b"]"),
            "totalDiff": behind,
            "totalInflightDiff": in_flight,
        }
    )


def _consume_stats(parts: Iterable[bytes], per_second: float) -> dict[str, Any]:
    return {"consumeTps": per_second, "offsetTable": joined_entries(parts)}


def encode_time_spans(spans: Iterable[TimeSpan]) -> bytes:
    """Return the answer to 303 (QueryConsumeTimeSpanBody)."""
    return _encode(
        {
            "consumeTimeSpanSet": [
                {
                    "consumeTimeStamp": span.consumed_ms,
                    "consumeTimeStampStr": _moment(span.consumed_ms),
                    "delayTime": span.delay_ms,
                    "maxTimeStamp": span.max_ms,
                    "maxTimeStampStr": _moment(span.max_ms),
                    "messageQueue": span.queue,
                    "minTimeStamp": span.min_ms,
                    "minTimeStampStr": _moment(span.min_ms),
                }
                for span in spans
            ]
        }
    )


def encode_offsets_by_queue(offsets: Iterable[tuple[MessageQueue, int]]) -> bytes:
    """Return the answer to 222 (ResetOffsetBody)."""
    return _encode({"offsetTable": map_by_objects(offsets)})


def encode_all_offsets(
    version: DataVersion,
    topics_of_groups: Mapping[str, Sequence[str]],
    offsets: Mapping[str, Mapping[int, int]],
) -> bytes:
    """Return the answer to 43 (ConsumerOffsetSerializeWrapper).

    :param offsets: by `topic@group`, the offset of each queue.
    """
    return _encode(
        {"dataVersion": version, "groupTopicMap": topics_of_groups, "offsetTable": offsets}
    )


def encode_delay_offsets(version: DataVersion) -> bytes:
    """Return the answer to 45 (DelayOffsetSerializeWrapper) of a broker whose delay levels have no offsets."""
    return _encode({"dataVersion": version, "offsetTable": {}})


def encode_queue_rows(
    min_offset: int,
    max_offset: int,
    rows: Sequence[QueueRow],
    subscription: Subscription | None,
    filter_data: str | None,
) -> bytes:
    """Return the answer to 321 (QueryConsumeQueueResponseBody)."""
    body: dict[str, Any] = {"filterData": filter_data} if filter_data is not None else {}
    body |= {"maxQueueIndex": max_offset, "minQueueIndex": min_offset, "queueData": rows}
    if subscription is not None:
        body["subscriptionData"] = subscription_data(subscription)
    return _encode(body)


def _moment(ms: int) -> str:
    """Return a time as UtilAll.timeMillisToHumanString2 writes it, in the machine's own time zone. It may be past the
    year 9999, the last of `datetime`: a damaged row may hold any time."""
    return f"{time.strftime('%Y-%m-%d#%H:%M:%S', time.localtime(ms // 1000))}:{ms % 1000:03}"
