"""Reads the events of messages from pairs and commit logs: one row for each event."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
import pyarrow as pa

from gateway.wire import properties as names
from gateway.wire.bodies import BodyError, Heartbeat, read_body
from gateway.wire.codes import PullSysFlag, RequestCode, ResponseCode, SysFlag
from gateway.wire.messages import CRC_MASK, Message, MessageError, decode_messages, split_batch
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
"""A producer sent the message; `answer_code` is null if the recording has no answer."""
DELIVERED: Final = "delivered"
"""A consumer of `group` got the message, by a pull or a pop."""
PARKED: Final = "parked"
"""A broker stored the message for later (commit log)."""
ROLLED: Final = "rolled"
"""A broker moved a pending message that is due much later to the end of the log (commit log). That is no send."""
STORED: Final = "stored"
"""A broker stored the message in its topic (commit log)."""
DRAINED: Final = "drained"
"""A pull of a consumer of `group` found no more messages in a queue."""
SUBSCRIBED: Final = "subscribed"
"""A heartbeat, pull or pop of a consumer of `group` subscribed to `tags` of a topic; `*` is all."""
RECALLED: Final = "recalled"
"""A producer recalled the message, with success."""
RESCHEDULED: Final = "rescheduled"
"""The message got another due time, `due_ms`, with success (Tidegate only)."""
REPLACED: Final = "replaced"
"""A message (`message_id`) that was sent at `time_ns`, and accepted by `store_ms`, replaced the pending messages with
its key (`keys`) (Tidegate only)."""
PREPARED: Final = "prepared"
"""A half message was sent that, once committed, replaces the pending messages with its key (`keys`)."""
COMMITTED: Final = "committed"
"""The transaction of a half message (`message_id`) was committed; `store_ms` is the time of the answer, if any."""
UNANSWERED: Final = "unanswered"
"""A request to recall or reschedule the message has no recorded answer."""
CHANGED: Final = "changed"
"""A step of a bulk change (31007) aborted or rescheduled messages of `topic` with the tag `tags` and the key `keys`,
due from `asked_value` on and before `due_ms`; null means any. The answer does not list them. If `answer_code` is
null, there was no answer, and the change may not have happened. That may also be a change by key alone (31002,
31003), or a send that replaces messages with that key."""
PAUSED: Final = "paused"
"""From now on no message of `topic` fires. If `answer_code` is null, there was no answer, and the pause may not have
happened (Tidegate only)."""
RESUMED: Final = "resumed"
"""Messages of `topic` fire again, with those that became due meanwhile."""
UNREADABLE: Final = "unreadable"
"""A body that should have messages could not be read; `reason` says why."""

STORED_CODES: Final = (0, 10, 11, 12)
"""Answer codes of a send whose message was stored (SendStatus)."""
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
"""Codes of the requests that `messages_of_pair` reads."""

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
"""Topics of pending messages."""
_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LONG: Final = 1 << 63


def parse_levels(text: str) -> tuple[int, ...]:
    """Return the delays of a broker's `messageDelayLevel` in ms, level 1 first.

    :raises ValueError: if the text is not such a list.
    """
    try:
        return tuple(int(part[:-1]) * _UNITS_MS[part[-1]] for part in text.split(" "))
    except (KeyError, IndexError, ValueError):
        raise ValueError(f"{text!r} is no list of delay levels such as '1s 5s 10s'") from None


def asked_time(
    properties: str, now_ms: int, levels: tuple[int, ...]
) -> tuple[str | None, int | None, int | None]:
    """Return the kind of a message's delay, its value, and the due time, epoch ms; None without a delay.

    The precedence is as in HookUtils.handleScheduleMessage. Relative times count from `now_ms`.
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
    return value if abs(value) < _LONG // 2000 else None  # so that seconds from now fit too, in ms


def _bounded(text: str, bits: int) -> int:
    """Return a text as a signed number of so many bits. Raises ValueError if it is not one."""
    value = int(text)
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise ValueError(f"{text} is no number of {bits} bits")
    return value


def messages_of_pair(pair: Mapping[str, Any], levels: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """Yield the events in one request and its answer, as rows of `MESSAGES`.

    :param pair: the columns of `exchanges.ROWS`, with maps as lists of pairs.
    """
    code = pair["code"]
    ext = dict(pair["ext"] or ())
    place = {name: pair[name] for name in ("file", "position", "connection", "answer_code")}
    place["server"] = pair.get("server")  # rows of a replay have none: it has only one server
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
            asked = value = due_ms = None  # it becomes pending only with its commit
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
            "body_crc": zlib.crc32(body) & CRC_MASK,
        }
        key = find(own, names.DEBOUNCE) if names.DEBOUNCE in own else None
        # The answer to a batch does not have the number of replaced messages.
        is_replacing = len(parts) > 1 or answer.get("replaced", "0") != "0"
        if key is not None and pair["answer_code"] == ResponseCode.SUCCESS:
            if is_half:
                yield common | {"event": PREPARED, "message_id": message_id, "keys": key}
            elif is_replacing:  # within a batch the last message with the key remains
                replaced[key] = {"event": REPLACED, "message_id": message_id, "keys": key}
        elif key is not None and pair["answer_code"] is None and not is_half:
            # It concerns only messages that were sent before it.
            before = {"time_ns": pair["asked_ns"] - 1, "asked_value": 0}
            yield common | before | {"event": CHANGED, "keys": key}
    yield from (common | accepted | one for one in replaced.values())


def _order(
    properties: str, asked: str | None, due_ms: int | None, answer: Mapping[str, str]
) -> dict[str, Any] | None:
    """Return the event that a message causes for another one if it is an order; None for a real message."""
    if names.RESCHEDULE in properties:
        target = find(properties, names.RESCHEDULE)
        event = RESCHEDULED
        if target is not None and "recallHandle" in answer:
            handle = RecallHandle.parse(answer["recallHandle"])
            if handle.message_id != target:
                return None  # the broker does not support such orders
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
    """The outcome of the requests 31002 and 31003 for a message (`AbortOutcome`, `RescheduleOutcome`)."""

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
    """Yield the events that an unanswered request may have caused: for a message, a key, or a topic."""
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
    """Return the conditions by which a bulk change, or one by key, chooses messages."""
    return {
        "tags": ext.get("tag") or None,
        "keys": ext.get("key") or None,
        "asked_value": _bounded(ext.get("begin", "0"), 64),
        "due_ms": _bounded(ext["end"], 64) if "end" in ext else None,
    }


def _committed(
    pair: Mapping[str, Any], ext: Mapping[str, str], place: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield the event of a commit. Java clients commit oneway, so one without an answer counts as done."""
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
    if pair["code"] in PULLS:  # a pop does not tell from which place of the queue on it got all
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
    """Return the filter in a pull or a pop; an empty text if it has none, so that the heartbeat's counts."""
    if code == RequestCode.POP_MESSAGE:
        return ext.get("exp", "").strip()
    has_filter = _bounded(ext.get("sysFlag", "0"), 32) & PullSysFlag.SUBSCRIPTION
    return ext.get("subscription", "").strip() if has_filter else ""


def _subscribed(pair: Mapping[str, Any], place: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for consumer in read_body(pair["body"], Heartbeat).consumer_data_set:
        for subscription in consumer.subscription_data_set:
            yield place | {
                "event": SUBSCRIBED,
                "time_ns": pair["asked_ns"],
                "group": consumer.group_name,
                "topic": subscription.topic,
                "tags": subscription.sub_string or "*",
            }


def message_of_log(message: Message, levels: tuple[int, ...]) -> dict[str, Any]:
    """Return the event of a record of a commit log."""
    found = _of_record(message, levels) | {"event": STORED, "time_ns": message.store_ms * 1_000_000}
    if message.topic in PARKING:
        found |= {"event": PARKED, "topic": find(message.properties, names.REAL_TOPIC)}
        found["queue_id"] = _number(find(message.properties, names.REAL_QID))
        target = find(message.properties, names.TIMER_DEL_UNIQKEY)
        if target is not None:
            found |= {"event": RECALLED, "message_id": target.rpartition("+")[2]}
        elif is_rolled(message.properties):
            found["event"] = ROLLED
            if found["asked"] != "time":  # a relative one does not count from this record
                found["due_ms"] = _number(find(message.properties, names.TIMER_OUT_MS))
        elif found["asked"] in ("level", "seconds", "milliseconds"):
            found["due_ms"] = asked_time(message.properties, message.store_ms, levels)[2]
    return found


def is_rolled(properties: str) -> bool:
    """Whether a record of a pending message is the broker's own copy of an earlier one."""
    marks = (names.TIMER_ROLL_TIMES, names.TIMER_ROLL_LABEL)
    return any(find(properties, name) is not None for name in marks)


def _of_record(message: Message, levels: tuple[int, ...]) -> dict[str, Any]:
    properties = message.properties
    asked, value, due_ms = asked_time(properties, message.store_ms, levels)
    if asked != "time":
        due_ms = None  # a relative time counts from the send, not from this record
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
    """Whether a message is a half message."""
    return sys_flag & SysFlag.TRANSACTION_MASK == SysFlag.TRANSACTION_PREPARED


def message_batch(rows: Iterable[Mapping[str, Any]]) -> pa.RecordBatch:
    """Return rows as a batch of `MESSAGES`. Columns that a row lacks are null."""
    return pa.RecordBatch.from_pylist(list(rows), schema=MESSAGES)


def messages_of_pairs(
    batches: Iterable[pa.RecordBatch], levels: tuple[int, ...]
) -> Iterator[pa.RecordBatch]:
    """Yield the events in pairs, batch by batch; for `DataFrame.mapInArrow`."""
    for batch in batches:
        yield message_batch(
            event for pair in batch.to_pylist() for event in messages_of_pair(pair, levels)
        )
