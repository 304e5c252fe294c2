"""Sends messages that come through the API as if a client had sent them."""

from __future__ import annotations

import base64
from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Literal

from msgspec import Meta, field
from twisted.internet.defer import Deferred

from gateway.access.policies import PUB
from gateway.broker import Broker
from gateway.connections.connection import UNKNOWN_HOST
from gateway.delays import REQUESTS
from gateway.intake import too_long
from gateway.recurring.orders import RECURRING_REQUESTS
from gateway.router import Call, RequestError
from gateway.topics import DEFAULT_TOPIC
from gateway.transactions import is_half
from gateway.web.endpoints import ApiError, Asker, Fields, Shown
from gateway.web.fields import read_moment
from gateway.wire import properties as names
from gateway.wire.codes import RequestCode
from gateway.wire.commands import VERSION, Command, decode_command
from gateway.wire.frames import FrameBuffer
from gateway.wire.group_topics import is_of_group
from gateway.wire.headers import SendMessage
from gateway.wire.messages import MAX_PROPERTIES, pack_host, uniq_key
from gateway.wire.properties import join

PRODUCER_GROUP = "tidegate-console"
"""The producer group of messages that are sent through the API."""

ABOUT_OTHERS = (names.RESCHEDULE, names.TIMER_DEL_UNIQKEY, names.DEBOUNCE)
"""Properties that name the messages to reschedule, to abort or to replace."""

Encoding = Annotated[Literal["utf-8", "base64"], Meta(description="What `body` is written in.")]


class NewMessageBody(Fields):
    """A message to send."""

    topic: Annotated[str, Meta(min_length=1, max_length=127)]
    body: Annotated[str, Meta(min_length=1)]
    encoding: Encoding = "utf-8"
    at: Annotated[
        int | str | None,
        Meta(description="When it is to be delivered, as in queries; when left out: at once."),
    ] = None
    tags: str = ""
    keys: Annotated[str, Meta(description="Keys, separated by blanks.")] = ""
    properties: dict[str, str] = field(default_factory=dict)
    queue: Annotated[int, Meta(ge=-1, description="Number of the queue; -1 for any.")] = -1


class SentMessage(Shown):
    """The answer to a send."""

    msg_id: str
    offset_msg_id: str
    recall_handle: str | None
    replaced: Annotated[
        int | None,
        Meta(
            description=f"How many pending messages it has replaced; null without `{names.DEBOUNCE}`."
        ),
    ]


class Sender:
    """Sends messages.

    :param send: handles a send as if it came from a client.
    """

    def __init__(self, broker: Broker, send: Callable[[Call], None]) -> None:
        self._broker = broker
        self._send = send

    async def send_message(self, asker: Asker, body: NewMessageBody) -> SentMessage:
        """Send a message, now or for later. The answer comes once the message is on disk."""
        properties = dict(body.properties)
        order = next((name for name in RECURRING_REQUESTS if name in properties), None)
        if order is not None:
            raise ApiError(
                HTTPStatus.BAD_REQUEST,
                f"{order} makes it a recurring message: set that with PUT /api/v1/recurring/{{topic}}/{{name}}",
            )
        unset = next((name for name in ABOUT_OTHERS if properties.get(name) == ""), None)
        if unset is not None:
            # An empty property is none, and the order would be delivered as a message.
            raise ApiError(HTTPStatus.BAD_REQUEST, f"{unset} is empty: it names no message")
        for name, value in ((names.TAGS, body.tags), (names.KEYS, body.keys)):
            if value:
                properties[name] = value
        if body.at is not None:
            other = next((name for name in REQUESTS if name in properties), None)
            if other is not None:
                raise ApiError(
                    HTTPStatus.BAD_REQUEST,
                    f"say when it is to be delivered by at or by the property {other}, and not by both",
                )
            due_ms = read_moment(body.at, self._broker.clock)
            properties[names.TIMER_DELIVER_MS] = str(due_ms)
        data = decode_body(body.body, body.encoding)
        answer = await self.send(asker, body.topic, data, properties, body.queue)
        sent = answer.ext()
        replaced = sent.get("replaced")
        return SentMessage(
            msg_id=sent.get("transactionId") or sent.get("msgId", ""),
            offset_msg_id=sent.get("msgId", ""),
            recall_handle=sent.get("recallHandle"),
            replaced=int(replaced) if replaced is not None else None,
        )

    def send(
        self,
        asker: Asker,
        topic: str,
        body: bytes,
        properties: dict[str, str],
        queue: int = -1,
        *,
        flag: int = 0,
        sys_flag: int = 0,
    ) -> Deferred[Command]:
        """Handle a message as if a client had sent it, and return the answer once the message is on disk.

        :param sys_flag: tells how the body is compressed, if it is.
        :raises ApiError: when the asker may not send to the topic, or the properties are not valid or those of a half
            message.
        :raises RequestError: when the properties are too long.
        """
        if is_of_group(topic):
            raise ApiError(HTTPStatus.BAD_REQUEST, f"topic {topic} belongs to a consumer group")
        asker.check_topic(PUB, topic)
        if is_half(properties, 0):
            raise ApiError(
                HTTPStatus.BAD_REQUEST,
                f"{names.TRAN_MSG} makes it a half message, which nobody can commit by HTTP: leave the property out",
            )
        # Check this before joining them: 8 MiB may hold half a million properties.
        if sum(map(len, properties)) + sum(map(len, properties.values())) > MAX_PROPERTIES:
            raise too_long(self._broker.config.max_message_size)
        now_ms = self._broker.clock.now_ms()
        try:
            text = join({names.UNIQ_KEY: uniq_key(now_ms), **properties})
        except ValueError as error:
            raise ApiError(HTTPStatus.BAD_REQUEST, str(error)) from error
        fields = SendMessage(
            producer_group=PRODUCER_GROUP,
            topic=topic,
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=self._broker.config.default_topic_queues,
            queue_id=queue,
            sys_flag=sys_flag,
            born_timestamp=now_ms,
            flag=flag,
            properties=text,
        )
        call = _LocalCall(fields, body, asker.host)
        self._send(call)
        return call.answered


def decode_body(text: str, encoding: str) -> bytes:
    """Return a message's body as bytes.

    :raises ApiError: when it should be base64 and is not.
    """
    if encoding == "utf-8":
        return text.encode()
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:  # also for non-ASCII text; binascii.Error is one too
        raise ApiError(HTTPStatus.BAD_REQUEST, f"the body is no base64: {error}") from error


class _Local:
    """Takes the place of a client's connection."""

    open = True
    congested = False

    def __init__(self, host: str) -> None:
        self.host = pack_host(UNKNOWN_HOST if ":" in host else host, 0)
        self.address = f"{host}:0"
        self.source = host

    def send(self, frame: bytes) -> None:
        """Write nothing: the call itself takes its answer."""


class _LocalCall(Call):
    """A send whose answer is returned to the handler that waits for it."""

    __slots__ = ("answered",)

    def __init__(self, fields: SendMessage, body: bytes, host: str) -> None:
        command = Command(
            code=RequestCode.SEND_MESSAGE, version=VERSION, language="HTTP", body=body
        )
        super().__init__(command, fields, _Local(host))
        self.answered: Deferred[Command] = Deferred()

    def send(self, frame: bytes) -> None:
        (whole,) = FrameBuffer().feed(frame)
        answer = decode_command(whole)
        if answer.code:
            self.answered.errback(RequestError(answer.code, answer.remark or ""))
        else:
            self.answered.callback(answer)
