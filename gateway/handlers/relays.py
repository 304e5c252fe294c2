"""Requests of tools that only a consumer's own client can answer: its running info (307), the outcome of consuming one
message (309), its offsets (223). Each is sent to the client over the connection that the client opened."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import msgspec
from twisted.logger import Logger

from gateway.broker import Broker
from gateway.clients import Client
from gateway.router import Call, RequestError
from gateway.wire.bodies import BodyError, MessageQueue, read_body
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import Command
from gateway.wire.dialect import map_by_objects
from gateway.wire.fields import Int64
from gateway.wire.headers import (
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
    GetConsumerStatus,
)
from gateway.wire.messages import MessageError, parse_offset_msg_id, stamp
from gateway.wire.signatures import FIELDS as SIGNATURE_FIELDS
from storage import find_by_sequence

_read_queue = msgspec.json.Decoder(MessageQueue).decode

ANSWER_LIMIT = 10.0
"""Seconds that a client may take to answer (Broker2Client.callClient)."""

STATUS_LIMIT = 5.0
"""Seconds that a client may take to return its offsets (Broker2Client.getConsumeStatus)."""

OLDEST_CALLED = 62
"""MQVersion V3_1_8_SNAPSHOT: earlier clients do not know 307 and 309."""

OLDEST_WITH_STATUS = 28
"""MQVersion V3_0_7_SNAPSHOT: earlier clients do not know 221."""


class Relays:
    """Passes requests on to clients, and their answers back."""

    log = Logger()

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def running_info(self, call: Call) -> None:
        """Answer with a client's running info: settings, subscriptions, queues, figures, and threads on request
        (307)."""
        fields: GetConsumerRunningInfo = call.fields
        client = self._find(fields.consumer_group, fields.client_id)
        self._relay(call, fields.consumer_group, client, _passed_on(call), call.command.body)

    def consume_directly(self, call: Call) -> None:
        """Have a client consume one message now, outside its queues, and answer with the outcome (309)."""
        fields: ConsumeMessageDirectly = call.fields
        client = self._find(fields.consumer_group, fields.client_id or "")
        record = self._record(fields.msg_id or "")
        ext = {**_passed_on(call), "brokerName": self._broker.config.broker_name}
        topic = self._broker.topics.get(ext.get("topic", ""))
        if topic is not None:
            ext["topicSysFlag"] = str(topic.settings.topic_sys_flag)
        group = self._broker.groups.find(fields.consumer_group)
        if group is not None:
            ext["groupSysFlag"] = str(group.group_sys_flag)
        self._relay(call, fields.consumer_group, client, ext, record)

    def consumer_status(self, call: Call) -> None:
        """Answer with the offsets of a group's clients in a topic's queues, by client, from those that answer in time
        (223)."""
        fields: GetConsumerStatus = call.fields
        clients = self._with_status(fields)
        self._broker.outgoing.check_room(len(clients))
        call.shed()
        tables: dict[str, msgspec.Raw] = {}
        silent = {client.client_id for client in clients}

        def answered(client: Client, answer: Command | None) -> None:
            silent.discard(client.client_id)
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                try:
                    tables[client.client_id] = _queue_table(answer.body)
                except (BodyError, msgspec.DecodeError, RecursionError) as error:
                    self.log.warn(
                        "the offsets that {client} answered cannot be read: {error}",
                        client=client.client_id,
                        error=str(error),
                    )
            if not silent:
                _pass_back(call, body=_status(tables))

        ext = {"topic": fields.topic, "group": fields.group}
        for client in clients:
            self._broker.outgoing.request(
                client.peer,
                RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
                ext,
                b"",
                STATUS_LIMIT,
                partial(answered, client),
            )
        if not clients:
            call.answer(body=_status(tables))

    def _with_status(self, fields: GetConsumerStatus) -> list[Client]:
        """Return the clients to ask for their offsets.

        :raises RequestError: when the group has none, or one of them is too old.
        """
        group = self._broker.clients.consumer_group(fields.group)
        clients = list(group.members.values()) if group is not None else []
        if not clients:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"No Any Consumer online in the consumer group: [{fields.group}]",
            )
        if fields.client_addr and fields.client_addr.strip():
            clients = [one for one in clients if one.client_id == fields.client_addr]
        for client in clients:
            if client.version < OLDEST_WITH_STATUS:
                raise RequestError(
                    ResponseCode.SYSTEM_ERROR,
                    f"the client does not support this feature. version={client.version}",
                )
        return clients

    def _find(self, group_name: str, client_id: str) -> Client:
        """Return a client that can be asked (AdminBrokerProcessor.callConsumer).

        :raises RequestError: when it is not online, or too old.
        """
        group = self._broker.clients.consumer_group(group_name)
        client = group.members.get(client_id) if group is not None else None
        if client is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"The Consumer <{group_name}> <{client_id}> not online"
            )
        if client.version < OLDEST_CALLED:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{client_id}> Version <{client.version}> too low to finish, "
                "please upgrade it to V3_1_8_SNAPSHOT",
            )
        return client

    def _record(self, message_id: str) -> bytes:
        """Return the record of the message with an offset id, as a pull would return it."""
        try:
            _, offset = parse_offset_msg_id(message_id)
        except MessageError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        found = find_by_sequence(self._broker.store, offset)
        if found is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"can not find message by the id {message_id}"
            )
        if found.offset < 0:
            return found.record
        return stamp(found.record, found.offset, found.moved_ms)

    def _relay(
        self, call: Call, group: str, client: Client, ext: dict[str, str], body: bytes
    ) -> None:
        call.shed()

        def answered(answer: Command | None) -> None:
            who = f"consumer <{group}> <{client.client_id}>"
            if answer is not None:
                _pass_back(call, answer.ext(), answer.body, answer.code, answer.remark)
            elif client.peer.open:
                call.fail(
                    ResponseCode.CONSUME_MSG_TIMEOUT,
                    f"{who} Timeout: no answer in {ANSWER_LIMIT:g} s",
                )
            else:
                call.fail(
                    ResponseCode.SYSTEM_ERROR, f"invoke {who} Exception: its connection is lost"
                )

        self._broker.outgoing.request(
            client.peer, call.command.code, ext, body, ANSWER_LIMIT, answered
        )


def _pass_back(
    call: Call,
    ext: Mapping[str, str] | None = None,
    body: bytes = b"",
    code: int = ResponseCode.SUCCESS,
    remark: str | None = None,
) -> None:
    """Answer a request that the router has handled. If the answer is longer than the asking client accepts, answer with
    that error."""
    try:
        call.answer(ext, body, code=code, remark=remark)
    except RequestError as error:
        call.fail(error.code, error.remark)


def _passed_on(call: Call) -> dict[str, str]:
    """Return the fields of a request to pass on to the client: all but the tool's signature."""
    return {
        name: value for name, value in call.command.ext().items() if name not in SIGNATURE_FIELDS
    }


def _status(tables: dict[str, msgspec.Raw]) -> bytes:
    """Return the answer to 223. GetConsumerStatusBody has a second table, for the answer to 221."""
    return msgspec.json.encode({"consumerTable": tables, "messageQueueTable": {}})


class _ConsumerStatus(msgspec.Struct, rename="camel"):
    message_queue_table: dict[str, Int64]


def _queue_table(body: bytes) -> msgspec.Raw:
    """Return the offsets by queue of a client's answer to 221 (GetConsumerStatusBody), in the form that Java reads."""
    table = read_body(body, _ConsumerStatus).message_queue_table
    return map_by_objects((_read_queue(queue), offset) for queue, offset in table.items())
