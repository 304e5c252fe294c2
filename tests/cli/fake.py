"""A fake server with prepared answers, for tests of the command line."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from gateway.wire.commands import Command, decode_command, encode_response
from gateway.wire.frames import FrameBuffer

Reply = Callable[[Command], bytes]

MESSAGE: dict[str, Any] = {
    "msgId": "7F0000010A2B18B4AAC2000000000001",
    "offsetMsgId": "7F00000100002694000000000000002A",
    "topic": "orders",
    "queueId": 3,
    "tags": "close",
    "keys": "order-1001",
    "dueMs": 1_896_078_600_000,
    "state": "pending",
    "storeMs": 1_896_078_500_000,
    "bornMs": 1_896_078_499_990,
    "bodySize": 2048,
    "recallHandle": "djE",
}
"""A pending message, as a gateway tells of it."""


def success(command: Command, body: object) -> bytes:
    """Return the frame that answers a request with a JSON body."""
    return encode_response(command.opaque, 0, body=json.dumps(body).encode())


class FakeGateway:
    """Answers each request with the next of its replies, sent as raw bytes, and then closes the connection.

    `asked` has the requests in the order of arrival.
    """

    def __init__(self, *replies: Reply) -> None:
        self._replies = list(replies)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.asked: list[Command] = []

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._listener.getsockname()
        return host, port

    @property
    def server(self) -> str:
        """The address as `--server` expects it."""
        return "{}:{}".format(*self.address)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)

    def _serve(self) -> None:
        while self._replies:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        frames = FrameBuffer()
        while self._replies:
            data = connection.recv(65_536)
            if not data:
                return
            for frame in frames.feed(data):
                command = decode_command(frame)
                self.asked.append(command)
                connection.sendall(self._replies.pop(0)(command))
