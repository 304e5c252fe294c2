"""The handlers of the HTTP API at the port that several workers share: what they answer, made one.

Requests and answers are those of a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from gateway.clock import Clock
from gateway.merged_pages import held_page, recurring_page
from gateway.merging import recurring_change
from gateway.moments import write_moment
from gateway.web.adding_up import add_groups, add_rates, add_timelines, add_topics
from gateway.web.endpoints import ApiError, Asker
from gateway.web.fields import NewTimeFields, read_bound
from gateway.web.messages import MessagePage, MessageQuery, SearchQuery, no_message
from gateway.web.overview import Rates, Status
from gateway.web.recurring import (
    RecurringBody,
    RecurringOrder,
    RecurringPage,
    RecurringPlace,
    RecurringQuery,
    RecurringSet,
    RuleQuery,
)
from gateway.web.relay import Relay, below, fields_of, refusal
from gateway.web.sending import NewMessageBody, SentMessage
from gateway.web.timeline import Timeline, TimelineQuery
from gateway.web.topics import GroupList, ListQuery, TopicList, TopicQuery
from gateway.wire.cursors import own_cursor
from gateway.wire.messages import parse_offset_msg_id
from gateway.wire.pending_bodies import (
    AbortAnswer,
    HeldPage,
    PauseAnswer,
    RescheduleAnswer,
)
from gateway.wire.recurring_bodies import RecurringChange, RecurringList, RecurringTimes

encode = msgspec.json.encode


class SharedMessages:
    """Finds, shows, sends and changes messages of all workers.

    :param worker_at: the name of the worker with an address, 8 bytes as offset ids have it.
    """

    def __init__(
        self, relay: Relay, clock: Clock, worker_at: Callable[[bytes], str | None]
    ) -> None:
        self._relay = relay
        self._clock = clock
        self._worker_at = worker_at

    async def timeline(self, asker: Asker, query: TimelineQuery) -> Timeline:
        """Messages that have not fired over time, by topic."""
        # Each worker would read `now` as a time of its own, and columns would not be the same.
        begin_ms, end_ms = query.span(self._clock)
        times = {"begin": write_moment(begin_ms), "end": write_moment(end_ms)}
        values = fields_of(query) | times
        parts = await self._relay.all(asker, "GET", "/timeline", Timeline, values)
        return add_timelines([part for _, part in parts])

    async def search_messages(self, asker: Asker, query: SearchQuery) -> HeldPage:
        """Messages by id, key, topic, tag, time and state, the next due first.

        A page can have fewer messages than `limit`, and none, before the last: go on while there is a `cursor`.
        """
        times = {"begin": write_moment(read_bound(query.begin, self._clock) or 0)}
        end_ms = read_bound(query.end, self._clock)
        if end_ms is not None:
            times["end"] = write_moment(end_ms)
        each = _from_cursor(self._relay, fields_of(query) | times, query.cursor)
        parts = await self._relay.all(asker, "GET", "/messages", HeldPage, each=each)
        return held_page(
            parts,
            named=bool(query.id or query.key),
            state=query.state,
            limit=query.limit,
            given=query.cursor,
        )

    async def send_message(self, asker: Asker, body: NewMessageBody) -> SentMessage:
        """Send a message, now or for later. It is answered once the message is on disk."""
        first = self._relay.first
        return await self._relay.one(
            asker, first, "POST", "/messages", SentMessage, body=encode(body)
        )

    async def show_message(self, asker: Asker, query: MessageQuery) -> MessagePage:
        """One message: its properties, the beginning of its body, and what has become of it."""
        path = below("messages", query.id)
        return await self._relay.one(asker, self._owner(query), "GET", path, MessagePage)

    async def abort_message(self, asker: Asker, query: MessageQuery) -> AbortAnswer:
        """Take a message back; the answer says whether it had not fired.

        Messages of its topic that were sent with the same id are taken back with it.
        """
        path = below("messages", query.id, "abort")
        return await self._relay.one(asker, self._owner(query), "POST", path, AbortAnswer)

    async def reschedule_message(
        self, asker: Asker, query: MessageQuery, body: NewTimeFields
    ) -> RescheduleAnswer:
        """Give a message another time; the answer says whether it had not fired.

        Messages of its topic that were sent with the same id are moved with it.
        """
        path = below("messages", query.id, "reschedule")
        owner = self._owner(query)
        return await self._relay.one(
            asker, owner, "POST", path, RescheduleAnswer, body=encode(body)
        )

    def _owner(self, query: MessageQuery) -> str:
        """The worker whose address an offset id has."""
        host, _ = parse_offset_msg_id(query.id)
        owner = self._worker_at(host)
        if owner is None:
            raise no_message(query.id)
        return owner


class SharedRecurring:
    """Lists, sets and changes what recurs at any worker."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    async def list_recurring(self, asker: Asker, query: RecurringQuery) -> RecurringList:
        """Recurring messages by topic and name."""
        each = _from_cursor(self._relay, fields_of(query), query.cursor)
        parts = await self._relay.all(asker, "GET", "/recurring", RecurringList, each=each)
        return recurring_page(parts, limit=query.limit, given=query.cursor)

    async def show_recurring(self, asker: Asker, query: RecurringPlace) -> RecurringPage:
        """One recurring message, with its body and its next times."""
        path = below("recurring", query.topic, query.name)
        parts = await self._relay.all(asker, "GET", path, RecurringPage, may_lack=True)
        return parts[0][1]

    async def preview_recurring(self, asker: Asker, query: RuleQuery) -> RecurringTimes:
        """When a rule would fire if it were set now. Nothing is changed."""
        parts = await self._relay.all(
            asker, "GET", "/recurring-times", RecurringTimes, fields_of(query)
        )
        return parts[0][1]

    async def put_recurring(
        self, asker: Asker, query: RecurringPlace, body: RecurringBody
    ) -> RecurringSet:
        """Have a message recur, in place of the topic's recurring message of that name, if there is one."""
        path = below("recurring", query.topic, query.name)
        try:
            parts = await self._relay.all(asker, "GET", path, RecurringPage, may_lack=True)
            owner = parts[0][0]
        except ApiError as error:
            if error.problem.status != HTTPStatus.NOT_FOUND:
                raise
            owner = self._relay.first
        return await self._relay.one(asker, owner, "PUT", path, RecurringSet, body=encode(body))

    async def order_recurring(self, asker: Asker, query: RecurringOrder) -> RecurringChange:
        """Let a recurring message rest, or go on."""
        path = below("recurring", query.topic, query.name, query.order)
        return await self._change(asker, "POST", path)

    async def delete_recurring(self, asker: Asker, query: RecurringPlace) -> RecurringChange:
        """Forget a recurring message. What has fired stays where it is."""
        return await self._change(asker, "DELETE", below("recurring", query.topic, query.name))

    async def _change(self, asker: Asker, method: str, path: str) -> RecurringChange:
        parts = await self._relay.all(asker, method, path, RecurringChange, may_lack=True)
        return recurring_change([part for _, part in parts])


class SharedLists:
    """Tells how all workers are doing, and what topics and groups there are.

    :param address: where clients ask for routes.
    """

    def __init__(self, relay: Relay, address: Callable[[], str]) -> None:
        self._relay = relay
        self._address = address

    async def show_status(self, asker: Asker) -> Status:
        """What the gateway is, whether it is well, and as whom it knows you."""
        each: dict[str, dict[str, object]] = {name: {} for name in self._relay.names}
        replies = await self._relay.replies(asker, "GET", "/status", each)
        parts: dict[str, Status] = {}
        reasons: list[str] = []
        for name, reply in replies.items():
            if reply is None:
                reasons.append(f"{name} does not answer")
            elif reply.status != HTTPStatus.OK:
                raise refusal(reply)
            else:
                parts[name] = part = msgspec.json.decode(reply.body, type=Status)
                reasons += [f"{name}: {reason}" for reason in part.reasons]
        if not parts:
            raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "no worker answers; ask again")
        known = list(parts.values())
        return msgspec.structs.replace(
            known[0],
            broker=", ".join(self._relay.names),
            address=self._address(),
            now_ms=max(part.now_ms for part in known),
            started_ms=min(part.started_ms for part in known),
            reasons=reasons,
            recall_enabled=all(part.recall_enabled for part in known),
            max_delay_ms=min(part.max_delay_ms for part in known),
        )

    async def show_rates(self, asker: Asker) -> Rates:
        """How fast messages come and go, how late they fire, and what the disk has."""
        parts = await self._relay.all(asker, "GET", "/rates", Rates)
        return add_rates([part for _, part in parts])

    async def list_topics(self, asker: Asker, query: ListQuery) -> TopicList:
        """Topics, with how many messages they hold."""
        parts = await self._relay.all(asker, "GET", "/topics", TopicList, fields_of(query))
        return add_topics([part for _, part in parts], query)

    async def pause_topic(self, asker: Asker, query: TopicQuery) -> PauseAnswer:
        """Let nothing of a topic fire from now on. What is due waits, and can be found, moved and aborted."""
        return await self._set_paused(asker, query, "pause")

    async def resume_topic(self, asker: Asker, query: TopicQuery) -> PauseAnswer:
        """Let a topic fire again, first what waits."""
        return await self._set_paused(asker, query, "resume")

    async def _set_paused(self, asker: Asker, query: TopicQuery, order: str) -> PauseAnswer:
        path = below("topics", query.topic, order)
        parts = await self._relay.all(asker, "POST", path, PauseAnswer, may_lack=True)
        return PauseAnswer(any(part.changed for _, part in parts))

    async def list_groups(self, asker: Asker, query: ListQuery) -> GroupList:
        """Consumer groups, with who is online and how far they are."""
        parts = await self._relay.all(asker, "GET", "/groups", GroupList, fields_of(query))
        return add_groups([part for _, part in parts], query)

    async def show_openapi(self, asker: Asker) -> dict[str, Any]:
        """This document."""
        first = self._relay.first
        return await self._relay.one(asker, first, "GET", "/openapi.json", dict[str, Any])


def _from_cursor(
    relay: Relay, fields: Mapping[str, object], cursor: str
) -> Mapping[str, Mapping[str, object]]:
    """The fields of a page's query for each worker that has not told all of its part."""
    own = {name: own_cursor(cursor, name) for name in relay.names}
    each = {name: {**fields, "cursor": text} for name, text in own.items() if text is not None}
    if not each:
        raise ApiError(HTTPStatus.BAD_REQUEST, "the cursor is not one of these workers'")
    return each
