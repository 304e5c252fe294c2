"""Single messages in the API: search, show, abort and reschedule."""

from __future__ import annotations

import zlib
from codecs import getincrementaldecoder
from collections.abc import Generator
from http import HTTPStatus
from typing import Annotated, Literal

from msgspec import Meta

from gateway.access.permissions import topic_need
from gateway.access.policies import READ
from gateway.broker import Broker
from gateway.pending.messages import Outcome, PendingMessages, Wanted
from gateway.pending.rescheduling import Rescheduling
from gateway.web.endpoints import ApiError, Asker, Fields, Shown
from gateway.web.fields import (
    Cursor,
    Limit,
    MessageId,
    NewTimeFields,
    SearchedState,
    TopicName,
    read_bound,
)
from gateway.web.turns import Turns
from gateway.wire.codes import SysFlag
from gateway.wire.messages import Message, decode_message
from gateway.wire.pending_bodies import (
    AbortAnswer,
    HeldMessage,
    HeldPage,
    RescheduleAnswer,
)
from gateway.wire.properties import parse
from storage import Found, State

MAX_PREVIEW = 64 * 1024
"""Most bytes of a body in a message's page."""

MAX_RECEIVERS = 200
"""Most consumer groups in a message's page."""


class SearchQuery(Fields):
    """A search for messages. Without an id or a key it goes by topic, tag and time. Pending messages are selected by
    their due times. With `state` fired, which needs a topic, or aborted, messages are selected by the time when that
    happened, the last one first.
    """

    id: Annotated[str, Meta(description="The client's id of a message, or its offset id.")] = ""
    key: Annotated[str, Meta(description="A key of the message.")] = ""
    topic: TopicName = ""
    tag: Annotated[str, Meta(description="The tag of the message.")] = ""
    begin: Annotated[int | str | None, Meta(description="Due at this time or later.")] = None
    end: Annotated[int | str | None, Meta(description="Due before this time.")] = None
    state: SearchedState = "pending"
    limit: Limit = 50
    cursor: Cursor = ""


class MessageQuery(Fields):
    """Identifies one message."""

    id: MessageId


class KeyQuery(Fields):
    """Identifies the messages of a topic with a key."""

    topic: TopicName
    key: Annotated[str, Meta(description="A key of the messages.")]


class Body(Shown):
    """The beginning of a message's body, decompressed if the sender compressed it.

    `size` is the stored size in bytes. `shown` is the number of decompressed bytes in `text`. In hex, two letters are a
    byte.
    """

    size: int
    shown: int
    is_whole: bool
    is_compressed: bool
    encoding: Literal["utf-8", "hex"]
    text: str


class Event(Shown):
    """A past or future event of a message."""

    kind: Literal["born", "accepted", "rescheduled", "due", "fired", "aborted", "stored"]
    at_ms: int


class Receiver(Shown):
    """A consumer group that reads the message's queue.

    `isPast` means that its progress is past the message: it was delivered, or skipped for its tag or properties.
    """

    group: str
    offset: int
    is_past: bool


class MessagePage(Shown):
    """All that the gateway knows about a message. While `isPaused`, nothing of its topic fires."""

    message: HeldMessage
    is_paused: bool
    properties: dict[str, str]
    body: Body
    history: list[Event]
    receivers: list[Receiver]
    sys_flag: int
    flag: int
    reconsume_times: int


class Messages:
    """Searches, shows, aborts and reschedules messages."""

    def __init__(
        self, broker: Broker, pending: PendingMessages, rescheduling: Rescheduling, turns: Turns
    ) -> None:
        self._broker = broker
        self._pending = pending
        self._rescheduling = rescheduling
        self._turns = turns

    async def search_messages(self, asker: Asker, query: SearchQuery) -> HeldPage:
        """Search messages by id, key, topic, tag, time and state, the next due first.

        A page can have fewer messages than `limit`, or none, before the last one: go on while there is a `cursor`.
        """
        clock = self._broker.clock
        wanted = Wanted(
            id=query.id,
            key=query.key,
            topic=query.topic,
            tag=query.tag,
            begin_ms=read_bound(query.begin, clock) or 0,
            end_ms=read_bound(query.end, clock),
            state=query.state,
        )
        return await self._turns.take(
            self._pending.look_up(wanted, asker.may, limit=query.limit, cursor=query.cursor)
        )

    def show_message(self, asker: Asker, query: MessageQuery) -> MessagePage:
        """Return one message: its properties, the beginning of its body, and its history."""
        found = self.find(asker, query.id)
        message = decode_message(found.record)
        pause = self._pending.pause_of(message.topic)
        return MessagePage(
            message=self._pending.describe(found),
            is_paused=pause is not None and not pause.resumed,
            properties=parse(message.properties),
            body=preview(message),
            history=_history(found, message),
            receivers=self._receivers(asker, found, message),
            sys_flag=message.sys_flag,
            flag=message.flag,
            reconsume_times=message.reconsume_times,
        )

    async def abort_message(self, asker: Asker, query: MessageQuery) -> AbortAnswer:
        """Abort a message; the answer says whether it was still pending.

        Messages of its topic that were sent with the same id are aborted with it.
        """
        message = self._pending.describe(self.find(asker, query.id))
        results = self._pending.abort_by_id(message.msg_id, message.topic, asker.may)
        await self._turns.stored()
        return AbortAnswer(results)

    async def reschedule_message(
        self, asker: Asker, query: MessageQuery, body: NewTimeFields
    ) -> RescheduleAnswer:
        """Reschedule a message; the answer says whether it was still pending.

        Messages of its topic that were sent with the same id are rescheduled with it.
        """
        message = self._pending.describe(self.find(asker, query.id))
        to = body.read(self._broker.clock)
        results = self._rescheduling.by_id(message.msg_id, message.topic, to, asker.may)
        await self._turns.stored()
        return RescheduleAnswer(results)

    async def abort_by_key(self, asker: Asker, query: KeyQuery) -> AbortAnswer:
        """Abort a topic's messages with a key; the answer says of each whether it was still pending.

        Of each worker at most 1,000 are looked at, pending ones first.
        """
        change = self._pending.abort_by_key(query.topic, query.key, asker.may, asker)
        results = await self._change(asker, query, change)
        return AbortAnswer(results)

    async def reschedule_by_key(
        self, asker: Asker, query: KeyQuery, body: NewTimeFields
    ) -> RescheduleAnswer:
        """Reschedule a topic's messages with a key; the answer says of each whether it was still pending.

        Of each worker at most 1,000 are looked at, pending ones first.
        """
        to = body.read(self._broker.clock)
        change = self._rescheduling.by_key(query.topic, query.key, to, asker.may, asker)
        results = await self._change(asker, query, change)
        return RescheduleAnswer(results)

    async def _change(
        self, asker: Asker, query: KeyQuery, change: Generator[None, None, list[Outcome]]
    ) -> list[Outcome]:
        """Change messages with a key, each step in a turn of its own.

        :raises ApiError: when there are none.
        """
        try:
            results = await self._turns.take(change)
        finally:
            self._broker.committer.settle()
        if not any(one.msg_id for one in results):
            raise ApiError(
                HTTPStatus.NOT_FOUND, f"topic {query.topic} has no message with the key {query.key}"
            )
        await self._turns.stored()
        return results

    def find(self, asker: Asker, message_id: str) -> Found:
        """Return the message with an offset id.

        :raises ApiError: when there is none, or the asker may not read it.
        """
        found = self._pending.find_by_offset_id(message_id)
        if found is None:
            raise no_message(message_id)
        need = topic_need(decode_message(found.record).topic, READ)
        asker.check(need._replace(called=f"the topic of message {message_id}"))
        return found

    def _receivers(self, asker: Asker, found: Found, message: Message) -> list[Receiver]:
        if found.offset < 0:
            return []
        topic = message.topic.encode()
        receivers = []
        progress = self._broker.store.progress
        for group in progress.groups():
            offset = progress.get(group, topic, message.queue_id)
            if offset is None:
                continue
            name = group.decode()
            if asker.may_see_group(name):
                receivers.append(Receiver(group=name, offset=offset, is_past=offset > found.offset))
        receivers.sort(key=lambda one: (not one.is_past, one.group))
        return receivers[:MAX_RECEIVERS]


def no_message(message_id: str) -> ApiError:
    """Return the error for an offset id without a message. A client's id, which answers and lists have too, looks
    alike."""
    return ApiError(
        HTTPStatus.NOT_FOUND,
        f"there is no message with the offset id {message_id}; if it is a client's id, /messages?id={message_id}"
        "&state=any tells the offset id",
    )


def _history(found: Found, message: Message) -> list[Event]:
    accepted = "stored" if found.state is State.UNTIMED else "accepted"
    events: list[Event] = [
        Event(kind="born", at_ms=message.born_ms),
        Event(kind=accepted, at_ms=message.store_ms),  # type: ignore[arg-type]
    ]
    if found.rescheduled_ms:
        events.append(Event(kind="rescheduled", at_ms=found.rescheduled_ms))
    if found.state is not State.UNTIMED:
        events.append(Event(kind="due", at_ms=found.due_ms))
    if found.state is State.FIRED:
        events.append(Event(kind="fired", at_ms=found.moved_ms))
    elif found.state is State.ABORTED:
        events.append(Event(kind="aborted", at_ms=found.moved_ms))
    return sorted(events, key=lambda event: event.at_ms)


def preview(message: Message) -> Body:
    """Return the beginning of a body as text, or in hex if it is not text."""
    data = message.body
    compressed = bool(message.sys_flag & SysFlag.COMPRESSED)
    by_zlib = message.sys_flag & SysFlag.COMPRESSION_MASK in (0, SysFlag.COMPRESSION_ZLIB)
    is_whole = True
    if compressed and by_zlib:
        decompressor = zlib.decompressobj()
        try:
            data = decompressor.decompress(data, MAX_PREVIEW)
            is_whole = decompressor.eof
        except zlib.error:
            data = message.body
    shown = data[:MAX_PREVIEW]
    is_whole = is_whole and len(shown) == len(data)
    encoding: Literal["utf-8", "hex"] = "utf-8"
    try:
        # If the body goes on after this part, a partial character at the end is left out.
        text = getincrementaldecoder("utf-8")().decode(shown, final=is_whole)
        shown = text.encode()
    except UnicodeDecodeError:
        encoding, text = "hex", shown.hex()
    return Body(
        size=len(message.body),
        shown=len(shown),
        is_whole=is_whole,
        is_compressed=compressed,
        encoding=encoding,
        text=text,
    )
