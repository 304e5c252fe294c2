"""`python -m compat.bench.answers QUEUES`: a server that answers sends and stores nothing.

It prints `listening on 127.0.0.1:PORT` and is name server and broker of every topic there. The load's rate with it is
about the most that the official client and loopback can reach on this machine with any server.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final

from gateway.wire.bodies import TopicSettings, encode_route
from gateway.wire.codes import RequestCode
from gateway.wire.commands import decode_command, encode_response, send_response
from gateway.wire.frames import Frame, FrameBuffer

_SENDS: Final = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2})
_READ_AND_WRITE: Final = 6
_MSG_ID: Final = "7F00000100002A9F0000000000000000"


class _Answers(asyncio.Protocol):
    def __init__(self, queues: int) -> None:
        self._queues = queues
        self._frames = FrameBuffer()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        # One write for all requests that arrived together, as in the gateway.
        self._transport.write(b"".join(map(self._answer, self._frames.feed(data))))

    def _answer(self, frame: Frame) -> bytes:
        assert self._transport is not None
        command = decode_command(frame)
        if command.is_oneway:
            return b""
        if command.code in _SENDS:
            return send_response(command.opaque, _MSG_ID, 0, 0, None)
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            host, port = self._transport.get_extra_info("sockname")
            queues = TopicSettings("", self._queues, self._queues, _READ_AND_WRITE)
            body = encode_route("cluster", "answers", f"{host}:{port}", queues)
            return encode_response(command.opaque, 0, body=body)
        return encode_response(command.opaque, 0)


async def _serve(queues: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Answers(queues), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    print(f"listening on {host}:{port}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
