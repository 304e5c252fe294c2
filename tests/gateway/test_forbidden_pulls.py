"""Pulls that settings of the group or the topic forbid; a field of the response names the setting's kind."""

from __future__ import annotations

import json

from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import Command
from tests.gateway.memory import MemoryClient, MemoryGateway, bodies
from tests.gateway.popping import pop_fields


def set_group(client: MemoryClient, **settings: object) -> None:
    body = json.dumps({"groupName": "consumers", **settings}).encode()
    answer = client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)
    assert answer.code == ResponseCode.SUCCESS


def forbidden_by(answer: Command) -> str:
    assert answer.code == ResponseCode.NO_PERMISSION
    return answer.ext()["forbiddenType"]


def test_a_group_that_may_not_consume(client: MemoryClient) -> None:
    client.send_message()
    set_group(client, consumeEnable=False)
    assert forbidden_by(client.ask_pull()) == "2"


def forbid_reading(client: MemoryClient) -> None:
    topic = {
        "topic": "orders",
        "defaultTopic": "TBW102",
        "readQueueNums": "1",
        "writeQueueNums": "1",
        "perm": "2",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    created = client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic)
    assert created.code == ResponseCode.SUCCESS


def test_a_topic_that_may_not_be_read(client: MemoryClient) -> None:
    forbid_reading(client)
    assert forbidden_by(client.ask_pull()) == "3"


def test_what_is_forbidden_while_a_pull_waits(client: MemoryClient) -> None:
    """The next message is for nobody, as if the pull had come now."""
    client.send_message(fields={"queue": 3})
    waiting = client.park()
    set_group(client, consumeEnable=False)
    client.send_message()
    answer = client.answer(waiting)
    assert answer is not None
    assert forbidden_by(answer) == "2"
    set_group(client, consumeEnable=True)
    waiting = client.park(offset=1)
    forbid_reading(client)
    client.send_message()
    answer = client.answer(waiting)
    assert answer is not None
    assert forbidden_by(answer) == "3"


def test_what_is_forbidden_while_a_pop_waits(gateway: MemoryGateway, client: MemoryClient) -> None:
    client.send_message(fields={"queue": 3})

    def wait() -> int:
        fields = pop_fields(gateway, queueId=0, pollTime=15_000)
        opaque = client.send(RequestCode.POP_MESSAGE, fields)
        assert client.answer(opaque) is None
        return opaque

    of_group = wait()
    set_group(client, consumeEnable=False)
    client.send_message()
    answer = client.answer(of_group)
    assert answer is not None
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.ext() == client.ask(RequestCode.POP_MESSAGE, pop_fields(gateway)).ext()
    assert answer.ext().keys() == {"popTime", "invisibleTime", "reviveQid", "restNum"}
    set_group(client, consumeEnable=True)
    assert client.ask(RequestCode.POP_MESSAGE, pop_fields(gateway, queueId=0)).code == 0
    of_topic = wait()
    forbid_reading(client)
    client.send_message()
    answer = client.answer(of_topic)
    assert answer is not None
    assert answer.code == ResponseCode.NO_PERMISSION


def test_a_group_that_may_not_broadcast(client: MemoryClient) -> None:
    client.send_message()
    client.heartbeat("one", model="BROADCASTING")
    assert bodies(client.pull(tags=None)) == ["hello"]
    set_group(client, consumeBroadcastEnable=False)
    assert forbidden_by(client.ask_pull(tags=None)) == "4"
    client.heartbeat("one", model="CLUSTERING")
    assert bodies(client.pull(tags=None)) == ["hello"]
