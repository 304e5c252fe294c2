"""Requests of the command line about recurring messages. All functions raise ClientError and RefusalError."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from gateway.client import RefusalError, RemotingClient, ask_for, successful
from gateway.moments import write_moment
from gateway.wire.codes import RequestCode
from gateway.wire.fields import to_ext
from gateway.wire.headers import SendMessageV2
from gateway.wire.properties import join
from gateway.wire.recurring_bodies import (
    RecurringChange,
    RecurringList,
    RecurringMessage,
    RecurringTimes,
)

_TEMPLATE = "TBW102"
"""The topic whose settings are the template for a topic that a send creates."""

_MADE_QUEUES = 8


class Done(msgspec.Struct, frozen=True, rename="camel"):
    """What was done to a recurring message (see `RecurringChange`), and how it is now; times are epoch ms."""

    outcome: str
    topic: str
    name: str
    state: str
    next_ms: int


def list_recurring(
    client: RemotingClient, *, topic: str | None = None, full: bool = False
) -> list[RecurringMessage]:
    """Return all recurring messages, or those of one topic; with `full`, with their bodies and properties."""
    found: list[RecurringMessage] = []
    cursor: str | None = None
    while True:
        asked = {"topic": topic, "full": "true" if full else None, "cursor": cursor}
        page = ask_for(client, RequestCode.LIST_RECURRING, asked, RecurringList)
        found += page.recurring
        cursor = page.cursor
        if cursor is None:
            return found


def change_recurring(client: RemotingClient, topic: str, name: str, change: str) -> Done:
    """Pause, resume or delete a recurring message: `change` is "pause", "resume" or "delete"."""
    asked = {"topic": topic, "name": name, "change": change}
    done = ask_for(client, RequestCode.CHANGE_RECURRING, asked, RecurringChange)
    return Done(done.outcome, topic, name, done.recurring.state, done.recurring.next_ms)


def next_times(client: RemotingClient, **asked: str | int | None) -> RecurringTimes:
    """Return when a recurring message fires next (`topic`, `name`), or when a rule would (`cron`, `every`, `zone`,
    `start`, `end`); `times` is how many times to return."""
    return ask_for(client, RequestCode.NEXT_RECURRING, asked, RecurringTimes)


def set_recurring(
    client: RemotingClient,
    topic: str,
    name: str,
    body: bytes,
    properties: Mapping[str, str],
    rule: Mapping[str, str | None],
    queue: int | None = None,
    flag: int = 0,
    sys_flag: int = 0,
) -> Done:
    """Set a recurring message. Without a queue the gateway chooses one.

    :param rule: cron, every, zone, start, end, count and misfire, as in the properties; None is left out.
    :param sys_flag: says how the body is compressed, if it is.
    """
    # A broker without recurring messages would deliver the message at once. There this request fails first.
    next_times(client, times=1, **{one: rule.get(one) for one in _OF_TIMES})
    own = {f"TIDEGATE_{one.upper()}": value for one, value in rule.items() if value is not None}
    try:
        text = join({**properties, **own, "TIDEGATE_NAME": name})
    except ValueError as error:
        raise RefusalError(str(error)) from None
    fields = SendMessageV2(
        producer_group="tidegate-recurring",
        topic=topic,
        default_topic=_TEMPLATE,
        default_topic_queue_nums=_MADE_QUEUES,
        queue_id=-1 if queue is None else queue,
        sys_flag=sys_flag,
        born_timestamp=time.time_ns() // 1_000_000,
        flag=flag,
        properties=text,
    )
    ext = successful(client.ask(RequestCode.SEND_MESSAGE_V2, to_ext(fields), body)).ext()
    return Done(ext["recurring"], topic, name, ext["recurringState"], int(ext["nextMs"]))


_OF_TIMES = ("cron", "every", "zone", "start", "end")


def restore_recurring(client: RemotingClient, one: RecurringMessage) -> Done:
    """Set a recurring message as a full list has it; pause it if it was paused."""
    if one.body is None or one.properties is None:
        raise RefusalError(
            f"{one.name} has no body: write the file with 'tidegate recurring list --full --json'"
        )
    rule = {
        "cron": one.cron,
        "every": one.every,
        "zone": one.zone,
        "start": _moment(one.start_ms),
        "end": _moment(one.end_ms),
        "count": str(one.count) if one.count is not None else None,
        "misfire": one.misfire,
    }
    done = set_recurring(
        client,
        one.topic,
        one.name,
        one.body,
        one.properties,
        rule,
        one.queue_id,
        one.flag or 0,
        one.sys_flag or 0,
    )
    if one.state == "paused":
        done = change_recurring(client, one.topic, one.name, "pause")
    return done


def _moment(epoch_ms: int | None) -> str | None:
    return None if epoch_ms is None else write_moment(epoch_ms)
