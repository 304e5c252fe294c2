"""A proxy that records every frame between real clients and real servers.

A capture file is the line `tidegate capture 1`, then records to its end, big-endian:

    | time, ns since 1970: 8 | connection: 4 | kind: 1 | length: 4 | data: length |

`kind` is a `Kind`. The data of `OPENED` is the name of the server that was connected to, in ASCII;
of the frames it is the whole frame as it was on the wire, its length field included; `CLOSED` has
none. Connections are numbered from 1. A frame's time is when its last byte had arrived here, and
the records are in the order of their times.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import IntEnum
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

_MAGIC: Final = b"tidegate capture 1\n"
_RECORD_HEAD: Final = struct.Struct(">QIBI")
_FRAME_LENGTH: Final = struct.Struct(">I")


class Kind(IntEnum):
    """What a record is of."""

    OPENED = 0
    FROM_CLIENT = 1
    FROM_SERVER = 2
    CLOSED = 3


class Record(NamedTuple):
    """One record of a capture file."""

    time_ns: int
    connection: int
    kind: Kind
    data: bytes


class Route(NamedTuple):
    """Where the proxy listens, and for which server."""

    name: str
    listen: tuple[str, int]
    server: tuple[str, int]


class CaptureError(Exception):
    """A file is no capture, or its end is missing."""


def read_capture(file: Path) -> Iterator[Record]:
    """The records of a capture file, in order. Raises CaptureError."""
    with file.open("rb") as stream:
        if stream.read(len(_MAGIC)) != _MAGIC:
            raise CaptureError(f"{file} is not a capture")
        while head := stream.read(_RECORD_HEAD.size):
            if len(head) < _RECORD_HEAD.size:
                raise CaptureError(f"{file} ends within a record")
            time_ns, connection, kind, length = _RECORD_HEAD.unpack(head)
            data = stream.read(length)
            if len(data) < length:
                raise CaptureError(f"{file} ends within a record")
            yield Record(time_ns, connection, Kind(kind), data)


class Recorder:
    """The proxy, in a thread of its own; `with` starts it, and ends it with a complete file.

    What passes is not changed, so clients keep using it only while servers tell them the address
    where it listens. Each frame is passed on when it is complete; what is no frame is not.
    """

    def __init__(self, file: Path, routes: Sequence[Route]) -> None:
        self._routes = routes
        self._path = file
        self._connections = itertools.count(1)
        self._started = threading.Event()
        self._failure: OSError | None = None
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            self._end()
            raise self._failure
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._end()

    def _end(self) -> None:
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> None:
        with self._path.open("wb") as self._file:
            self._file.write(_MAGIC)
            servers = []
            connections: set[asyncio.Task[None]] = set()
            try:
                for route in self._routes:
                    accept = partial(self._accept, route, connections)
                    servers.append(await asyncio.start_server(accept, *route.listen))
            except OSError as failure:
                self._failure = failure
                self._stop.set()
            self._started.set()
            await self._stop.wait()
            for server in servers:
                server.close()
            for connection in connections:
                connection.cancel()
            await asyncio.gather(*connections, return_exceptions=True)

    async def _accept(
        self,
        route: Route,
        connections: set[asyncio.Task[None]],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            await self._connect(route, reader, writer)
        except asyncio.CancelledError:
            pass  # the recording is over
        finally:
            connections.discard(task)
            writer.close()

    async def _connect(
        self, route: Route, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            from_server, to_server = await asyncio.open_connection(*route.server)
        except OSError:
            return  # the client sees its connection closed, as it would be refused there
        number = next(self._connections)
        self._record(number, Kind.OPENED, route.name.encode())
        ways = [
            asyncio.ensure_future(self._pass_on(number, Kind.FROM_CLIENT, reader, to_server)),
            asyncio.ensure_future(self._pass_on(number, Kind.FROM_SERVER, from_server, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            to_server.close()
            self._record(number, Kind.CLOSED, b"")

    async def _pass_on(
        self, number: int, kind: Kind, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Until one side closes its connection."""
        with suppress(asyncio.IncompleteReadError, OSError):
            while True:
                head = await reader.readexactly(_FRAME_LENGTH.size)
                frame = head + await reader.readexactly(*_FRAME_LENGTH.unpack(head))
                self._record(number, kind, frame)
                writer.write(frame)
                await writer.drain()

    def _record(self, number: int, kind: Kind, data: bytes) -> None:
        self._file.write(_RECORD_HEAD.pack(time.time_ns(), number, kind, len(data)) + data)
