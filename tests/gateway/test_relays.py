"""Requests that the gateway passes on to consumers: running info, one message consumed directly, offsets."""

from __future__ import annotations

import json

import pytest

from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import Command, encode_response
from gateway.wire.messages import decode_message
from tests.gateway.conftest import MakeGateway
from tests.gateway.memory import START_MS, MemoryClient, MemoryGateway

RUNNING_INFO = {"consumerGroup": "consumers", "clientId": "one", "jstackEnable": "true"}
STATUS = {"topic": "orders", "group": "consumers"}


def reply(client: MemoryClient, request: Command, body: bytes = b"", code: int = 0) -> None:
    """Answer a request of the gateway."""
    remark = "as told" if code else None
    client.raw(encode_response(request.opaque, code, body=body, remark=remark))


def asked(client: MemoryClient, code: int) -> Command:
    """Return the one request with this code that the gateway has sent to a client."""
    (request,) = [one for one in client.requests() if one.code == code]
    return request


@pytest.fixture
def consumer(gateway: MemoryGateway) -> MemoryClient:
    """A consumer of the group `consumers`, with the client id `one`."""
    consumer = gateway.connect()
    consumer.heartbeat("one")
    consumer.requests()
    return consumer


def test_running_info_comes_from_the_client(client: MemoryClient, consumer: MemoryClient) -> None:
    secrets = {"AccessKey": "admin", "Signature": "xyz", "SecurityToken": "t"}
    opaque = client.send(RequestCode.GET_CONSUMER_RUNNING_INFO, {**RUNNING_INFO, **secrets})
    assert client.answer(opaque) is None
    request = asked(consumer, RequestCode.GET_CONSUMER_RUNNING_INFO)
    assert request.ext() == RUNNING_INFO
    body = b'{"jstack":"main","mqTable":{{"topic":"orders"}:{}}}'
    reply(consumer, request, body)
    answer = client.answer(opaque)
    assert answer is not None
    assert (answer.code, answer.body) == (ResponseCode.SUCCESS, body)


def test_a_clients_error_is_passed_back(client: MemoryClient, consumer: MemoryClient) -> None:
    opaque = client.send(RequestCode.GET_CONSUMER_RUNNING_INFO, RUNNING_INFO)
    reply(consumer, asked(consumer, RequestCode.GET_CONSUMER_RUNNING_INFO), code=1)
    answer = client.answer(opaque)
    assert answer is not None
    assert (answer.code, answer.remark) == (1, "as told")


def test_a_client_that_does_not_answer(
    gateway: MemoryGateway, client: MemoryClient, consumer: MemoryClient
) -> None:
    opaque = client.send(RequestCode.GET_CONSUMER_RUNNING_INFO, RUNNING_INFO)
    gateway.advance(9_900)
    assert client.answer(opaque) is None
    gateway.advance(200)
    answer = client.answer(opaque)
    assert answer is not None
    assert answer.code == ResponseCode.CONSUME_MSG_TIMEOUT
    assert "<consumers> <one>" in (answer.remark or "")
    asked(consumer, RequestCode.GET_CONSUMER_RUNNING_INFO)


def test_a_client_that_leaves_meanwhile(client: MemoryClient, consumer: MemoryClient) -> None:
    opaque = client.send(RequestCode.GET_CONSUMER_RUNNING_INFO, RUNNING_INFO)
    consumer.disconnect()
    answer = client.answer(opaque)
    assert answer is not None
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "connection is lost" in (answer.remark or "")


@pytest.mark.parametrize(
    "changed", [{"consumerGroup": "others"}, {"clientId": "two"}], ids=["group", "client"]
)
def test_a_client_that_is_not_online(
    client: MemoryClient, consumer: MemoryClient, changed: dict[str, str]
) -> None:
    fields = {**RUNNING_INFO, **changed}
    answer = client.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    expected = f"The Consumer <{fields['consumerGroup']}> <{fields['clientId']}> not online"
    assert answer.remark == expected
    assert consumer.requests() == []


def test_a_client_too_old_to_be_asked(gateway: MemoryGateway, client: MemoryClient) -> None:
    gateway.connect().heartbeat("one", version=61)
    answer = client.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, RUNNING_INFO)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "too low" in (answer.remark or "")
    gateway.connect().heartbeat("one", "ancient", version=27)
    status = {**STATUS, "group": "ancient"}
    answer = client.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, status)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "does not support" in (answer.remark or "")


def test_one_message_is_consumed_directly(client: MemoryClient, consumer: MemoryClient) -> None:
    client.send_message(body="first")
    message_id = client.send_message(body="again", TAGS="A").ext()["msgId"]
    fields = {"consumerGroup": "consumers", "clientId": "one", "msgId": message_id}
    fields["topic"] = "orders"
    opaque = client.send(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields)
    request = asked(consumer, RequestCode.CONSUME_MESSAGE_DIRECTLY)
    added = {"brokerName": "broker-a", "topicSysFlag": "0", "groupSysFlag": "0"}
    assert request.ext() == {**fields, **added}
    message = decode_message(request.body)
    assert (message.body, message.queue_offset) == (b"again", 1)
    reply(consumer, request, b'{"consumeResult":"CR_SUCCESS"}')
    answer = client.answer(opaque)
    assert answer is not None
    assert answer.body == b'{"consumeResult":"CR_SUCCESS"}'


def test_a_message_that_has_not_fired_is_consumed_directly(
    client: MemoryClient, consumer: MemoryClient
) -> None:
    message_id = client.send_message(body="later", TIMER_DELAY_SEC="60").ext()["msgId"]
    fields = {"consumerGroup": "consumers", "clientId": "one", "msgId": message_id}
    client.send(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields)
    request = asked(consumer, RequestCode.CONSUME_MESSAGE_DIRECTLY)
    message = decode_message(request.body)
    assert (message.body, message.topic) == (b"later", "orders")
    assert (message.queue_offset, message.store_ms) == (0, START_MS)


@pytest.mark.parametrize("message_id", ["", "nonsense", "0" * 32, "7F000001" + "F" * 24])
def test_a_message_to_consume_that_is_not_there(
    client: MemoryClient, consumer: MemoryClient, message_id: str
) -> None:
    fields = {"consumerGroup": "consumers", "clientId": "one", "msgId": message_id}
    answer = client.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert consumer.requests() == []


def test_where_the_clients_of_a_group_are(gateway: MemoryGateway, client: MemoryClient) -> None:
    consumers = {name: gateway.connect() for name in ("one", "two", "three")}
    for name, consumer in consumers.items():
        consumer.heartbeat(name)
    opaque = client.send(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, STATUS)
    questions = {
        name: asked(consumer, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT)
        for name, consumer in consumers.items()
    }
    assert questions["one"].ext() == STATUS
    table = b'{{"topic":"orders","brokerName":"broker-a","queueId":0}:12}'
    reply(consumers["one"], questions["one"], b'{"messageQueueTable":' + table + b"}")
    reply(consumers["two"], questions["two"], b"no table")
    assert client.answer(opaque) is None
    gateway.advance(5_100)
    answer = client.answer(opaque)
    assert answer is not None
    assert answer.body == b'{"consumerTable":{"one":' + table + b'},"messageQueueTable":{}}'


def test_of_more_clients_than_may_be_asked_none_is(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(max_asked_clients=1)
    consumers = [gateway.connect() for _ in range(2)]
    for number, consumer in enumerate(consumers):
        consumer.heartbeat(f"c{number}")
    answer = gateway.connect().ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, STATUS)
    assert answer.code == ResponseCode.SYSTEM_BUSY
    codes = [request.code for consumer in consumers for request in consumer.requests()]
    assert RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT not in codes


def test_where_one_client_is(gateway: MemoryGateway, client: MemoryClient) -> None:
    one, two = gateway.connect(), gateway.connect()
    one.heartbeat("one")
    two.heartbeat("two")
    fields = {**STATUS, "clientAddr": "two"}
    opaque = client.send(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, fields)
    reply(two, asked(two, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT), b'{"messageQueueTable":{}}')
    answer = client.answer(opaque)
    assert answer is not None
    assert json.loads(answer.body)["consumerTable"] == {"two": {}}
    codes = {command.code for command in one.requests()}
    assert RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT not in codes
    fields = {**STATUS, "clientAddr": "nobody"}
    answer = client.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, fields)
    assert json.loads(answer.body) == {"consumerTable": {}, "messageQueueTable": {}}


@pytest.mark.parametrize(
    "table",
    [
        {"[" * 5_000: 1},
        {'{"x":' + "[" * 5_000: 1},
        {'{"topic":"orders"}': 1},
        {'{"topic":"orders","brokerName":"b","queueId":0}': 1 << 63},
    ],
)
def test_a_client_that_tells_nonsense(
    client: MemoryClient, consumer: MemoryClient, table: dict[str, int]
) -> None:
    opaque = client.send(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, STATUS)
    question = asked(consumer, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT)
    reply(consumer, question, json.dumps({"messageQueueTable": table}).encode())
    answer = client.answer(opaque)
    assert answer is not None
    assert json.loads(answer.body)["consumerTable"] == {}


def test_more_than_one_answer_takes_is_refused(
    gateway: MemoryGateway,
    client: MemoryClient,
    consumer: MemoryClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway.service._router, "_most_bytes", 1_000)
    opaque = client.send(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, STATUS)
    question = asked(consumer, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT)
    place = '{"topic":"orders","brokerName":"broker-a","queueId":%d}'
    table = {place % number: number for number in range(100)}
    reply(consumer, question, json.dumps({"messageQueueTable": table}).encode())
    answer = client.answer(opaque)
    assert answer is not None
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert (answer.remark or "").endswith("clients accept: ask for less at once")


def test_a_clients_answer_that_is_too_long_is_refused(
    gateway: MemoryGateway,
    client: MemoryClient,
    consumer: MemoryClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway.service._router, "_most_bytes", 1_000)
    opaque = client.send(RequestCode.GET_CONSUMER_RUNNING_INFO, RUNNING_INFO)
    reply(consumer, asked(consumer, RequestCode.GET_CONSUMER_RUNNING_INFO), b"x" * 1_000)
    answer = client.answer(opaque)
    assert answer is not None
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert (answer.remark or "").endswith("clients accept: ask for less at once")


def test_where_an_absent_group_is(client: MemoryClient) -> None:
    answer = client.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, STATUS)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "[consumers]" in (answer.remark or "")
