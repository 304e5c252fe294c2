"""`python -m compat.bench.waiting NAMESRV TOPIC RECORDS CONSUMERS RATE WARMUP SECONDS BODY`: pulls that wait.

Each consumer is a connection with one pull that waits at the end of the topic's only queue. With several consumers,
each pulls a tag of its own. One more connection sends messages with these tags in turn, so each message goes to exactly
one consumer. A hundred official clients would need more of the machine than the server does. This program therefore
speaks the protocol itself, in one thread.

It replaces `Load.java`, with the same standard output and records.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import selectors
import socket
import struct
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from gateway.client import RemotingClient, successful
from gateway.wire.addresses import parse_address
from gateway.wire.codes import PullSysFlag, RequestCode, ResponseCode
from gateway.wire.commands import Command, decode_command, encode_command
from gateway.wire.dialect import to_json
from gateway.wire.frames import FrameBuffer
from gateway.wire.messages import decode_messages

_FIRST_ID: Final = 1 << 40
"""The first id of measured messages; smaller ids are those of the warm-up."""

_GROUP: Final = "bench-waiting"
_WAIT_MS: Final = 15_000
_PATIENCE_S: Final = 30
_NUMBERS: Final = re.compile(r"\d+")

_pack_sent = struct.Struct(">3q").pack
_pack_received = struct.Struct(">4q").pack
_pack_id = struct.Struct(">q").pack
_unpack_id = struct.Struct(">q").unpack_from


class Connection:
    """A connection that sends requests and receives answers."""

    def __init__(self, address: tuple[str, int], selector: selectors.BaseSelector) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frames = FrameBuffer()
        self._opaques = itertools.count(1)
        selector.register(self.socket, selectors.EVENT_READ, self)

    def ask(self, code: int, ext: Mapping[str, str], body: bytes = b"") -> int:
        """Send a request and return its `opaque`."""
        opaque = next(self._opaques)
        self.socket.sendall(encode_command(code, opaque, ext=ext, body=body))
        return opaque

    def receive(self) -> list[Command]:
        """Return the answers that have arrived."""
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the server closed a connection")
        return [c for c in map(decode_command, self._frames.feed(data)) if c.is_response]


class Consumer:
    """Pulls one queue from its beginning, for one tag or for all."""

    def __init__(self, connection: Connection, topic: str, number: int, tag: str) -> None:
        self.connection = connection
        self._offset = "0"
        self._ext = {
            "consumerGroup": f"{_GROUP}-{number}",
            "topic": topic,
            "queueId": "0",
            "maxMsgNums": "32",
            "sysFlag": str(PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(_WAIT_MS),
            "subscription": tag,
            "subVersion": "0",
            "expressionType": "TAG",
        }

    def pull(self, next_offset: str | None = None) -> None:
        """Pull from an offset on; without one, as after a refusal, from the same one again."""
        self._offset = next_offset or self._offset
        self.connection.ask(RequestCode.PULL_MESSAGE, self._ext | {"queueOffset": self._offset})


class Load:
    """The whole load, driven by one selector."""

    def __init__(self, broker: tuple[str, int], topic: str, consumers: int, body: int) -> None:
        self._selector = selectors.DefaultSelector()
        self._topic = topic
        self._tags = [f"tag{n}" for n in range(consumers)]
        self._filler = os.urandom(max(0, body - 8))
        self._sender = Connection(broker, self._selector)
        self._asked: dict[int, tuple[int, int, float]] = {}
        self._consumers: dict[Connection, Consumer] = {}
        self.sent = bytearray()
        self.received = bytearray()
        self.acknowledged = self.received_count = 0
        self.failures: dict[str, int] = {}
        for number, tag in enumerate(self._tags):
            connection = Connection(broker, self._selector)
            only = tag if consumers > 1 else "*"
            consumer = Consumer(connection, topic, number, only)
            self._consumers[connection] = consumer
            consumer.pull()

    def send(self, first: int, rate: float, seconds: float, *, tell: bool) -> float:
        """Send at a rate, without waiting for answers. Wait for the last answer and return the seconds taken.

        A send that is not answered in time has failed.
        """
        begin = time.monotonic()
        count = int(rate * seconds)
        told = begin
        for turn in range(count):
            planned = begin + turn / rate
            while (now := time.monotonic()) < planned:
                self._turn(planned - now)
            self._send_one(first + turn, planned)
            if tell and now > told + 0.5:
                told = now
                say(event="progress", sent=turn, received=self.received_count)
        deadline = time.monotonic() + _PATIENCE_S
        while self._asked and time.monotonic() < deadline:
            self._turn(0.05)
        for number, asked_ms, _ in self._asked.values():
            self._failed(number, asked_ms, "no answer")
        self._asked.clear()
        return time.monotonic() - begin

    def drain(self, count: int) -> bool:
        """Wait until `count` messages have been received; return False if that takes too long."""
        deadline = time.monotonic() + _PATIENCE_S
        while self.received_count < count:
            if time.monotonic() > deadline:
                return False
            self._turn(0.05)
        return True

    def idle(self, seconds: float) -> None:
        """Process what arrives for some time."""
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            self._turn(end - now)

    def close(self) -> None:
        """Close the connections."""
        self._selector.close()
        for connection in (self._sender, *self._consumers):
            connection.socket.close()

    def _send_one(self, number: int, planned: float) -> None:
        asked_ms = time.time_ns() // 1_000_000
        properties = (
            f"UNIQ_KEY\x01{number:032X}\x02TAGS\x01{self._tags[number % len(self._tags)]}\x02"
        )
        properties += f"asked\x01{asked_ms}\x02"
        ext = {"a": _GROUP, "b": self._topic, "c": "TBW102", "d": "1", "e": "0", "f": "0"}
        ext |= {"g": str(asked_ms), "h": "0", "i": properties, "j": "0"}
        opaque = self._sender.ask(RequestCode.SEND_MESSAGE_V2, ext, _pack_id(number) + self._filler)
        self._asked[opaque] = (number, asked_ms, planned)

    def _turn(self, timeout: float) -> None:
        for chosen, _ in self._selector.select(timeout):
            connection: Connection = chosen.data
            for answer in connection.receive():
                if connection is self._sender:
                    self._take_answer(answer)
                else:
                    self._take_page(self._consumers[connection], answer)

    def _take_answer(self, answer: Command) -> None:
        if answer.opaque not in self._asked:
            return  # too late
        number, asked_ms, planned = self._asked.pop(answer.opaque)
        if answer.code != ResponseCode.SUCCESS:
            # Without numbers, which make each remark unique, so that equal reasons are counted together.
            remark = _NUMBERS.sub("#", answer.remark or "")[:100]
            self._failed(number, asked_ms, f"code {answer.code}, {remark}")
        elif number >= _FIRST_ID:
            self.sent += _pack_sent(number, asked_ms, int((time.monotonic() - planned) * 1e9))
            self.acknowledged += 1

    def _failed(self, number: int, asked_ms: int, reason: str) -> None:
        if number >= _FIRST_ID:
            self.failures[reason] = self.failures.get(reason, 0) + 1
            self.sent += _pack_sent(number, asked_ms, -1)

    def _take_page(self, consumer: Consumer, answer: Command) -> None:
        now_ms = time.time_ns() // 1_000_000
        if answer.code == ResponseCode.SUCCESS:
            for message in decode_messages(answer.body):
                (number,) = _unpack_id(message.body)
                if number >= _FIRST_ID:
                    self.received += _pack_received(
                        number, message.born_ms, now_ms, message.store_ms
                    )
                    self.received_count += 1
        consumer.pull(answer.ext().get("nextBeginOffset"))


def find_broker(namesrv: str) -> tuple[str, int]:
    """Return the address of a name server's only broker."""
    with RemotingClient(*parse_address(namesrv)) as client:
        body = successful(client.ask(RequestCode.GET_BROKER_CLUSTER_INFO)).body
    # RocketMQ writes the brokers' numbers without quotes.
    ((_, broker),) = msgspec.json.decode(to_json(body))["brokerAddrTable"].items()
    return parse_address(broker["brokerAddrs"]["0"])


def make_topic(broker: tuple[str, int], topic: str) -> None:
    """Create a topic with one queue, at the broker itself."""
    ext = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1"}
    ext |= {"perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    with RemotingClient(*broker) as client:
        successful(client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext))


def say(**event: object) -> None:
    """Print an event as a line of JSON for the parent process."""
    print(json.dumps(event), flush=True)


def main(arguments: list[str]) -> None:
    """Run the load that the arguments describe."""
    namesrv, topic, records, *numbers = arguments
    consumers, rate, warmup, seconds, body = (float(one) for one in numbers)
    broker = find_broker(namesrv)
    make_topic(broker, topic)
    load = Load(broker, topic, int(consumers), int(body))
    load.send(0, rate, warmup, tell=False)
    load.idle(1)
    say(event="ready")
    sys.stdin.readline()
    took = load.send(_FIRST_ID, rate, seconds, tell=True)
    say(event="sent", seconds=took, sent=int(rate * seconds), acknowledged=load.acknowledged)
    say(event="drained", complete=load.drain(load.acknowledged))
    load.close()
    Path(records, "sent.bin").write_bytes(load.sent)
    Path(records, "received.bin").write_bytes(load.received)
    say(event="done", gc_ms=0, failures=load.failures)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1:])
