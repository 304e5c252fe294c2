"""How a recurring message is stored and how lists show it, and the messages that it fires."""

from __future__ import annotations

from typing import Annotated

import msgspec

from gateway.intake import NewMessage
from gateway.moments import LATEST_EPOCH_MS
from gateway.recurring.recurrence import Rule
from gateway.topics import Topic
from gateway.wire import properties as names
from gateway.wire.fields import Int32
from gateway.wire.properties import find, parse
from gateway.wire.recurring_bodies import RecurringMessage
from storage import Recurring

ADDED_LATER = 1_024
"""Bytes that properties grow by when a message fires: name, planned time, id, and what every message gets."""


class Definition(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is stored of a recurring message: its rule and the message. `set_ms` is when the rule began. Values that no
    record can have are refused here: a damaged definition must not fail the batch in which it fires."""

    rule: Rule
    misfire: str
    set_ms: Annotated[int, msgspec.Meta(ge=0, le=LATEST_EPOCH_MS)]
    queue_id: Annotated[int, msgspec.Meta(ge=0)]
    flag: Int32
    sys_flag: Int32
    born_host: Annotated[bytes, msgspec.Meta(min_length=8, max_length=8)]
    body: bytes
    properties: str


encode_definition = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Definition).decode


def definition_of(one: Recurring | None) -> Definition | None:
    """Return the stored definition; None where there is none, or none that this version can read."""
    if one is None:
        return None
    try:
        return _decode(one.definition)
    except msgspec.DecodeError:
        return None


def occurrence(topic: Topic, one: Recurring, definition: Definition, planned_ms: int) -> NewMessage:
    """Return the message that enters the queue. Its born time is the planned time."""
    queue_id = definition.queue_id
    if queue_id >= topic.queues:
        # The topic has fewer queues now.
        queue_id %= max(1, topic.settings.write_queue_nums)
    return NewMessage(
        queue_id,
        definition.flag,
        definition.sys_flag,
        planned_ms,
        definition.born_host,
        0,
        definition.body,
        f"{definition.properties}{names.RECUR_NAME}\x01{one.name.decode()}\x02"
        f"{names.PLANNED_MS}\x01{planned_ms}\x02",
    )


def describe(one: Recurring, definition: Definition, *, full: bool = False) -> RecurringMessage:
    """Return a recurring message as lists show it.

    :param full: whether to include its body, properties and flags.
    """
    rule = definition.rule
    return RecurringMessage(
        topic=one.topic.decode(),
        name=one.name.decode(),
        state="paused" if one.paused else "active",
        next_ms=one.next_ms,
        fired=one.fired,
        cron=rule.cron,
        every=rule.every,
        zone=rule.zone,
        misfire=definition.misfire,
        start_ms=rule.start_ms,
        end_ms=rule.end_ms,
        count=rule.count,
        set_ms=definition.set_ms,
        queue_id=definition.queue_id,
        tags=find(definition.properties, names.TAGS) or "",
        keys=find(definition.properties, names.KEYS) or "",
        body_size=len(definition.body),
        body=definition.body if full else None,
        properties=parse(definition.properties) if full else None,
        flag=definition.flag if full else None,
        sys_flag=definition.sys_flag if full else None,
    )
