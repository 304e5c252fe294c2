"""Requests of producers that send transactions, and the checks that they receive."""

from __future__ import annotations

from typing import Any

from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import Command
from gateway.wire.messages import parse_offset_msg_id
from tests.gateway.memory import MemoryClient, property_string

GROUP = "payers"


COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0


class Half:
    """A half that a producer sent, with what the producer got in the response."""

    def __init__(self, answer: Command) -> None:
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        ext = answer.ext()
        self.id = ext["transactionId"]
        self.place = int(ext["queueOffset"])
        self.offset = parse_offset_msg_id(ext["msgId"])[1]
        self.ext = ext


def begin(
    client: MemoryClient, body: str = "pay", topic: str = "orders", **properties: str
) -> Half:
    """Send a half as Java does."""
    return Half(client.send_message(topic, body, fields=prepared(**properties)))


def prepared(**properties: str) -> dict[str, Any]:
    """Return the fields of a half that differ from those of other messages."""
    properties = {"TRAN_MSG": "true", "PGROUP": GROUP, **properties}
    return {"sys_flag": 4, "properties": property_string(properties)}


def decision(half: Half, outcome: int, **changes: str) -> dict[str, str]:
    """Return the fields of a producer's decision (37)."""
    return {
        "producerGroup": GROUP,
        "tranStateTableOffset": str(half.place),
        "commitLogOffset": str(half.offset),
        "commitOrRollback": str(outcome),
        "fromTransactionCheck": "false",
        "msgId": half.id,
        "transactionId": half.id,
        **changes,
    }


def end(client: MemoryClient, half: Half, outcome: int, **changes: str) -> Command:
    """Send a decision as C++ does, with a response."""
    return client.ask(RequestCode.END_TRANSACTION, decision(half, outcome, **changes))


def produce(client: MemoryClient, client_id: str = "p1") -> None:
    """Register the client as a producer of the group."""
    client.heartbeat(client_id, "", producers=[GROUP])
    client.requests()


def checks(client: MemoryClient) -> list[Command]:
    """Return the checks received since the last call."""
    return [one for one in client.requests() if one.code == RequestCode.CHECK_TRANSACTION_STATE]
