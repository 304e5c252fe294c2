"""Requests of consumers that pop, and readers of their answers."""

from __future__ import annotations

from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import Command
from gateway.wire.messages import Message, decode_messages
from gateway.wire.pops import parse_handle
from tests.gateway.memory import MemoryClient, MemoryGateway

INVISIBLE_MS = 10_000


def pop_fields(gateway: MemoryGateway, **fields: object) -> dict[str, str]:
    """Return the fields of a pop as Java writes them."""
    wanted: dict[str, object] = {
        "consumerGroup": "consumers",
        "topic": "orders",
        "queueId": -1,
        "maxMsgNums": 32,
        "invisibleTime": INVISIBLE_MS,
        "pollTime": 0,
        "bornTime": gateway.now_ms,
        "initMode": 0,
        "expType": "TAG",
        "exp": "*",
        "order": "false",
    }
    return {name: str(value) for name, value in {**wanted, **fields}.items() if value is not None}


def ask_pop(gateway: MemoryGateway, client: MemoryClient, **fields: object) -> Command:
    """Pop, with other fields if given, and return the response."""
    return client.ask(RequestCode.POP_MESSAGE, pop_fields(gateway, **fields))


def pop(gateway: MemoryGateway, client: MemoryClient, **fields: object) -> list[Message]:
    """Pop, and return the messages, if any."""
    answer = ask_pop(gateway, client, **fields)
    return decode_messages(answer.body) if answer.code == ResponseCode.SUCCESS else []


def send(client: MemoryClient, *texts: str, queue: int = 0, **properties: str) -> None:
    """Send messages to a queue, one for each text."""
    for text in texts:
        client.send_message(body=text, properties=properties, fields={"queue": queue})


def handles(answer: Command) -> list[str]:
    """Return the handles that the Java client makes of a response: one for each message, in order."""
    ext = answer.ext()
    starts = dict(part.rsplit(" ", 1) for part in ext["startOffsetInfo"].split(";"))
    return [
        f"{starts[place]} {ext['popTime']} {ext['invisibleTime']} {ext['reviveQid']} "
        f"{place.split()[0]} broker-a {place.split()[1]} {offset}"
        for place, offsets in (part.rsplit(" ", 1) for part in ext["msgOffsetInfo"].split(";"))
        for offset in offsets.split(",")
    ]


def handle_fields(text: str, group: str = "consumers", topic: str = "orders") -> dict[str, str]:
    """Return the fields by which requests name the message of a handle."""
    handle = parse_handle(text)
    return {
        "consumerGroup": group,
        "topic": topic if handle.retried == "0" else f"%RETRY%{group}_{topic}",
        "queueId": str(handle.queue),
        "extraInfo": text,
        "offset": str(handle.offset),
    }


def ack(client: MemoryClient, text: str) -> Command:
    """Acknowledge the message of a handle."""
    return client.ask(RequestCode.ACK_MESSAGE, handle_fields(text))
