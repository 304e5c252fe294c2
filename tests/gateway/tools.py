"""Requests of admin tools, and readers of their answers."""

from __future__ import annotations

import json
from typing import Any

from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import Command
from gateway.wire.dialect import to_json
from tests.gateway.memory import MemoryClient


def ok(answer: Command) -> Command:
    """Return the answer, which must be a success."""
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer


def read(answer: Command) -> Any:
    """Return the body of a success, in any dialect of JSON. A key that was an object becomes its text."""
    return json.loads(to_json(ok(answer).body))


def by_queue(table: dict[str, Any]) -> dict[tuple[str, int], Any]:
    """Return a map keyed by queues with (topic, number) as keys; the broker is always the same."""
    found = {}
    for key, value in table.items():
        queue = json.loads(key)
        assert queue["brokerName"] == "broker-a"
        found[queue["topic"], queue["queueId"]] = value
    return found


def create_topic(client: MemoryClient, topic: str, queues: int = 2, **fields: str) -> Command:
    """Create a topic as `updateTopic` does (17)."""
    ext = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    return client.ask(17, ext | fields)


def commit_offset(client: MemoryClient, topic: str, queue: int, offset: int, group: str) -> Command:
    """Report a group's progress (15)."""
    return client.ask(
        15,
        {
            "consumerGroup": group,
            "topic": topic,
            "queueId": str(queue),
            "commitOffset": str(offset),
        },
    )


def offset_of(client: MemoryClient, topic: str, queue: int, group: str) -> int:
    """A group's progress (14)."""
    ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue)}
    return int(ok(client.ask(14, ext)).ext()["offset"])


def put_group(client: MemoryClient, group: str, **settings: object) -> Command:
    """Create a group as `updateSubGroup` does (200)."""
    return client.ask(200, None, json.dumps({"groupName": group, **settings}).encode())


def query(
    client: MemoryClient,
    key: str,
    topic: str = "orders",
    *,
    most: int = 64,
    begin: int = 0,
    end: int = 2**63 - 1,
    **more: str,
) -> Command:
    """Query by key, or by id with the fields of `more`, and return the response."""
    ext = {
        "topic": topic,
        "key": key,
        "maxNum": str(most),
        "beginTimestamp": str(begin),
        "endTimestamp": str(end),
    }
    return client.ask(RequestCode.QUERY_MESSAGE, ext | more)
