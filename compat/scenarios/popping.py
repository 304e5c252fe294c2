"""POP consumption: the broker keeps what is being consumed, and the client tells what is done."""

from __future__ import annotations

import json

from compat.scenarios.stage import RAW, Stage, scenario
from gateway.wire.codes import RequestCode
from gateway.wire.commands import Command

_SOON_MS = "60000"


def pop_fields(stage: Stage, **ext: str) -> dict[str, str]:
    """The fields of a pop that does not wait, with others in place of the usual ones."""
    return {
        "consumerGroup": stage.topic("g"),
        "topic": stage.topic(),
        "queueId": "0",
        "maxMsgNums": "1",
        "invisibleTime": _SOON_MS,
        "pollTime": "0",
        "bornTime": "0",
        "initMode": "0",
        **ext,
    }


def receipt(stage: Stage, popped: Command) -> dict[str, str]:
    """What the first message of an answer is acknowledged with (ExtraInfoUtil)."""
    ext = popped.ext()
    start = ext["startOffsetInfo"].split(" ")[2]
    first = ext["msgOffsetInfo"].split(" ")[2].split(",")[0]
    parts = (start, ext["popTime"], ext["invisibleTime"], ext["reviveQid"], "0", "broker-a", "0")
    return {
        "consumerGroup": stage.topic("g"),
        "topic": stage.topic(),
        "queueId": "0",
        "extraInfo": " ".join((*parts, first)),
        "offset": first,
    }


@scenario(*RAW)
def one_at_a_time(stage: Stage) -> None:
    """A popped message is nobody else's until its time is up or it is acknowledged."""
    raw = stage.raw()
    for number in range(3):
        raw.send(stage.topic(), b"%d" % number)
    first = stage.ask("first", raw, RequestCode.POP_MESSAGE, pop_fields(stage))
    second = stage.ask("second", raw, RequestCode.POP_MESSAGE, pop_fields(stage))
    stage.ask("ack", raw, RequestCode.ACK_MESSAGE, receipt(stage, first))
    later = {**receipt(stage, second), "invisibleTime": _SOON_MS}
    stage.ask("later", raw, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, later)
    stage.ask("rest", raw, RequestCode.POP_MESSAGE, pop_fields(stage, maxMsgNums="32"))
    too_many = pop_fields(stage, maxMsgNums="33")
    stage.ask("too many", raw, RequestCode.POP_MESSAGE, too_many)


@scenario(*RAW)
def assignments(stage: Stage) -> None:
    """A broker tells which queues a client gets, when it knows the client."""
    topic, group = stage.topic(), stage.topic("g")
    raw = stage.raw()
    raw.send(topic)
    asked = {"topic": topic, "consumerGroup": group, "clientId": "one", "strategyName": "AVG"}
    body = json.dumps({**asked, "messageModel": "CLUSTERING"}).encode()
    stage.ask("nobody", raw, RequestCode.QUERY_ASSIGNMENT, body=body)
    mode = {"topic": topic, "consumerGroup": group, "mode": "PULL", "popShareQueueNum": 0}
    stage.ask("mode", raw, RequestCode.SET_MESSAGE_REQUEST_MODE, body=json.dumps(mode).encode())
