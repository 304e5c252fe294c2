"""A load of timed messages that are sent, rescheduled and aborted, and a ledger of the gateway's answers."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from threading import Event

import msgspec

from compat.clients.driver import until
from gateway.client import ClientError, RefusalError, RemotingClient, reschedule
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.messages import Message, decode_messages
from gateway.wire.properties import find

TOPIC = "ledger"
QUEUES = 4


class Ledger:
    """The gateway's acknowledgements."""

    def __init__(self) -> None:
        self.sent: dict[str, int] = {}
        """The earliest time, epoch ms, at which each message may fire."""
        self.moved: set[str] = set()
        self.aborted: set[str] = set()
        self.unanswered: set[str] = set()
        """Messages whose abort was requested when the gateway went down: they may be aborted or not."""
        self.tried: set[str] = set()
        self.refused = 0
        """Sends that were answered with an error."""

    def faults(self, found: list[Message]) -> dict[str, set[str]]:
        """Compare all fired messages with the ledger. Return the ids of the wrong ones by the kind of fault."""
        ids = Counter(find(message.properties, "UNIQ_KEY") or "" for message in found)
        early = set()
        for message in found:
            message_id = find(message.properties, "UNIQ_KEY") or ""
            asked_ms = int(find(message.properties, "TIMER_DELIVER_MS") or 0)
            if message.store_ms < self.sent.get(message_id, asked_ms):
                early.add(message_id)
        return {
            "lost": self.sent.keys() - self.aborted - self.unanswered - ids.keys(),
            "early": early,
            "doubled": {message_id for message_id, count in ids.items() if count > 1},
            "aborted, yet fired": self.aborted & ids.keys(),
            "never sent": ids.keys() - self.tried,
        }


def send(client: RemotingClient, message_id: str, due_ms: int) -> str | None:
    """Send a timed message. Return its recall handle, or None when it was not accepted."""
    properties = f"UNIQ_KEY\x01{message_id}\x02TIMER_DELIVER_MS\x01{due_ms}\x02"
    ext = {"a": "ledger", "b": TOPIC, "c": "TBW102", "d": str(QUEUES), "f": "0", "h": "0"}
    ext |= {"e": str(hash(message_id) % QUEUES), "g": str(due_ms), "i": properties, "j": "0"}
    answer = client.ask(RequestCode.SEND_MESSAGE_V2, ext, message_id.encode())
    return answer.ext().get("recallHandle", "") if answer.code == ResponseCode.SUCCESS else None


def work(
    connection: RemotingClient, ledger: Ledger, seed: int, numbers: Iterator[int], over: Event
) -> None:
    """Send, reschedule and abort until the gateway is gone, or `over` is set."""
    chance = random.Random(seed)
    try:
        with connection as client:
            while not over.is_set():
                message_id = f"{seed:02}{next(numbers):010}"
                ledger.tried.add(message_id)
                due_ms = time.time_ns() // 1_000_000 + chance.randrange(-100, 2_000)
                handle = send(client, message_id, due_ms)
                if handle is None:
                    ledger.refused += 1
                    # A gateway that refuses now will refuse the next one at once too.
                    over.wait(0.01)
                    continue
                ledger.sent[message_id] = due_ms
                if handle and chance.random() < 0.2:
                    move(client, ledger, message_id, due_ms + chance.randrange(-1_000, 2_000))
                if handle and chance.random() < 0.2:
                    ext = {"topic": TOPIC, "recallHandle": handle}
                    ledger.unanswered.add(message_id)
                    if client.ask(RequestCode.RECALL_MESSAGE, ext).code == ResponseCode.SUCCESS:
                        ledger.aborted.add(message_id)
                    ledger.unanswered.remove(message_id)
    except (ClientError, RefusalError):
        return


def move(client: RemotingClient, ledger: Ledger, message_id: str, new_ms: int) -> None:
    """Reschedule a message. Until the answer arrives, either due time may be valid."""
    old_ms = ledger.sent[message_id]
    ledger.sent[message_id] = min(old_ms, new_ms)
    [result] = reschedule(client, id=message_id, topic=TOPIC, due=new_ms)
    if result.outcome == "rescheduled":
        ledger.sent[message_id] = new_ms
        ledger.moved.add(message_id)
    else:
        assert result.outcome == "already fired"
        ledger.sent[message_id] = old_ms


def wait_until_fired(client: RemotingClient) -> None:
    """Return when nothing is pending; raise TimeoutError when that takes too long."""

    def is_nothing_pending() -> bool:
        return not msgspec.json.decode(client.ask(RequestCode.LOOK_UP_TIMERS).body)["messages"]

    until(is_nothing_pending, "nothing is pending any more", pause=0.1)


def read_all(connection: RemotingClient) -> list[Message]:
    """Return all messages of the topic's queues."""
    found: list[Message] = []
    with connection as client:
        for queue in range(QUEUES):
            offset = 0
            while True:
                ext = {"consumerGroup": "drain", "topic": TOPIC, "queueId": str(queue)}
                ext |= {"queueOffset": str(offset), "maxMsgNums": "32", "sysFlag": "4"}
                ext |= {"commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0"}
                answer = client.ask(RequestCode.PULL_MESSAGE, ext | {"subscription": "*"})
                if answer.code != ResponseCode.SUCCESS:
                    break
                found += decode_messages(answer.body)
                offset = int(answer.ext()["nextBeginOffset"])
    return found
