"""The handlers of the HTTP API at the port that several workers share. They merge the workers' answers into one.

Requests and answers are the same as those of a single worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from twisted.internet.defer import Deferred

from gateway.clock import Clock
from gateway.moments import write_moment
from gateway.web.adding_up import add_groups, add_rates, add_timelines, add_topics
from gateway.web.endpoints import ApiError, Asker
from gateway.web.fields import NewTimeFields, read_bound
from gateway.web.messages import KeyQuery, MessagePage, MessageQuery, SearchQuery
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
from gateway.web.relay import Relay, Reply, below, fields_of, refusal
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
from gateway.workers.merged_pages import held_page, recurring_page
from gateway.workers.merging import recurring_change

encode = msgspec.json.encode
_Answer = TypeVar("_Answer")

WorkerFor = Callable[[object, str, str], "Deferred[str]"]
"""Returns which worker a recurring message is to be set at: see `Front.worker_for`."""


class SharedMessages:
    """Searches, shows, sends and changes messages of all workers.

    :param worker_at: returns the name of the worker with an address, given as the 8 bytes of offset ids.
    """

    def __init__(
        self, relay: Relay, clock: Clock, worker_at: Callable[[bytes], str | None]
    ) -> None:
        self._relay = relay
        self._clock = clock
        self._worker_at = worker_at

    async def timeline(self, asker: Asker, query: TimelineQuery) -> Timeline:
        """Count pending messages over time, by topic."""
        # Resolve the times here: each worker has its own `now`, and would have other columns.
        begin_ms, end_ms = query.span(self._clock)
        times = {"begin": write_moment(begin_ms), "end": write_moment(end_ms)}
        values = fields_of(query) | times
        parts = await self._relay.all(asker, "GET", "/timeline", Timeline, values)
        return add_timelines([part for _, part in parts])

    async def search_messages(self, asker: Asker, query: SearchQuery) -> HeldPage:
        """Search messages by id, key, topic, tag, time and state, the next due first.

        A page can have fewer messages than `limit`, or none, before the last one: go on while there is a `cursor`.
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
        """Send a message, now or for later. The answer comes once the message is on disk."""
        first = self._relay.first
        return await self._relay.one(
            asker, first, "POST", "/messages", SentMessage, body=encode(body)
        )

    async def show_message(self, asker: Asker, query: MessageQuery) -> MessagePage:
        """Return one message: its properties, the beginning of its body, and its history."""
        return await self._at_its_worker(asker, query, "GET", MessagePage)

    async def abort_message(self, asker: Asker, query: MessageQuery) -> AbortAnswer:
        """Abort a message; the answer says whether it was still pending.

        Messages of its topic that were sent with the same id are aborted with it.
        """
        return await self._at_its_worker(asker, query, "POST", AbortAnswer, "abort")

    async def reschedule_message(
        self, asker: Asker, query: MessageQuery, body: NewTimeFields
    ) -> RescheduleAnswer:
        """Reschedule a message; the answer says whether it was still pending.

        Messages of its topic that were sent with the same id are rescheduled with it.
        """
        return await self._at_its_worker(
            asker, query, "POST", RescheduleAnswer, "reschedule", body=encode(body)
        )

    async def abort_by_key(self, asker: Asker, query: KeyQuery) -> AbortAnswer:
        """Abort a topic's messages with a key; the answer says of each whether it was still pending.

        Of each worker at most 1,000 are looked at, pending ones first.
        """
        parts = await self._with_key(asker, query, "abort", AbortAnswer)
        return AbortAnswer([result for part in parts for result in part.results])

    async def reschedule_by_key(
        self, asker: Asker, query: KeyQuery, body: NewTimeFields
    ) -> RescheduleAnswer:
        """Reschedule a topic's messages with a key; the answer says of each whether it was still pending.

        Of each worker at most 1,000 are looked at, pending ones first.
        """
        parts = await self._with_key(asker, query, "reschedule", RescheduleAnswer, encode(body))
        return RescheduleAnswer([result for part in parts for result in part.results])

    async def _with_key(
        self, asker: Asker, query: KeyQuery, order: str, kind: type[_Answer], body: bytes = b""
    ) -> list[_Answer]:
        """Return the answers of the workers that have messages with a key."""
        path = below("topics", query.topic, "keys", query.key, order)
        parts = await self._relay.all(asker, "POST", path, kind, body=body, may_lack=True)
        return [part for _, part in parts]

    async def _at_its_worker(
        self,
        asker: Asker,
        query: MessageQuery,
        method: str,
        kind: type[_Answer],
        *order: str,
        body: bytes = b"",
    ) -> _Answer:
        """Return the answer of the worker that has a message. Ask the one whose address is in the offset id, or all if
        there is none: the worker's address may have been another one when the message came."""
        # In a pattern $ also matches before a line break; no worker has a message with such an id.
        host, _ = parse_offset_msg_id(query.id.rstrip())
        owner = self._worker_at(host)
        names = [owner] if owner is not None else self._relay.names
        parts = await self._relay.all(
            *(asker, method, below("messages", query.id, *order), kind),
            body=body,
            may_lack=True,
            each={name: {} for name in names},
        )
        return parts[0][1]


class SharedRecurring:
    """Lists, sets and changes the recurring messages of all workers.

    :param worker_for: returns which worker one is to be set at.
    """

    def __init__(self, relay: Relay, worker_for: WorkerFor) -> None:
        self._relay = relay
        self._worker_for = worker_for

    async def list_recurring(self, asker: Asker, query: RecurringQuery) -> RecurringList:
        """List recurring messages by topic and name."""
        each = _from_cursor(self._relay, fields_of(query), query.cursor)
        parts = await self._relay.all(asker, "GET", "/recurring", RecurringList, each=each)
        return recurring_page(parts, limit=query.limit, given=query.cursor)

    async def show_recurring(self, asker: Asker, query: RecurringPlace) -> RecurringPage:
        """Return one recurring message, with its body and its next times."""
        path = below("recurring", query.topic, query.name)
        parts = await self._relay.all(asker, "GET", path, RecurringPage, may_lack=True)
        return parts[0][1]

    async def preview_recurring(self, asker: Asker, query: RuleQuery) -> RecurringTimes:
        """Return the times at which a rule would fire if it were set now. Nothing is changed."""
        parts = await self._relay.all(
            asker, "GET", "/recurring-times", RecurringTimes, fields_of(query)
        )
        return parts[0][1]

    async def put_recurring(
        self, asker: Asker, query: RecurringPlace, body: RecurringBody
    ) -> RecurringSet:
        """Set a recurring message, in place of the topic's recurring message of that name, if there is one."""
        # The worker is found in the workers' own name.
        await self._relay.check(asker)
        owner = await self._worker_for(asker.host, query.topic, query.name)
        path = below("recurring", query.topic, query.name)
        return await self._relay.one(asker, owner, "PUT", path, RecurringSet, body=encode(body))

    async def order_recurring(self, asker: Asker, query: RecurringOrder) -> RecurringChange:
        """Pause or resume a recurring message."""
        path = below("recurring", query.topic, query.name, query.order)
        return await self._change(asker, "POST", path)

    async def delete_recurring(self, asker: Asker, query: RecurringPlace) -> RecurringChange:
        """Delete a recurring message. Messages that it has already fired are kept."""
        return await self._change(asker, "DELETE", below("recurring", query.topic, query.name))

    async def _change(self, asker: Asker, method: str, path: str) -> RecurringChange:
        parts = await self._relay.all(asker, method, path, RecurringChange, may_lack=True)
        return recurring_change([part for _, part in parts])


class SharedLists:
    """Shows the state of all workers, and their topics and groups.

    :param address: returns the address where clients ask for routes.
    """

    def __init__(self, relay: Relay, address: Callable[[], str]) -> None:
        self._relay = relay
        self._address = address

    async def show_status(self, asker: Asker) -> Status:
        """Return the gateway's identity and health, and the name of your user."""
        each: dict[str, dict[str, object]] = {name: {} for name in self._relay.names}
        replies = await self._relay.replies(asker, "GET", "/status", each)
        known: list[Status] = []
        refused: list[tuple[str, Reply]] = []
        reasons: list[str] = []
        for name, reply in replies.items():
            if reply is None:
                reasons.append(f"{name} does not answer")
            elif reply.status != HTTPStatus.OK:
                refused.append((name, reply))
            else:
                known.append(part := msgspec.json.decode(reply.body, type=Status))
                reasons += [f"{name}: {reason}" for reason in part.reasons]
        if refused:
            name, answer = refused[0]
            raise refusal(answer, name if known else None)
        if not known:
            raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "no worker answers; ask again")
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
        """Return how fast messages arrive and leave, how late they fire, and the free disk space."""
        parts = await self._relay.all(asker, "GET", "/rates", Rates)
        return add_rates([part for _, part in parts])

    async def list_topics(self, asker: Asker, query: ListQuery) -> TopicList:
        """List topics, with the numbers of their messages."""
        parts = await self._relay.all(asker, "GET", "/topics", TopicList, fields_of(query))
        return add_topics([part for _, part in parts], query)

    async def pause_topic(self, asker: Asker, query: TopicQuery) -> PauseAnswer:
        """Pause a topic: none of its messages fires from now on. Due messages wait, and can be found, rescheduled and
        aborted."""
        return await self._set_paused(asker, query, "pause")

    async def resume_topic(self, asker: Asker, query: TopicQuery) -> PauseAnswer:
        """Resume a topic: its messages fire again, those that wait first."""
        return await self._set_paused(asker, query, "resume")

    async def _set_paused(self, asker: Asker, query: TopicQuery, order: str) -> PauseAnswer:
        path = below("topics", query.topic, order)
        parts = await self._relay.all(asker, "POST", path, PauseAnswer, may_lack=True)
        return PauseAnswer(any(part.changed for _, part in parts))

    async def list_groups(self, asker: Asker, query: ListQuery) -> GroupList:
        """List consumer groups, with their online members and their progress."""
        parts = await self._relay.all(asker, "GET", "/groups", GroupList, fields_of(query))
        return add_groups([part for _, part in parts], query)

    async def show_openapi(self, asker: Asker) -> dict[str, Any]:
        """Return this document."""
        first = self._relay.first
        return await self._relay.one(asker, first, "GET", "/openapi.json", dict[str, Any])


def _from_cursor(
    relay: Relay, fields: Mapping[str, object], cursor: str
) -> Mapping[str, Mapping[str, object]]:
    """Return the fields of a page's query for each worker whose part of the list is not complete."""
    own = {name: own_cursor(cursor, name) for name in relay.names}
    each = {name: {**fields, "cursor": text} for name, text in own.items() if text is not None}
    if not each:
        raise ApiError(HTTPStatus.BAD_REQUEST, "the cursor is not one of these workers'")
    return each
