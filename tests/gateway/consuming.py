"""Requests of consumers that lock queues and send messages back."""

from __future__ import annotations

import json
from collections.abc import Iterable

from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import Command
from gateway.wire.messages import Message
from tests.gateway.memory import MemoryClient


def lock_request(client_id: str, queues: Iterable[int], group: str = "workers") -> bytes:
    """Return the body of a request that locks or unlocks queues."""
    return json.dumps(
        {
            "consumerGroup": group,
            "clientId": client_id,
            "onlyThisBroker": False,
            "mqSet": [
                {"topic": "orders", "brokerName": "broker-a", "queueId": queue} for queue in queues
            ],
        }
    ).encode()


def lock(client: MemoryClient, client_id: str, *queues: int, group: str = "workers") -> list[int]:
    """Ask for queues, and return those that were granted."""
    answer = client.ask(RequestCode.LOCK_BATCH_MQ, None, lock_request(client_id, queues, group))
    assert answer.code == ResponseCode.SUCCESS
    granted = json.loads(answer.body)["lockOKMQSet"]
    assert all(queue["topic"] == "orders" for queue in granted)
    assert all(queue["brokerName"] == "broker-a" for queue in granted)
    return sorted(queue["queueId"] for queue in granted)


def unlock(client: MemoryClient, client_id: str, *queues: int) -> None:
    """Unlock queues."""
    answer = client.ask(RequestCode.UNLOCK_BATCH_MQ, None, lock_request(client_id, queues))
    assert answer.code == ResponseCode.SUCCESS


def send_back(
    client: MemoryClient,
    message: Message | int,
    level: int = 0,
    *,
    group: str = "workers",
    most: int | None = None,
    version: int = 513,
) -> Command:
    """Send back a pulled message, or the one at a physical offset."""
    offset = message if isinstance(message, int) else message.physical_offset
    ext = {"offset": str(offset), "group": group, "delayLevel": str(level)}
    if most is not None:
        ext["maxReconsumeTimes"] = str(most)
    return client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext, version=version)
