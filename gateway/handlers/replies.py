"""Replies to requests that were sent as messages (324, 325): each is pushed to the client that sent the request
(326)."""

from __future__ import annotations

from typing import NamedTuple

from twisted.logger import Logger

from gateway.broker import Broker
from gateway.clients import Client
from gateway.handlers.sending import IN_EVERY_ANSWER, Sending, new_message, refuse_inner_batch
from gateway.intake import NewMessage
from gateway.router import Call, RequestError, answer_failure
from gateway.topics import Topic
from gateway.wire import properties as names
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import Command, send_response
from gateway.wire.headers import SendMessage
from gateway.wire.messages import offset_msg_id
from gateway.wire.properties import PAIR_END, find, remove
from storage import StorageError

PUSH_LIMIT = 10.0
"""Seconds that a client may take to accept a reply (Broker2Client.callClient)."""

NOT_STORED = "0"
"""The message id in the answer to a reply that is not stored."""


class _Reply(NamedTuple):
    """A reply on its way."""

    call: Call
    topic: Topic
    message: NewMessage


class Replies:
    """Pushes replies to the clients that wait for them."""

    log = Logger()

    def __init__(self, broker: Broker, sending: Sending) -> None:
        self._broker = broker
        self._sending = sending

    def reply(self, call: Call) -> None:
        """Push a reply to its client. The answer, sent once the client has answered, says whether the client took the
        reply. The reply is also stored in its topic, whether or not the client took it."""
        fields: SendMessage = call.fields
        if not call.command.body:  # check this first: looking up the topic may create it
            raise RequestError(ResponseCode.SYSTEM_ERROR, "a message without a body cannot be sent")
        topic = self._sending.topic_of(fields)
        message = new_message(call, self._sending.queue_of(topic, fields.queue_id, call))
        refuse_inner_batch(message)
        call.shed()
        client_id = find(fields.properties or "", names.REPLY_TO_CLIENT) or ""
        reply = _Reply(call, topic, message)
        client = self._broker.clients.producer(client_id)
        if not client_id:
            self._finish(reply, f"reply message properties[{names.REPLY_TO_CLIENT}] is null")
        elif client is None:
            self._finish(reply, f"push reply message fail, channel of <{client_id}> not found.")
        else:
            self._push(reply, client)

    def _push(self, reply: _Reply, client: Client) -> None:
        def answered(answer: Command | None) -> None:
            taken = answer is not None and answer.code == ResponseCode.SUCCESS
            # Upstream's text has no blank here either.
            self._finish(reply, None if taken else f"push reply message to {client.client_id}fail.")

        self._broker.outgoing.request(
            client.peer,
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
            self._pushed_fields(reply),
            reply.message.body,
            PUSH_LIMIT,
            answered,
        )

    def _pushed_fields(self, reply: _Reply) -> dict[str, str]:
        """Return the fields of 326 (ReplyMessageRequestHeader)."""
        fields: SendMessage = reply.call.fields
        now_ms = self._broker.clock.now_ms()
        properties = remove(fields.properties or "", (names.PUSH_REPLY_TIME,))
        return {
            "producerGroup": fields.producer_group,
            "topic": fields.topic,
            "defaultTopic": fields.default_topic,
            "defaultTopicQueueNums": str(fields.default_topic_queue_nums),
            "queueId": str(fields.queue_id),
            "sysFlag": str(fields.sys_flag),
            "bornTimestamp": str(fields.born_timestamp),
            "flag": str(fields.flag),
            "properties": f"{properties}{names.PUSH_REPLY_TIME}\x01{now_ms}{PAIR_END}",
            "reconsumeTimes": str(fields.reconsume_times),
            "unitMode": "true" if fields.unit_mode else "false",
            "bornHost": reply.call.peer.address,
            "storeHost": str(self._broker.advertised),
            "storeTimestamp": str(now_ms),
        }

    def _finish(self, reply: _Reply, failure: str | None) -> None:
        """Store the reply, and answer its sender."""
        call = reply.call
        msg_id, offset = NOT_STORED, 0
        if self._broker.config.store_replies:
            try:
                msg_id, offset = self._store(reply)
            except (RequestError, StorageError) as error:
                answer_failure(call, error, self.log)
                return
        if failure is None:
            frame = send_response(
                call.command.opaque, msg_id, reply.message.queue_id, offset, None, None
            )
        else:
            ext = {
                "msgId": msg_id,
                "queueId": str(reply.message.queue_id),
                "queueOffset": str(offset),
                **IN_EVERY_ANSWER,
            }
            frame = call.encode(ext, code=ResponseCode.SYSTEM_ERROR, remark=failure)
        self._broker.committer.answer(call, frame)

    def _store(self, reply: _Reply) -> tuple[str, int]:
        accepted = self._broker.intake.accept(reply.topic, reply.message)
        return offset_msg_id(self._broker.host, accepted.sequence), max(0, accepted.offset)
