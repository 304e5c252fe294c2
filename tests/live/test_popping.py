"""The Java client 5 as a push consumer that pops, as its operator chose with request 401."""

from __future__ import annotations

import json

import pytest

from compat.clients.java import JavaClient
from gateway.wire.codes import RequestCode, ResponseCode
from tests.live.conftest import JavaMaker
from tests.live.process import GatewayProcess

pytestmark = pytest.mark.live

INVISIBLE_MS = 60_000
"""Longer than any consumer takes. For failed messages, the client itself asks for an earlier redelivery."""


def let_pop(gateway: GatewayProcess, topic: str, group: str) -> None:
    """Have a group pop a topic."""
    body = {"topic": topic, "consumerGroup": group, "mode": "POP", "popShareQueueNum": 0}
    with gateway.client() as client:
        answer = client.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, json.dumps(body).encode())
    assert answer.code == ResponseCode.SUCCESS


@pytest.fixture
def java(java_client: JavaMaker, gateway: GatewayProcess) -> JavaClient:
    return java_client(gateway)


def test_messages_are_popped_and_those_that_fail_come_back(
    gateway: GatewayProcess, java: JavaClient, topic: str
) -> None:
    group = f"G-{topic}"
    for number in range(8):
        java.send(topic, b"%d" % number)
    let_pop(gateway, topic, group)
    consumer = java.consume(topic, group, fail_first=1, pop_invisible_ms=INVISIBLE_MS, wait=False)
    wanted = {b"%d" % number for number in range(8)}
    received = consumer.wait_until(
        lambda all_: {one.body for one in all_ if one.reconsume_times == 1} == wanted
    )
    first = [one for one in received if one.reconsume_times == 0]
    again = [one for one in received if one.reconsume_times == 1]
    assert {one.body for one in first} == wanted
    assert len(first) == len(again) == 8
    assert {one.topic for one in received} == {topic}
    assert {"1ST_POP_TIME", "ORIGIN_GROUP", "POP_CK"} <= set(again[0].properties)
    assert {one.msg_id for one in first} == {one.msg_id for one in again}
