"""Pairs the frames of a recording, in order, into requests with their answers, as Arrow batches.

A request is paired with the next answer of the same number (`opaque`) on its connection. Every frame
is in exactly one row: as the request of a `pair`, as its answer, or in an `aside` with the reason.

Work is done per column instead of per row wherever possible: a core pairs a million frames and makes
columns of them in about six seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa

from gateway.wire.codes import CommandFlag
from gateway.wire.commands import CommandError, decode_command
from gateway.wire.frames import FrameBuffer, FrameError
from spark_jobs.schemas import ddl

TEXTS: Final = pa.map_(pa.string(), pa.string())

ROWS: Final = pa.schema(
    [
        ("file", pa.string()),
        ("position", pa.int64()),
        ("connection", pa.string()),
        ("server", pa.string()),
        ("from_client", pa.bool_()),
        ("asked_ns", pa.int64()),
        ("answered_ns", pa.int64()),
        ("opaque", pa.int32()),
        ("code", pa.int32()),
        ("flag", pa.int32()),
        ("version", pa.int32()),
        ("language", pa.string()),
        ("ext", TEXTS),
        ("body", pa.binary()),
        ("answer_code", pa.int32()),
        ("answer_remark", pa.string()),
        ("answer_ext", TEXTS),
        ("answer_body", pa.binary()),
    ]
)
"""The columns of pairs; docs/replay-reference.md describes them."""

DDL: Final = ddl(ROWS)
"""`ROWS` as a schema of Spark."""

ASIDES: Final = pa.schema(
    [
        ("file", pa.string()),
        ("position", pa.int64()),
        ("connection", pa.string()),
        ("size", pa.int64()),
        ("reason", pa.string()),
        ("body", pa.binary()),
    ]
)
"""The columns of bytes that are no readable frame."""

ASIDE_DDL: Final = ddl(ASIDES)

BATCH_ROWS: Final = 8192
BATCH_BYTES: Final = 16 * 1024 * 1024
_OUTSTANDING: Final = 100_000
"""The most unanswered requests that are kept. Beyond it, the older half is written as unanswered."""
_KEPT_OF_ASIDE: Final = 256


_Int32 = Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)]


class Header(msgspec.Struct, gc=False):
    """A JSON header with the types of the protocol. `decode_command` reads headers that deviate."""

    code: _Int32 | None = 0
    opaque: _Int32 = 0
    flag: _Int32 | None = 0
    version: _Int32 | None = 0
    language: str | None = "JAVA"
    remark: str | None = None
    ext: dict[str, str] | None = msgspec.field(default=None, name="extFields")


class _FrameHeader(Header, gc=False):
    """The header of a frame: whatever is null in it, it has a code."""

    code: _Int32 = 0


class _LooseHeader(_FrameHeader, gc=False):
    """A header as C++ clients write it, with numbers in place of text."""

    ext: dict[str, str | int] | None = msgspec.field(  # type: ignore[assignment]
        default=None, name="extFields"
    )


_read_header = msgspec.json.Decoder(_FrameHeader).decode
_read_loose = msgspec.json.Decoder(_LooseHeader).decode
_NOTHING: Final = Header(None, 0, None, None, None, None, None)
"""Stands for the answer of a request without one."""


def decode_frame(data: bytes) -> tuple[Header, bytes]:
    """Return header and body of one whole frame with its length field.

    :raises ValueError: if the data is not exactly one frame with a header.
    """
    if len(data) >= 8 and data[4] == 0 and int.from_bytes(data[:4], "big") == len(data) - 4:
        end = 8 + int.from_bytes(data[5:8], "big")
        if end <= len(data):
            try:
                return _read_header(data[8:end]), data[end:]
            except msgspec.ValidationError:
                header = _loose(data[8:end])
                if header is not None:
                    return header, data[end:]
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                pass  # the slower way below reads more, and has better error messages
    return _decode_patiently(data)


def _loose(header: bytes) -> Header | None:
    try:
        found = _read_loose(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if found.ext:
        found.ext = {key: str(value) for key, value in found.ext.items()}
    return found


def _decode_patiently(data: bytes) -> tuple[Header, bytes]:
    try:
        frames = FrameBuffer().feed(data)
        if len(frames) != 1:
            raise ValueError("it is not exactly one frame")
        command = decode_command(frames[0])
    except (FrameError, CommandError) as error:
        raise ValueError(str(error)) from error
    header = Header(
        code=command.code,
        opaque=command.opaque,
        flag=command.flag,
        version=command.version,
        language=command.language,
        remark=command.remark,
        ext=command.ext(),
    )
    return header, command.body


_Asked = tuple[int, "Connection", bool, int, Header, bytes]
"""A request: position, connection, whether it is the client's, time, header, body."""
Exchange = tuple[
    int, "Connection", bool, int | None, Header, bytes | None, int | None, Header, bytes | None
]
"""An `_Asked`, and time, header and body of the answer. A tuple, for speed: each pair has one."""


class Connection:
    """A connection of a recording."""

    __slots__ = ("asked", "begins", "known", "name", "server")

    def __init__(self, name: str, server: str | None, *, begins: bool) -> None:
        self.name = name
        """Unique among recordings."""
        self.server = server
        """Name or address of the side that listens; None if the opening was not recorded."""
        self.begins = begins
        """Whether it has no frames before the part that is read here."""
        self.asked: tuple[dict[int, _Asked], dict[int, _Asked]] = ({}, {})
        """Unanswered requests of server and client, by their numbers."""
        self.known: tuple[set[int], set[int]] = (set(), set())
        """Numbers seen so far, of server and client; kept only if the connection does not begin here."""


class Pairer:
    """Pairs frames, which it gets in the order of a recording, into rows of Arrow batches.

    Memory is bounded by the outstanding requests and one batch.

    :param begins: whether the recording begins here. If not, an answer without a request may belong
        to a request before this part, and is kept in `heads`.
    :param is_in_order: whether the frames of all connections are in the order of their times.
    """

    def __init__(self, file: str, *, begins: bool = True, is_in_order: bool = True) -> None:
        self.file = file
        self._is_in_order = is_in_order
        self._begins = begins
        self._exchanges: list[Exchange] = []
        self._asides: list[tuple[Any, ...]] = []
        self._bytes = 0
        self._waiting = 0
        self._connections: dict[int, Connection] = {}
        self.closed: dict[int, str] = {}
        """Numbers and names of connections that have ended; empty if the recording begins here."""
        self.heads: list[Exchange] = []
        """Answers to requests before this part. Each is the first frame of its number here."""
        self.counts = {"frames": 0, "paired": 0, "aside": 0, "unanswered": 0, "unasked": 0}
        self.last_ns = 0

    def open(self, number: int, name: str, server: str | None) -> Connection:
        """Add an open connection. One that is open already continues, with this name and server."""
        begins = self._begins or number in self.closed
        connection = Connection(name, server, begins=begins)
        before = self._connections.get(number)
        if before is not None:
            connection.asked, connection.known = before.asked, before.known
        self._connections[number] = connection
        return connection

    def close(self, number: int) -> None:
        """End a connection: its outstanding requests count as unanswered."""
        connection = self._connections.pop(number, None)
        if connection is not None:
            if not self._begins:
                self.closed[number] = connection.name
            for asked in connection.asked:
                self._waiting -= len(asked)
                self._unanswered(list(asked.values()))

    def connection(self, number: int) -> Connection | None:
        """Return the open connection with a number."""
        return self._connections.get(number)

    def frame(
        self, position: int, time_ns: int, connection: Connection, from_client: bool, data: bytes
    ) -> None:
        """Take the next frame and pair it."""
        self.counts["frames"] += 1
        if time_ns < self.last_ns and self._is_in_order:
            self.count("clock went back")
        self.last_ns = time_ns
        try:
            header, body = decode_frame(data)
        except ValueError as error:
            self._aside(position, connection.name, data, f"no frame: {error}")
            return
        self._bytes += len(data)
        opaque, flag = header.opaque, header.flag or 0
        if flag & CommandFlag.RESPONSE:
            asked = connection.asked[not from_client]
            request = asked.pop(opaque, None)
            if request is None:
                self._unasked(position, time_ns, connection, not from_client, header, body)
            else:
                self._waiting -= 1
                self.counts["paired"] += 1
                self._exchanges.append((*request, time_ns, header, body))
            return
        request = (position, connection, from_client, time_ns, header, body)
        if flag & CommandFlag.ONEWAY:
            self._unanswered([request])
            return
        asked = connection.asked[from_client]
        before = asked.pop(opaque, None)
        if before is None:
            self._waiting += 1
            if not connection.begins:
                connection.known[from_client].add(opaque)
        else:
            self._unanswered([before])
        asked[opaque] = request
        if self._waiting > _OUTSTANDING:
            self._forget_older_half()

    def aside(self, position: int, connection: str | None, size: int, reason: str) -> None:
        """Take bytes that are no frame. They are counted and listed, but not kept."""
        self.count("aside bytes", size)
        self._asides.append((self.file, position, connection, size, reason, None))

    def count(self, name: str, by: int = 1) -> None:
        """Add to a count of the file's row."""
        self.counts[name] = self.counts.get(name, 0) + by

    @property
    def is_full(self) -> bool:
        """Whether there is enough for a batch."""
        return len(self._exchanges) >= BATCH_ROWS or self._bytes >= BATCH_BYTES

    def take(self) -> tuple[list[Exchange], list[tuple[Any, ...]]]:
        """Remove and return the pairs and the rows of `ASIDES` so far."""
        taken = self._exchanges, self._asides
        self._exchanges, self._asides, self._bytes = [], [], 0
        return taken

    def outstanding(self) -> list[Exchange]:
        """Remove and return the requests without an answer so far."""
        found: list[_Asked] = []
        for connection in self._connections.values():
            for asked in connection.asked:
                found += asked.values()
                asked.clear()
        self._waiting = 0
        found.sort(key=_position)
        return [(*request, None, _NOTHING, None) for request in found]

    def end(self) -> None:
        """End the recording: outstanding requests count as unanswered."""
        rest = self.outstanding()
        self.counts["unanswered"] += len(rest)
        self._exchanges += rest

    def _unanswered(self, requests: Sequence[_Asked]) -> None:
        self.counts["unanswered"] += len(requests)
        self._exchanges += [(*request, None, _NOTHING, None) for request in requests]

    def _unasked(
        self,
        position: int,
        time_ns: int,
        connection: Connection,
        from_client: bool,
        header: Header,
        body: bytes,
    ) -> None:
        request = Header(None, header.opaque, None, header.version, header.language, None, None)
        row = (position, connection, from_client, None, request, None, time_ns, header, body)
        known = connection.known[from_client]
        if connection.begins or header.opaque in known:
            self.counts["unasked"] += 1
            self._exchanges.append(row)
        else:
            known.add(header.opaque)
            self.heads.append(row)

    def _forget_older_half(self) -> None:
        waiting = [
            (request[0], asked, number)
            for connection in self._connections.values()
            for asked in connection.asked
            for number, request in asked.items()
        ]
        waiting.sort(key=_position)
        for _, asked, number in waiting[: len(waiting) // 2]:
            self._unanswered([asked.pop(number)])
        self._waiting = len(waiting) - len(waiting) // 2

    def _aside(self, position: int, connection: str, data: bytes, reason: str) -> None:
        self.counts["aside"] += 1
        kept = data[:_KEPT_OF_ASIDE]
        self._asides.append((self.file, position, connection, len(data), reason, kept))


def _position(row: tuple[Any, ...]) -> int:
    position: int = row[0]
    return position


def exchange_batch(file: str, exchanges: Sequence[Exchange]) -> pa.RecordBatch:
    """Return pairs of a file as a batch of `ROWS`. There must be at least one."""
    positions, connections, askers, asked, requests, bodies, answered, answers, answer_bodies = zip(
        *exchanges, strict=True
    )
    columns = (
        pa.repeat(pa.scalar(file), len(exchanges)),
        pa.array(positions, pa.int64()),
        pa.array([one.name for one in connections], pa.string()),
        pa.array([one.server for one in connections], pa.string()),
        pa.array(askers, pa.bool_()),
        pa.array(asked, pa.int64()),
        pa.array(answered, pa.int64()),
        pa.array([one.opaque for one in requests], pa.int32()),
        pa.array([one.code for one in requests], pa.int32()),
        pa.array([one.flag for one in requests], pa.int32()),
        pa.array([one.version for one in requests], pa.int32()),
        pa.array([one.language for one in requests], pa.string()),
        text_maps([one.ext for one in requests]),
        pa.array(bodies, pa.binary()),
        pa.array([one.code for one in answers], pa.int32()),
        pa.array([one.remark for one in answers], pa.string()),
        text_maps([one.ext for one in answers]),
        pa.array(answer_bodies, pa.binary()),
    )
    return pa.RecordBatch.from_arrays(list(columns), schema=ROWS)


def aside_batch(rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    """Return rows of `ASIDES` as a batch. There must be at least one."""
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, ASIDES, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ASIDES)


def text_maps(maps: Sequence[dict[str, str] | None]) -> pa.MapArray:
    """Return a column of `TEXTS`, made from all keys and all values at once."""
    ends = accumulate([len(one) if one else 0 for one in maps], initial=0)
    full = [one for one in maps if one]
    return pa.MapArray.from_arrays(
        pa.array(ends, pa.int32()),
        pa.array(list(chain.from_iterable(full)), pa.string()),
        pa.array(list(chain.from_iterable([one.values() for one in full])), pa.string()),
        TEXTS,
        mask=pa.array([one is None for one in maps], pa.bool_()),
    )
