"""A connection for requests that no real client sends."""

from __future__ import annotations

import itertools
import json
import socket
import time
from collections.abc import Callable, Mapping
from typing import Final, Self

from compat.clients.driver import PATIENCE_S, until
from compat.comparison import RAW
from gateway.wire.codes import CommandFlag, PullSysFlag, RequestCode
from gateway.wire.commands import Command, decode_command, encode_command
from gateway.wire.frames import FrameBuffer

SEND_LETTERS: Final = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
    "maxReconsumeTimes": "l",
    "batch": "m",
}


def heartbeat(
    client: str, group: str, topic: str, expression: str = "*", **more: str | int
) -> bytes:
    """Return the body of a consumer's heartbeat. `more` are fields of its subscription."""
    subscription = {"topic": topic, "subString": expression, "subVersion": 1, **more}
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": [subscription],
    }
    return json.dumps({"clientID": client, "consumerDataSet": [consumer]}).encode()


class RawClient:
    """A TCP connection; opened by `with`."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._opaques = itertools.count(1)
        self._frames = FrameBuffer()
        self._came: list[Command] = []
        self._socket: socket.socket | None = None

    def __enter__(self) -> Self:
        self._socket = socket.create_connection(self._address, PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Close the connection without unregistering."""
        assert self._socket is not None
        self._socket.close()

    def write(self, data: bytes) -> None:
        """Send any bytes."""
        assert self._socket is not None
        self._socket.sendall(data)

    def tell(
        self,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        oneway: bool = False,
        version: int = 513,
        language: str = RAW,
    ) -> int:
        """Send a request and return its `opaque`."""
        opaque = next(self._opaques)
        flag = CommandFlag.ONEWAY if oneway else 0
        self.write(
            encode_command(
                code, opaque, flag=flag, ext=ext, body=body, version=version, language=language
            )
        )
        return opaque

    def ask(
        self,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        version: int = 513,
        language: str = RAW,
    ) -> Command:
        """Send a request and wait for its answer. Raises TimeoutError or ConnectionError."""
        return self.answer(self.tell(code, ext, body, version=version, language=language))

    def answer(self, opaque: int, limit_s: float = PATIENCE_S) -> Command:
        """Wait for the answer to the request with that `opaque`."""
        return self._wait(lambda command: command.is_response and command.opaque == opaque, limit_s)

    def request(self, code: int, limit_s: float = PATIENCE_S) -> Command:
        """Wait for a request with that code from the server."""
        return self._wait(lambda command: not command.is_response and command.code == code, limit_s)

    def is_asked(self, code: int) -> bool:
        """Whether the server sends a request with that code within half a second."""
        try:
            self.request(code, 0.5)
        except TimeoutError:
            return False
        return True

    def is_quiet(self) -> bool:
        """Whether nothing has come that was not waited for, and nothing comes within half a second."""
        try:
            self._wait(lambda command: True, 0.5)
        except TimeoutError:
            return True
        return False

    def send(
        self, topic: str, body: bytes = b"-", *, code: int = RequestCode.SEND_MESSAGE_V2, **ext: str
    ) -> Command:
        """Send a message. `ext` replaces usual fields, by their long names."""
        fields = {
            "producerGroup": "raw-senders",
            "topic": topic,
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "1",
            "queueId": "0",
            "sysFlag": "0",
            "bornTimestamp": str(time.time_ns() // 1_000_000),
            "flag": "0",
            "properties": "",
            **ext,
        }
        if code != RequestCode.SEND_MESSAGE:
            fields = {SEND_LETTERS[name]: value for name, value in fields.items()}
        return self.ask(code, fields, body)

    def topic_fields(self, topic: str, queues: int, **ext: str) -> dict[str, str]:
        """Return the fields of a request that makes a topic. `ext` adds fields or replaces the usual ones."""
        return {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "order": "false",
            **ext,
        }

    def pull_fields(self, topic: str, offset: int = 0, **ext: str) -> dict[str, str]:
        """Return the fields of a pull that does not wait. `ext` adds fields or replaces the usual ones."""
        return {
            "consumerGroup": f"{topic}-g",
            "topic": topic,
            "queueId": "0",
            "queueOffset": str(offset),
            "maxMsgNums": "32",
            "sysFlag": str(PullSysFlag.SUBSCRIPTION),
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
            **ext,
        }

    def max_offset(self, topic: str, queue: int = 0) -> int:
        """Ask for the next offset of a queue."""
        ext = {"topic": topic, "queueId": str(queue)}
        return int(self.ask(RequestCode.GET_MAX_OFFSET, ext).ext()["offset"])

    def wait_for(self, topic: str, count: int) -> None:
        """Wait until a topic's first queue has `count` messages.

        RocketMQ adds a message to its queue a moment after it has answered the sender.
        """
        until(lambda: self.max_offset(topic) == count, f"{count} messages in {topic}")

    def wait_for_commit(self, topic: str, group: str, queue: int = 0) -> None:
        """Wait until a group's offset is past the queue's first message."""
        place = {"consumerGroup": group, "topic": topic, "queueId": str(queue)}

        def is_committed() -> bool:
            answer = self.ask(RequestCode.QUERY_CONSUMER_OFFSET, place)
            return answer.ext().get("offset") == "1"

        until(is_committed, "the consumer's commit")

    def is_closed(self, limit_s: float = PATIENCE_S) -> bool:
        """Whether the server closes the connection within the limit without sending anything."""
        assert self._socket is not None
        self._socket.settimeout(limit_s)
        try:
            return not self._socket.recv(1)
        except TimeoutError:
            return False
        except OSError:
            return True

    def _wait(self, is_it: Callable[[Command], bool], limit_s: float) -> Command:
        assert self._socket is not None
        deadline = time.monotonic() + limit_s
        while True:
            for place, command in enumerate(self._came):
                if is_it(command):
                    return self._came.pop(place)
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError(f"no answer in {limit_s:g} s")
            self._socket.settimeout(remaining)
            data = self._socket.recv(256 * 1024)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._came += [decode_command(frame) for frame in self._frames.feed(data)]
