"""POP consumption: the broker tracks which messages are being consumed, and clients acknowledge them."""

from __future__ import annotations

import base64
import json
import time
from functools import partial

from compat.clients.driver import PATIENCE_S, until
from compat.scenarios.raw import RawClient
from compat.scenarios.stage import RAW, Stage, scenario
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import Command
from gateway.wire.messages import decode_messages

_SOON_MS = "60000"


def pop_fields(stage: Stage, **ext: str) -> dict[str, str]:
    """Return the fields of a pop that does not wait. `ext` adds fields or replaces the usual ones.

    RocketMQ refuses a pop 500 ms after its `bornTime`, or, if that is 0, after it has begun with it. So these pops are
    born only when no answer is waited for any longer.
    """
    return {
        "consumerGroup": stage.topic("g"),
        "topic": stage.topic(),
        "queueId": "0",
        "maxMsgNums": "1",
        "invisibleTime": _SOON_MS,
        "pollTime": "0",
        "bornTime": str(time.time_ns() // 1_000_000 + int(PATIENCE_S * 1_000)),
        "initMode": "0",
        **ext,
    }


def receipt(stage: Stage, popped: Command) -> dict[str, str]:
    """Return the fields that acknowledge the first message of an answer (ExtraInfoUtil)."""
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


def fill(stage: Stage, raw: RawClient, count: int) -> None:
    """Send numbered messages, again if refused: a broker that has just started may say that it is busy."""

    def is_taken(number: int) -> bool:
        return raw.send(stage.topic(), b"%d" % number).code != ResponseCode.SYSTEM_BUSY

    for number in range(count):
        until(partial(is_taken, number), f"the send of message {number}")
    raw.wait_for(stage.topic(), count)


@scenario(*RAW)
def one_at_a_time(stage: Stage) -> None:
    """A popped message is invisible to others until its time is up or it is acknowledged."""
    raw = stage.raw()
    fill(stage, raw, 3)
    first = stage.ask("first", raw, RequestCode.POP_MESSAGE, pop_fields(stage))
    second = stage.ask("second", raw, RequestCode.POP_MESSAGE, pop_fields(stage))
    stage.ask("ack", raw, RequestCode.ACK_MESSAGE, receipt(stage, first))
    later = {**receipt(stage, second), "invisibleTime": _SOON_MS}
    stage.ask("later", raw, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, later)
    stage.ask("rest", raw, RequestCode.POP_MESSAGE, pop_fields(stage, maxMsgNums="32"))
    too_many = pop_fields(stage, maxMsgNums="33")
    stage.ask("too many", raw, RequestCode.POP_MESSAGE, too_many)
    raw.send(stage.topic(), b"late")
    raw.wait_for(stage.topic(), 4)
    raw.ask(RequestCode.POP_MESSAGE, pop_fields(stage, invisibleTime="1000"))
    back: list[list[object]] = []

    def is_back() -> bool:
        popped = decode_messages(raw.ask(RequestCode.POP_MESSAGE, pop_fields(stage)).body)
        back.extend([message.body, message.reconsume_times] for message in popped)
        return bool(back)

    until(is_back, "the message whose time is up")
    stage.see("back", back)


@scenario(*RAW)
def in_order(stage: Stage) -> None:
    """A queue popped in order is blocked until all popped messages are acknowledged, or visible again."""
    raw = stage.raw()
    fill(stage, raw, 5)
    ordered = pop_fields(stage, order="true")

    def pop(step: str, **ext: str) -> Command:
        return stage.ask(step, raw, RequestCode.POP_MESSAGE, {**ordered, **ext})

    def ack(step: str, popped: Command, **ext: str) -> None:
        stage.ask(step, raw, RequestCode.ACK_MESSAGE, {**receipt(stage, popped), **ext})

    def put_off(step: str, popped: Command, invisible_ms: str) -> None:
        fields = {**receipt(stage, popped), "invisibleTime": invisible_ms}
        answer = raw.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)
        ext = answer.ext()
        # The answer's time counts from the pop, so it is longer by the time since then.
        passed_ms = int(ext["invisibleTime"]) - int(invisible_ms)
        of_pop = ext["popTime"] == popped.ext()["popTime"] and 0 <= passed_ms < int(_SOON_MS)
        stage.see(step, [answer.code, of_pop, ext["reviveQid"]])

    first = pop("two", maxMsgNums="2")
    pop("blocked")
    pop("another group", consumerGroup=stage.topic("h"))
    ack("second ack", first, offset="1")
    pop("still blocked")
    ack("not popped", first, offset="4")
    ack("first ack", first)
    ack("again", first)
    pop("next", attemptId="a")
    second = pop("repeated", attemptId="a")
    put_off("put off", second, "0")
    time.sleep(0.2)
    third = pop("visible again", maxMsgNums="2", attemptId="b")
    ack("old handle", second)
    put_off("longer", third, _SOON_MS)
    gone = {**receipt(stage, first), "invisibleTime": _SOON_MS}
    stage.ask("acknowledged", raw, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, gone)
    where = {"expType": "TAG", "exp": "*", "order": "true", "attemptId": "c"}
    notified = pop_fields(stage, **where)
    stage.ask("notification", raw, RequestCode.NOTIFICATION, notified)
    both = {
        "c": stage.topic("g"),
        "t": stage.topic(),
        "r": "0",
        "so": 2,
        "q": 0,
        "rq": 999,
        "pt": int(third.ext()["popTime"]),
        "it": int(third.ext()["invisibleTime"]),
        "b": base64.b64encode(b"\x03").decode(),
    }
    body = json.dumps({"brokerName": "broker-a", "acks": [both]}).encode()
    stage.ask("batch", raw, RequestCode.BATCH_ACK_MESSAGE, body=body)
    pop("last", maxMsgNums="32")


@scenario(*RAW)
def by_priority(stage: Stage) -> None:
    """Of a topic with priorities, the messages with the highest one are popped first."""
    raw = stage.raw()
    topic = raw.topic_fields(stage.topic(), 4, attributes="+message.type=PRIORITY")
    stage.ask("topic", raw, RequestCode.UPDATE_AND_CREATE_TOPIC, topic)
    for priority in (1, 3, 0, 2):
        properties = f"_SYS_MSG_PRIORITY_\x01{priority}\x02"
        raw.send(stage.topic(), b"%d" % priority, properties=properties)
    until(
        lambda: all(raw.max_offset(stage.topic(), queue) == 1 for queue in range(4)),
        "a message in each queue",
    )
    for number in range(4):
        answer = raw.ask(RequestCode.POP_MESSAGE, pop_fields(stage, queueId="-1"))
        stage.see(f"pop {number}", [message.body for message in decode_messages(answer.body)])


@scenario(*RAW)
def assignments(stage: Stage) -> None:
    """A broker assigns queues to a client that it knows."""
    topic, group = stage.topic(), stage.topic("g")
    raw = stage.raw()
    raw.send(topic)
    asked = {"topic": topic, "consumerGroup": group, "clientId": "one", "strategyName": "AVG"}
    body = json.dumps({**asked, "messageModel": "CLUSTERING"}).encode()
    stage.ask("nobody", raw, RequestCode.QUERY_ASSIGNMENT, body=body)
    mode = {"topic": topic, "consumerGroup": group, "mode": "PULL", "popShareQueueNum": 0}
    stage.ask("mode", raw, RequestCode.SET_MESSAGE_REQUEST_MODE, body=json.dumps(mode).encode())
