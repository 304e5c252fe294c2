"""JSON bodies about queues and how far groups are in them.

Maps keyed by queues are written as Java reads them, which is no JSON (see `dialect`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from gateway.wire.admin_bodies import DataVersion, subscription_data
from gateway.wire.bodies import MessageQueue, Subscription
from gateway.wire.dialect import map_by_objects

_encode = msgspec.json.Encoder().encode

_LAST_MS = 253_370_764_800_000
"""The year 9999: a damaged row may have any time, and dates have no more digits."""


class QueueEnds(NamedTuple):
    """A queue's ends, and when its last message entered it, in ms; 0 when it holds none (TopicOffset)."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    last_update_ms: int


class Progress(NamedTuple):
    """How far a group is in a queue (OffsetWrapper).

    `pull_offset` is behind the last message handed out, `last_ms` when the last consumed one entered the queue.
    """

    queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    pull_offset: int
    last_ms: int


class TimeSpan(NamedTuple):
    """When a queue's messages entered it, in ms (QueueTimeSpan): the oldest, the newest, and the last
    one that the group has consumed. `delay_ms` is how long the next one has waited.
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
    """Whether the group's filter lets it pass."""


def encode_topic_stats(queues: Iterable[QueueEnds], put_per_second: float) -> bytes:
    """The answer to 202 (TopicStatsTable)."""
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


def encode_consume_stats(progress: Iterable[Progress], per_second: float) -> bytes:
    """The answer to 208 (ConsumeStats)."""
    return _encode(_consume_stats(progress, per_second))


def encode_stats_of_group(group: str, topics: Sequence[tuple[Sequence[Progress], float]]) -> bytes:
    """What the answer to 317 says of a group: its progress and its messages a second in each of its topics."""
    return _encode({group: [_consume_stats(progress, rate) for progress, rate in topics]})


def encode_broker_consume_stats(
    broker_address: str, groups: Iterable[bytes], behind: int, in_flight: int
) -> bytes:
    """The answer to 317 (ConsumeStatsList).

    :param groups: what `encode_stats_of_group` says of each.
    :param behind: messages that they have not confirmed, together; `in_flight` of them they were handed.
    """
    return _encode(
        {
            "brokerAddr": broker_address,
            "consumeStatsList": msgspec.Raw(b"[" + b",".join(groups) + b"]"),
            "totalDiff": behind,
            "totalInflightDiff": in_flight,
        }
    )


def _consume_stats(progress: Iterable[Progress], per_second: float) -> dict[str, Any]:
    table = map_by_objects(
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
    return {"consumeTps": per_second, "offsetTable": table}


def encode_time_spans(spans: Iterable[TimeSpan]) -> bytes:
    """The answer to 303 (QueryConsumeTimeSpanBody)."""
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
    """The answer to 222 (ResetOffsetBody)."""
    return _encode({"offsetTable": map_by_objects(offsets)})


def encode_all_offsets(
    version: DataVersion,
    topics_of_groups: Mapping[str, Sequence[str]],
    offsets: Mapping[str, Mapping[int, int]],
) -> bytes:
    """The answer to 43 (ConsumerOffsetSerializeWrapper).

    :param offsets: by `topic@group`, the offset of each queue.
    """
    return _encode(
        {"dataVersion": version, "groupTopicMap": topics_of_groups, "offsetTable": offsets}
    )


def encode_delay_offsets(version: DataVersion) -> bytes:
    """The answer to 45 (DelayOffsetSerializeWrapper) of a broker whose delay levels have no offsets."""
    return _encode({"dataVersion": version, "offsetTable": {}})


def encode_queue_rows(
    min_offset: int,
    max_offset: int,
    rows: Sequence[QueueRow],
    subscription: Subscription | None,
    filter_data: str | None,
) -> bytes:
    """The answer to 321 (QueryConsumeQueueResponseBody)."""
    body: dict[str, Any] = {"filterData": filter_data} if filter_data is not None else {}
    body |= {"maxQueueIndex": max_offset, "minQueueIndex": min_offset, "queueData": rows}
    if subscription is not None:
        body["subscriptionData"] = subscription_data(subscription)
    return _encode(body)


def _moment(ms: int) -> str:
    """A time as UtilAll.timeMillisToHumanString2 writes it, in the machine's own time zone; `_LAST_MS` at most."""
    moment = datetime.fromtimestamp(min(ms, _LAST_MS) // 1000).astimezone()
    return f"{moment:%Y-%m-%d#%H:%M:%S}:{ms % 1000:03}"
