"""What happened to messages, read out of pairs and commit logs: one row for each event."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
import pyarrow as pa

from gateway.wire import properties as names
from gateway.wire.bodies import BodyError, parse_heartbeat
from gateway.wire.codes import PullSysFlag, RequestCode, ResponseCode, SysFlag
from gateway.wire.messages import Message, MessageError, decode_messages, split_batch
from gateway.wire.pending_bodies import BulkAnswer
from gateway.wire.properties import find
from gateway.wire.recall import RecallHandle, RecallHandleError
from spark_jobs.schemas import ddl

MESSAGES: Final = pa.schema(
    [
        ("event", pa.string()),
        ("file", pa.string()),
        ("position", pa.int64()),
        ("connection", pa.string()),
        ("server", pa.string()),
        ("time_ns", pa.int64()),
        ("asked_ns", pa.int64()),
        ("group", pa.string()),
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("message_id", pa.string()),
        ("tags", pa.string()),
        ("keys", pa.string()),
        ("asked", pa.string()),
        ("asked_value", pa.int64()),
        ("due_ms", pa.int64()),
        ("born_ms", pa.int64()),
        ("store_ms", pa.int64()),
        ("reconsume_times", pa.int32()),
        ("answer_code", pa.int32()),
        ("body_size", pa.int32()),
        ("body_crc", pa.int64()),
        ("reason", pa.string()),
    ]
)

DDL: Final = ddl(MESSAGES)

SENT: Final = "sent"
"""A producer sent it; `answer_code` is null where no answer was seen."""
DELIVERED: Final = "delivered"
"""A consumer of `group` was given it, by a pull or a pop."""
PARKED: Final = "parked"
"""A broker stored it for later (commit log)."""
STORED: Final = "stored"
"""A broker stored it in its topic (commit log)."""
DRAINED: Final = "drained"
"""A consumer of `group` was told that there is no more in a queue."""
SUBSCRIBED: Final = "subscribed"
"""A consumer of `group` said in a heartbeat, or where it asked for messages, that it takes `tags` of a topic; `*` is
all."""
RECALLED: Final = "recalled"
"""A producer took it back, with success."""
RESCHEDULED: Final = "rescheduled"
"""It was given another time, `due_ms`, with success; Tidegate's own."""
REPLACED: Final = "replaced"
"""A message (`message_id`) that was sent at `time_ns`, and accepted by `store_ms`, took the place of those with its
key (`keys`) that had not fired; Tidegate's own."""
PREPARED: Final = "prepared"
"""A half of a transaction was sent; when it is committed, it takes the place of those with its key (`keys`)."""
COMMITTED: Final = "committed"
"""The transaction of a half (`message_id`) was committed; `store_ms` is when that was answered, if it was."""
UNANSWERED: Final = "unanswered"
"""Somebody asked to take it back, or to give it another time, and no answer was seen."""
CHANGED: Final = "changed"
"""Messages of `topic` were taken back or given another time, in a step of a change of many (31007): which of those
with the tag `tags`, the key `keys`, due from `asked_value` on, and before `due_ms`, is not told. Null is any. Where
`answer_code` is null, no answer was seen, and they may have been: also by key alone (31002, 31003), or replaced by a
message with that key."""
PAUSED: Final = "paused"
"""From now on nothing of `topic` fires, or perhaps, where `answer_code` is null, as no answer was seen; Tidegate's
own."""
RESUMED: Final = "resumed"
"""It fires again, with what became due meanwhile."""
UNREADABLE: Final = "unreadable"
"""A body that should have messages and has something else; `reason` tells what."""

STORED_CODES: Final = (0, 10, 11, 12)
"""Answers to a send that say that the message was stored (SendStatus)."""
SENDS: Final = frozenset(
    {RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}
)
PULLS: Final = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})
CODES: Final = tuple(
    sorted(
        int(code)
        for code in SENDS
        | PULLS
        | {RequestCode.POP_MESSAGE, RequestCode.RECALL_MESSAGE, RequestCode.HEART_BEAT}
        | {RequestCode.ABORT_TIMERS, RequestCode.RESCHEDULE_TIMERS}
        | {RequestCode.BULK_CHANGE_TIMERS, RequestCode.END_TRANSACTION}
        | {RequestCode.PAUSE_TOPIC, RequestCode.RESUME_TOPIC}
    )
)
"""Requests that `messages_of_pair` reads something from."""

DEFAULT_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""MessageStoreConfig.messageDelayLevel."""

_LETTERS: Final = {
    "group": "a",
    "topic": "b",
    "queue": "e",
    "flags": "f",
    "born": "g",
    "properties": "i",
    "reconsumed": "j",
    "batch": "m",
}
_WORDS: Final = {
    "group": "producerGroup",
    "topic": "topic",
    "queue": "queueId",
    "flags": "sysFlag",
    "born": "bornTimestamp",
    "properties": "properties",
    "reconsumed": "reconsumeTimes",
    "batch": "batch",
}
PARKING: Final = frozenset({"SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"})
"""Topics of messages that wait for their time."""
_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LONG: Final = 1 << 63


def parse_levels(text: str) -> tuple[int, ...]:
    """Delays in ms, level 1 first, of a broker's `messageDelayLevel`.

    :raises ValueError: for what is no such text.
    """
    try:
        return tuple(int(part[:-1]) * _UNITS_MS[part[-1]] for part in text.split(" "))
    except (KeyError, IndexError, ValueError):
        raise ValueError(f"{text!r} is no list of delay levels such as '1s 5s 10s'") from None


def asked_time(
    properties: str, now_ms: int, levels: tuple[int, ...]
) -> tuple[str | None, int | None, int | None]:
    """How a message asks for a later delivery, the value it gives, and when that is, epoch ms.

    The precedence is that of HookUtils.handleScheduleMessage. Relative times count from `now_ms`.
    """
    if "DEL" not in properties:
        return None, None, None
    level = _number(find(properties, names.DELAY))
    if level is not None and level > 0 and levels:
        return "level", level, now_ms + levels[min(level, len(levels)) - 1]
    for name, asked, unit in (
        (names.TIMER_DELAY_SEC, "seconds", 1000),
        (names.TIMER_DELAY_MS, "milliseconds", 1),
    ):
        value = _number(find(properties, name))
        if value is not None:
            return asked, value, now_ms + value * unit
    for name in (names.TIMER_DELIVER_MS, names.START_DELIVER_TIME):
        value = _number(find(properties, name))
        if value is not None:
            return "time", value, value
    return None, None, None


def _number(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        value = int(text)
    except ValueError:
        return None
    return value if abs(value) < _LONG // 2000 else None  # seconds from now fit in as well


def _bounded(text: str, bits: int) -> int:
    """A number of so many bits. Raises ValueError for any other."""
    value = int(text)
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise ValueError(f"{text} is no number of {bits} bits")
    return value


def messages_of_pair(pair: Mapping[str, Any], levels: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """The events in one request and its answer, as rows of `MESSAGES`.

    :param pair: the columns of `exchanges.ROWS`; maps as lists of pairs.
    """
    code = pair["code"]
    ext = dict(pair["ext"] or ())
    place = {name: pair[name] for name in ("file", "position", "connection", "answer_code")}
    place["server"] = pair.get("server")  # that of a replay is one and the same
    try:
        if code in SENDS:
            yield from _sent(pair, ext, place, levels)
        elif code in PULLS or code == RequestCode.POP_MESSAGE:
            yield from _delivered(pair, ext, place, levels)
        elif code == RequestCode.HEART_BEAT:
            yield from _subscribed(pair, place)
        elif code == RequestCode.END_TRANSACTION:
            yield from _committed(pair, ext, place)
        elif pair["answer_code"] is None:
            yield from _unanswered(pair, ext, place)
        elif pair["answer_code"] != ResponseCode.SUCCESS:
            return
        elif code in (RequestCode.ABORT_TIMERS, RequestCode.RESCHEDULE_TIMERS):
            yield from _changed(pair, place)
        elif code == RequestCode.BULK_CHANGE_TIMERS:
            yield from _changed_in_bulk(pair, ext, place)
        elif code == RequestCode.PAUSE_TOPIC:
            yield place | {"event": PAUSED, "time_ns": pair["asked_ns"], "topic": ext["topic"]}
        elif code == RequestCode.RESUME_TOPIC:
            yield place | {"event": RESUMED, "time_ns": pair["answered_ns"], "topic": ext["topic"]}
        else:
            handle = RecallHandle.parse(ext.get("recallHandle", ""))
            yield place | {
                "event": RECALLED,
                "time_ns": pair["answered_ns"],
                "group": ext.get("producerGroup"),
                "topic": handle.topic,
                "message_id": handle.message_id,
                "due_ms": handle.due_ms,
            }
    except (
        *(BodyError, MessageError, RecallHandleError, KeyError, ValueError),
        msgspec.DecodeError,
    ) as error:
        yield place | {
            "event": UNREADABLE,
            "time_ns": pair["asked_ns"],
            "topic": ext.get("topic", ext.get("b")),
            "reason": f"request code {code}: {error}",
        }


def _sent(
    pair: Mapping[str, Any],
    ext: dict[str, str],
    place: dict[str, Any],
    levels: tuple[int, ...],
) -> Iterator[dict[str, Any]]:
    fields = _WORDS if pair["code"] == RequestCode.SEND_MESSAGE else _LETTERS
    properties = ext.get(fields["properties"], "")
    answer = dict(pair["answer_ext"] or ())
    asked_ms = pair["asked_ns"] // 1_000_000
    common = place | {
        "event": SENT,
        "time_ns": pair["asked_ns"],
        "group": ext.get(fields["group"]),
        "topic": ext.get(fields["topic"]),
        "queue_id": _bounded(answer.get("queueId", ext.get(fields["queue"], "-1")), 32),
        "born_ms": _bounded(ext.get(fields["born"], "0"), 64),
        "reconsume_times": _bounded(ext.get(fields["reconsumed"], "0"), 32),
    }
    if ext.get(fields["batch"]) in ("true", "1"):
        parts = [(item.body, item.properties) for item in split_batch(pair["body"])]
    else:
        parts = [(pair["body"], properties)]
    is_half = _is_half(_bounded(ext.get(fields["flags"], "0"), 32))
    accepted = {"time_ns": pair["asked_ns"], "store_ms": (pair["answered_ns"] or 0) // 1_000_000}
    replaced: dict[str, dict[str, Any]] = {}
    for body, own in parts:
        asked, value, due_ms = asked_time(own, asked_ms, levels)
        if is_half:
            asked = value = due_ms = None  # it begins to wait when it is committed, if it is
        if len(parts) == 1 and (order := _order(own, asked, due_ms, answer)) is not None:
            if pair["answer_code"] is None:
                order["event"] = UNANSWERED
            if pair["answer_code"] in (None, *STORED_CODES):
                yield common | {"time_ns": pair["answered_ns"] or pair["asked_ns"]} | order
            continue
        message_id = find(own, names.UNIQ_KEY)
        if message_id is None and len(parts) == 1:
            message_id = answer.get("transactionId")
        yield common | {
            "message_id": message_id,
            "tags": find(own, names.TAGS),
            "keys": find(own, names.KEYS),
            "asked": asked,
            "asked_value": value,
            "due_ms": due_ms,
            "body_size": len(body),
            "body_crc": zlib.crc32(body) & 0x7FFFFFFF,
        }
        key = find(own, names.DEBOUNCE) if names.DEBOUNCE in own else None
        # The answer to a batch does not tell how many were replaced.
        is_replacing = len(parts) > 1 or answer.get("replaced", "0") != "0"
        if key is not None and pair["answer_code"] == ResponseCode.SUCCESS:
            if is_half:
                yield common | {"event": PREPARED, "message_id": message_id, "keys": key}
            elif is_replacing:  # of those in a batch the last one is left
                replaced[key] = {"event": REPLACED, "message_id": message_id, "keys": key}
        elif key is not None and pair["answer_code"] is None and not is_half:
            # It is about those that were sent before it.
            before = {"time_ns": pair["asked_ns"] - 1, "asked_value": 0}
            yield common | before | {"event": CHANGED, "keys": key}
    yield from (common | accepted | one for one in replaced.values())


def _order(
    properties: str, asked: str | None, due_ms: int | None, answer: Mapping[str, str]
) -> dict[str, Any] | None:
    """What a message did to another one, where it is no message but an order."""
    if names.RESCHEDULE in properties:
        target = find(properties, names.RESCHEDULE)
        event = RESCHEDULED
        if target is not None and "recallHandle" in answer:
            handle = RecallHandle.parse(answer["recallHandle"])
            if handle.message_id != target:
                return None  # of a broker that does not know of such orders
            due_ms = handle.due_ms
    elif names.TIMER_DEL_UNIQKEY in properties and asked is not None:
        target = find(properties, names.TIMER_DEL_UNIQKEY)
        event = RECALLED
    else:
        return None
    if target is None:
        return None
    return {"event": event, "message_id": target.rpartition("+")[2], "due_ms": due_ms}


class _Changed(msgspec.Struct, rename="camel"):
    """What the requests 31002 and 31003 did to a message (`AbortOutcome`, `RescheduleOutcome`)."""

    outcome: str
    msg_id: str | None = None
    topic: str | None = None
    due_ms: int | None = None


class _AllChanged(msgspec.Struct):
    results: list[_Changed]


_CHANGES: Final = {"aborted": RECALLED, "rescheduled": RESCHEDULED}
_read_changes = msgspec.json.Decoder(_AllChanged).decode


def _changed(pair: Mapping[str, Any], place: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for one in _read_changes(pair["answer_body"] or b"").results:
        if one.outcome in _CHANGES:
            yield place | {
                "event": _CHANGES[one.outcome],
                "time_ns": pair["answered_ns"],
                "topic": one.topic,
                "message_id": one.msg_id,
                "due_ms": one.due_ms,
            }


def _unanswered(
    pair: Mapping[str, Any], ext: Mapping[str, str], place: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """What may have become of a message by its id or handle, of those with a key, or of a topic."""
    common = place | {"time_ns": pair["asked_ns"], "topic": ext.get("topic")}
    message_id = ext.get("id")
    if handle := ext.get("recallHandle") or ext.get("handle"):
        message_id = RecallHandle.parse(handle).message_id
    if pair["code"] == RequestCode.PAUSE_TOPIC:
        yield common | {"event": PAUSED}
    elif pair["code"] == RequestCode.BULK_CHANGE_TIMERS:
        if ext["action"] != "count":
            yield common | {"event": CHANGED} | _chosen(ext)
    elif message_id:
        yield common | {"event": UNANSWERED, "message_id": message_id}
    elif ext.get("key"):
        yield common | {"event": CHANGED} | _chosen(ext)


def _changed_in_bulk(
    pair: Mapping[str, Any], ext: Mapping[str, str], place: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    answer = msgspec.json.decode(pair["answer_body"] or b"", type=BulkAnswer)
    if ext["action"] != "count" and answer.messages:
        told = {"event": CHANGED, "time_ns": pair["answered_ns"], "topic": ext["topic"]}
        yield place | told | _chosen(ext)


def _chosen(ext: Mapping[str, str]) -> dict[str, Any]:
    """What the messages have that a change of many, or one by key, is about."""
    return {
        "tags": ext.get("tag") or None,
        "keys": ext.get("key") or None,
        "asked_value": _bounded(ext.get("begin", "0"), 64),
        "due_ms": _bounded(ext["end"], 64) if "end" in ext else None,
    }


def _committed(
    pair: Mapping[str, Any], ext: Mapping[str, str], place: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Java decides one-way: then it is taken as done."""
    is_commit = _bounded(ext.get("commitOrRollback", "0"), 32) == SysFlag.TRANSACTION_COMMIT
    if is_commit and pair["answer_code"] in (None, ResponseCode.SUCCESS):
        answered_ns = pair["answered_ns"]
        yield place | {
            "event": COMMITTED,
            "time_ns": pair["asked_ns"],
            "store_ms": None if answered_ns is None else answered_ns // 1_000_000,
            "group": ext.get("producerGroup"),
            "topic": ext.get("topic"),
            "message_id": ext.get("transactionId") or ext.get("msgId"),
        }


def _delivered(
    pair: Mapping[str, Any],
    ext: dict[str, str],
    place: dict[str, Any],
    levels: tuple[int, ...],
) -> Iterator[dict[str, Any]]:
    if pair["answer_code"] not in (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND):
        return
    common = place | {"time_ns": pair["answered_ns"], "group": ext["consumerGroup"]}
    wanted = _filter_of(pair["code"], ext)
    if wanted not in ("", "*"):
        yield common | {"event": SUBSCRIBED, "topic": ext["topic"], "tags": wanted}
    common["asked_ns"] = pair["asked_ns"]
    if pair["answer_code"] == ResponseCode.PULL_NOT_FOUND:
        yield common | {
            "event": DRAINED,
            "topic": ext["topic"],
            "queue_id": _bounded(ext["queueId"], 32),
            "queue_offset": _bounded(ext.get("queueOffset", "-1"), 64),
        }
        return
    for message in decode_messages(pair["answer_body"]):
        yield common | _of_record(message, levels) | {"event": DELIVERED}


def _filter_of(code: int, ext: Mapping[str, str]) -> str:
    """The filter that a pull or a pop has with it; else no letters, and that of the heartbeat counts."""
    if code == RequestCode.POP_MESSAGE:
        return ext.get("exp", "").strip()
    has_filter = _bounded(ext.get("sysFlag", "0"), 32) & PullSysFlag.SUBSCRIPTION
    return ext.get("subscription", "").strip() if has_filter else ""


def _subscribed(pair: Mapping[str, Any], place: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for consumer in parse_heartbeat(pair["body"]).consumer_data_set:
        for subscription in consumer.subscription_data_set:
            yield place | {
                "event": SUBSCRIBED,
                "time_ns": pair["asked_ns"],
                "group": consumer.group_name,
                "topic": subscription.topic,
                "tags": subscription.sub_string or "*",
            }


def message_of_log(message: Message, levels: tuple[int, ...]) -> dict[str, Any]:
    """The event that a record of a commit log tells of."""
    found = _of_record(message, levels) | {"event": STORED, "time_ns": message.store_ms * 1_000_000}
    if message.topic in PARKING:
        found |= {"event": PARKED, "topic": find(message.properties, names.REAL_TOPIC)}
        found["queue_id"] = _number(find(message.properties, names.REAL_QID))
        target = find(message.properties, names.TIMER_DEL_UNIQKEY)
        if target is not None:
            found |= {"event": RECALLED, "message_id": target.rpartition("+")[2]}
        elif found["asked"] in ("level", "seconds", "milliseconds"):
            found["due_ms"] = asked_time(message.properties, message.store_ms, levels)[2]
    return found


def _of_record(message: Message, levels: tuple[int, ...]) -> dict[str, Any]:
    properties = message.properties
    asked, value, due_ms = asked_time(properties, message.store_ms, levels)
    if asked != "time":
        due_ms = None  # a relative time counted from when it was sent, not from this record
    if _is_half(message.sys_flag):
        asked = value = due_ms = None
    return {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "message_id": find(properties, names.UNIQ_KEY),
        "tags": find(properties, names.TAGS),
        "keys": find(properties, names.KEYS),
        "asked": asked,
        "asked_value": value,
        "due_ms": due_ms,
        "born_ms": message.born_ms,
        "store_ms": message.store_ms,
        "reconsume_times": message.reconsume_times,
        "body_size": len(message.body),
        "body_crc": message.body_crc,
    }


def _is_half(sys_flag: int) -> bool:
    """Whether a message waits for the end of its transaction."""
    return sys_flag & SysFlag.TRANSACTION_MASK == SysFlag.TRANSACTION_PREPARED


def message_batch(rows: Iterable[Mapping[str, Any]]) -> pa.RecordBatch:
    """Rows as a batch of `MESSAGES`; what a row does not have is null."""
    return pa.RecordBatch.from_pylist(list(rows), schema=MESSAGES)


def messages_of_pairs(
    batches: Iterable[pa.RecordBatch], levels: tuple[int, ...]
) -> Iterator[pa.RecordBatch]:
    """The events in pairs, batch by batch; for `DataFrame.mapInArrow`."""
    for batch in batches:
        yield message_batch(
            event for pair in batch.to_pylist() for event in messages_of_pair(pair, levels)
        )
