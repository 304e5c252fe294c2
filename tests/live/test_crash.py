"""kill -9 under load: what was acknowledged is there once, what was aborted never comes, and nothing is early, not even
what was given another time."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from gateway.client import ClientError, RemotingClient, reschedule
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.messages import Message, decode_messages
from gateway.wire.properties import find
from tests.live.process import GatewayProcess

pytestmark = pytest.mark.live

TOPIC = "ledger"
QUEUES = 4
SENDERS = 4
ROUNDS = 4


class Ledger:
    """What the gateway acknowledged."""

    def __init__(self) -> None:
        self.sent: dict[str, int] = {}
        """The earliest time, epoch ms, at which each message may fire."""
        self.moved: set[str] = set()
        self.aborted: set[str] = set()
        self.unanswered: set[str] = set()
        """Messages whose abort was asked for when the gateway went down: either is true."""
        self.tried: set[str] = set()


def send(client: RemotingClient, message_id: str, due_ms: int) -> str | None:
    """Send a timed message; its recall handle, or None when it was not accepted."""
    properties = f"UNIQ_KEY\x01{message_id}\x02TIMER_DELIVER_MS\x01{due_ms}\x02"
    ext = {"a": "ledger", "b": TOPIC, "c": "TBW102", "d": str(QUEUES), "f": "0", "h": "0"}
    ext |= {"e": str(hash(message_id) % QUEUES), "g": str(due_ms), "i": properties, "j": "0"}
    answer = client.ask(RequestCode.SEND_MESSAGE_V2, ext, message_id.encode())
    return answer.ext().get("recallHandle", "") if answer.code == ResponseCode.SUCCESS else None


def work(gateway: GatewayProcess, ledger: Ledger, seed: int, numbers: itertools.count[int]) -> None:
    """Send and abort until the gateway is killed."""
    chance = random.Random(seed)
    try:
        with gateway.client() as client:
            while True:
                message_id = f"{seed:02}{next(numbers):010}"
                ledger.tried.add(message_id)
                due_ms = time.time_ns() // 1_000_000 + chance.randrange(-100, 2_000)
                handle = send(client, message_id, due_ms)
                if handle is None:
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
    except ClientError:
        return


def move(client: RemotingClient, ledger: Ledger, message_id: str, new_ms: int) -> None:
    """Give a message another time. Until the answer is there, either of the two may be true."""
    old_ms = ledger.sent[message_id]
    ledger.sent[message_id] = min(old_ms, new_ms)
    [result] = reschedule(client, id=message_id, topic=TOPIC, due=new_ms)
    if result.outcome == "rescheduled":
        ledger.sent[message_id] = new_ms
        ledger.moved.add(message_id)
    else:
        assert result.outcome == "already fired"
        ledger.sent[message_id] = old_ms


def drain(gateway: GatewayProcess) -> list[Message]:
    """Everything in the topic's queues once nothing is pending."""
    found: list[Message] = []
    with gateway.client() as client:
        while msgspec.json.decode(client.ask(RequestCode.LOOK_UP_TIMERS).body)["messages"]:
            time.sleep(0.1)
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


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_nothing_acknowledged_is_lost_or_doubled(tmp_path: Path, flush: str) -> None:
    ledger = Ledger()
    numbers = itertools.count()
    chance = random.Random(flush)
    with GatewayProcess(tmp_path / "data", "--flush", flush) as gateway:
        for round_ in range(ROUNDS):
            senders = [
                threading.Thread(
                    target=work, args=(gateway, ledger, SENDERS * round_ + n, numbers), daemon=True
                )
                for n in range(SENDERS)
            ]
            for sender in senders:
                sender.start()
            time.sleep(chance.uniform(0.5, 1.5))
            gateway.kill()
            for sender in senders:
                sender.join()
            gateway.start()
        found = drain(gateway)
    ids = Counter(find(message.properties, "UNIQ_KEY") or "" for message in found)
    assert len(ledger.sent) > 100
    assert ledger.aborted
    assert [message_id for message_id, count in ids.items() if count > 1] == []
    assert ledger.sent.keys() - ledger.aborted - ledger.unanswered - ids.keys() == set()
    assert len(ledger.unanswered) <= ROUNDS * SENDERS
    assert ledger.aborted & ids.keys() == set()
    assert ids.keys() <= ledger.tried
    early = []
    for message in found:
        asked_ms = int(find(message.properties, "TIMER_DELIVER_MS") or 0)
        message_id = find(message.properties, "UNIQ_KEY") or ""
        if message.store_ms < ledger.sent.get(message_id, asked_ms):
            early.append(message)
    assert early == []
    assert ledger.moved & ids.keys()


def test_sigterm_finishes_what_is_under_way(tmp_path: Path) -> None:
    ledger = Ledger()
    numbers = itertools.count()
    with GatewayProcess(tmp_path / "data") as gateway:
        senders = [
            threading.Thread(target=work, args=(gateway, ledger, n, numbers), daemon=True)
            for n in range(SENDERS)
        ]
        for sender in senders:
            sender.start()
        time.sleep(1)
        assert gateway.terminate() == 0
        for sender in senders:
            sender.join()
        gateway.start()
        ids = Counter(find(message.properties, "UNIQ_KEY") or "" for message in drain(gateway))
    assert ledger.sent.keys() - ledger.aborted - ledger.unanswered - ids.keys() == set()
    assert set(ids.values()) == {1}
