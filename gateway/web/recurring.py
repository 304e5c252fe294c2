"""Recurring messages in the API: list, show, set, pause, resume and delete."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType, field

from gateway.access.policies import PUB, READ
from gateway.broker import Broker
from gateway.moments import write_moment
from gateway.router import NotFoundError
from gateway.web.endpoints import ApiError, Asker, Fields, Shown
from gateway.web.fields import Cursor, Limit, TopicName
from gateway.web.sending import Encoding, Sender, decode_body
from gateway.web.turns import Turns
from gateway.wire import properties as names
from gateway.wire.recurring_bodies import (
    RecurringChange,
    RecurringList,
    RecurringMessage,
    RecurringTimes,
)

SHOWN_TIMES = 10
"""Number of next times in a recurring message's page."""

RecurringName = Annotated[str, Meta(description="What the recurring message is called.")]
Cron = Annotated[str | None, Meta(description="A cron expression of five or six fields.")]
Every = Annotated[str | None, Meta(description="A period instead of that, such as `2m`.")]
Zone = Annotated[str | None, Meta(description="Time zone, such as `Europe/Berlin`; else UTC.")]
Start = Annotated[int | str | None, Meta(description="Nothing before this time.")]
End = Annotated[int | str | None, Meta(description="Nothing after this time.")]


class RecurringQuery(Fields):
    """A page of recurring messages, by topic and name."""

    topic: TopicName = ""
    limit: Limit = 100
    cursor: Cursor = ""


class RecurringPlace(Fields):
    """Identifies a recurring message."""

    topic: TopicName
    name: RecurringName


class RecurringOrder(RecurringPlace):
    """Identifies a recurring message, with an order to pause or resume it."""

    order: Annotated[Literal["pause", "resume"], Meta(description="What it is to do.")]


class RuleQuery(Fields):
    """A rule with either `cron` or `every`."""

    cron: Cron = None
    every: Every = None
    zone: Zone = None
    start: Start = None
    end: End = None


class RecurringBody(Fields):
    """A message and its rule with either `cron` or `every`."""

    body: Annotated[str, Meta(min_length=1)]
    encoding: Encoding = "utf-8"
    cron: Cron = None
    every: Every = None
    zone: Zone = None
    start: Start = None
    end: End = None
    count: Annotated[int | None, Meta(description="How many there are to be at most.")] = None
    misfire: Annotated[
        str | UnsetType, Meta(description="What becomes of those that were missed.")
    ] = UNSET
    tags: str = ""
    keys: Annotated[str, Meta(description="Keys, separated by blanks.")] = ""
    properties: dict[str, str] = field(default_factory=dict)
    queue: Annotated[int, Meta(ge=-1, description="Number of the queue; -1 for any.")] = -1
    flag: Annotated[int, Meta(description="The sender's own flag.", ge=-(1 << 31), lt=1 << 31)] = 0
    sys_flag: Annotated[
        int,
        Meta(description="How `body` is compressed, if it is, as a page has it.", ge=0, lt=1 << 31),
    ] = 0


class RecurringPage(Shown):
    """A recurring message with its body in base64, and its next times, epoch ms."""

    recurring: RecurringMessage
    times: list[int]


class RecurringSet(Shown):
    """The outcome, "set", "replaced" or "updated", and the recurring message. The latter is null if it has already
    ended, as one that fires once and starts now has."""

    outcome: str
    recurring: RecurringMessage | None


class RecurringEndpoints:
    """Handles the API's requests about recurring messages in the name of their user."""

    def __init__(self, broker: Broker, sender: Sender, turns: Turns) -> None:
        self._recurring = broker.recurring
        self._sender = sender
        self._turns = turns

    def list_recurring(self, asker: Asker, query: RecurringQuery) -> RecurringList:
        """List recurring messages by topic and name."""
        return self._recurring.page(asker.may, query.topic, cursor=query.cursor, limit=query.limit)

    def show_recurring(self, asker: Asker, query: RecurringPlace) -> RecurringPage:
        """Return one recurring message, with its body and its next times."""
        asker.check_topic(READ, query.topic)
        return RecurringPage(
            recurring=self._recurring.get(query.topic, query.name),
            times=list(self._recurring.next_times(query.topic, query.name, SHOWN_TIMES).times),
        )

    def preview_recurring(self, asker: Asker, query: RuleQuery) -> RecurringTimes:
        """Return the times at which a rule would fire if it were set now. Nothing is changed."""
        found = self._recurring.preview(
            SHOWN_TIMES,
            cron=query.cron,
            every=query.every,
            zone=query.zone,
            start=_text(query.start),
            end=_text(query.end),
        )
        return RecurringTimes(list(found.times), found.zone)

    async def put_recurring(
        self, asker: Asker, query: RecurringPlace, body: RecurringBody
    ) -> RecurringSet:
        """Set a recurring message, in place of the topic's recurring message of that name, if there is one."""
        if not body.cron and not body.every:
            # Without a rule it would be an ordinary message, and be delivered at once.
            raise ApiError(
                HTTPStatus.BAD_REQUEST,
                "a recurring message needs a cron expression or a period: cron or every",
            )
        if names.RECUR_CHANGE in body.properties:
            raise ApiError(
                HTTPStatus.BAD_REQUEST,
                f"the property {names.RECUR_CHANGE} pauses, resumes or deletes a recurring message, and does not "
                "set one: leave it out",
            )
        rule = {
            names.RECUR_NAME: query.name,
            names.RECUR_CRON: body.cron,
            names.RECUR_EVERY: body.every,
            names.RECUR_ZONE: body.zone,
            names.RECUR_START: _text(body.start),
            names.RECUR_END: _text(body.end),
            names.RECUR_COUNT: str(body.count) if body.count is not None else None,
            names.RECUR_MISFIRE: body.misfire if isinstance(body.misfire, str) else None,
            names.TAGS: body.tags or None,
            names.KEYS: body.keys or None,
        }
        properties = body.properties | {name: text for name, text in rule.items() if text}
        data = decode_body(body.body, body.encoding)
        answer = await self._sender.send(
            asker,
            query.topic,
            data,
            properties,
            body.queue,
            flag=body.flag,
            sys_flag=body.sys_flag,
        )
        try:
            recurring = self._recurring.get(query.topic, query.name)
        except NotFoundError:
            recurring = None
        return RecurringSet(outcome=answer.ext().get("recurring", ""), recurring=recurring)

    async def order_recurring(self, asker: Asker, query: RecurringOrder) -> RecurringChange:
        """Pause or resume a recurring message."""
        return await self._change(asker, query.order, query.topic, query.name)

    async def delete_recurring(self, asker: Asker, query: RecurringPlace) -> RecurringChange:
        """Delete a recurring message. Messages that it has already fired are kept."""
        return await self._change(asker, "delete", query.topic, query.name)

    async def _change(self, asker: Asker, order: str, topic: str, name: str) -> RecurringChange:
        asker.check_topic(PUB, topic)
        change = self._recurring.change(order, topic, name)
        await self._turns.stored()
        return change


def _text(moment: int | str | None) -> str | None:
    """Return a time as a property's text. In the property, 0, the beginning of 1970, must be written as a date."""
    if moment in (0, "0"):
        return write_moment(0)
    return str(moment) if isinstance(moment, int) else moment
