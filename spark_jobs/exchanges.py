"""Frames, in the order of a recording, paired to requests with their answers, as Arrow batches.

A request is paired with the next answer of the same number on its connection. Every frame is in
exactly one row: as the request of a `pair`, as its answer, or in an `aside` with the reason. Each
file ends with a row `file` that has the counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from gateway.wire.codes import CommandFlag
from gateway.wire.commands import CommandError, decode_command
from gateway.wire.frames import FrameBuffer, FrameError

TEXTS: Final = pa.map_(pa.string(), pa.string())

ROWS: Final = pa.schema(
    [
        ("kind", pa.string()),
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
        ("size", pa.int64()),
        ("reason", pa.string()),
        ("counts", pa.map_(pa.string(), pa.int64())),
    ]
)
"""What a source yields; docs/replay.md says what each column means."""

DDL: Final = (
    "kind string, file string, position bigint, connection string, server string, "
    "from_client boolean, asked_ns bigint, answered_ns bigint, opaque int, code int, flag int, "
    "version int, language string, ext map<string,string>, body binary, answer_code int, "
    "answer_remark string, answer_ext map<string,string>, answer_body binary, size bigint, "
    "reason string, counts map<string,bigint>"
)
"""`ROWS` as Spark writes it."""

_BATCH_ROWS: Final = 2048
_BATCH_BYTES: Final = 16 * 1024 * 1024
_OUTSTANDING: Final = 100_000
"""So many unanswered requests are remembered; the oldest is then told as unanswered."""
_KEPT_OF_ASIDE: Final = 256


class _Header(msgspec.Struct, gc=False):
    """A JSON header as the protocol means it; what deviates is read by `decode_command`."""

    code: int = 0
    opaque: int = 0
    flag: int = 0
    version: int = 0
    language: str = "JAVA"
    remark: str | None = None
    ext: dict[str, str] | None = msgspec.field(default=None, name="extFields")


_read_header = msgspec.json.Decoder(_Header).decode


class Frame(NamedTuple):
    """A frame, decoded."""

    header: _Header
    body: bytes


def decode_frame(data: bytes) -> Frame:
    """Decode one whole frame with its length field.

    :raises ValueError: when it is not exactly one frame with a header.
    """
    size = int.from_bytes(data[5:8], "big")
    if len(data) >= 8 and int.from_bytes(data[:4], "big") == len(data) - 4 and data[4] == 0:
        try:
            return Frame(_read_header(data[8 : 8 + size]), data[8 + size :])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass  # the patient way below reads more, and says better what is wrong
    try:
        frames = FrameBuffer().feed(data)
        if len(frames) != 1:
            raise ValueError("it is not exactly one frame")
        command = decode_command(frames[0])
    except (FrameError, CommandError) as error:
        raise ValueError(str(error)) from error
    header = _Header(
        code=command.code,
        opaque=command.opaque,
        flag=command.flag,
        version=command.version,
        language=command.language,
        remark=command.remark,
        ext=command.ext(),
    )
    return Frame(header, command.body)


_Row = list[Any]
_AT: Final = {name: place for place, name in enumerate(ROWS.names)}
_ANSWERED, _ANSWER_CODE, _ANSWER_REMARK, _ANSWER_EXT, _ANSWER_BODY = (
    _AT[name]
    for name in ("answered_ns", "answer_code", "answer_remark", "answer_ext", "answer_body")
)


class Pairer:
    """Takes what a file has, in its order, and gives rows as Arrow batches.

    Memory is bounded by the outstanding requests and one batch.
    """

    def __init__(self, file: str) -> None:
        self._file = file
        self._outstanding: dict[tuple[str, bool, int], _Row] = {}
        self._rows: list[_Row] = []
        self._bytes = 0
        self.counts = {"frames": 0, "paired": 0, "aside": 0, "unanswered": 0, "unasked": 0}
        self._last_ns = 0

    def frame(
        self,
        position: int,
        time_ns: int,
        connection: str,
        server: str,
        from_client: bool,
        data: bytes,
    ) -> None:
        """Take a frame. `server` is the name or address of the listening side."""
        self.counts["frames"] += 1
        if time_ns < self._last_ns:
            self.count("clock went back")
        self._last_ns = time_ns
        try:
            header, body = decode_frame(data)
        except ValueError as error:
            self._aside(position, connection, data, f"no frame: {error}")
            return
        self._bytes += len(data)
        if header.flag & CommandFlag.RESPONSE:
            place = (connection, not from_client, header.opaque)
            row = self._outstanding.pop(place, None)
            if row is None:
                self.counts["unasked"] += 1
                row = [
                    *("pair", self._file, position, connection, server, not from_client),
                    *(None, None, header.opaque, None, None, header.version, header.language),
                    *(None, None, None, None, None, None, None, None, None),
                ]
            else:
                self.counts["paired"] += 1
            row[_ANSWERED] = time_ns
            row[_ANSWER_CODE] = header.code
            row[_ANSWER_REMARK] = header.remark
            row[_ANSWER_EXT] = _pairs(header.ext)
            row[_ANSWER_BODY] = body
            self._rows.append(row)
            return
        row = [
            *("pair", self._file, position, connection, server, from_client),
            *(time_ns, None, header.opaque, header.code, header.flag, header.version),
            *(header.language, _pairs(header.ext), body),
            *(None, None, None, None, None, None, None),
        ]
        if header.flag & CommandFlag.ONEWAY:
            self.counts["unanswered"] += 1
            self._rows.append(row)
            return
        place = (connection, from_client, header.opaque)
        before = self._outstanding.pop(place, None)
        if before is None and len(self._outstanding) >= _OUTSTANDING:
            before = self._outstanding.pop(next(iter(self._outstanding)))
        if before is not None:
            self.counts["unanswered"] += 1
            self._rows.append(before)
        self._outstanding[place] = row

    def aside(self, position: int, connection: str | None, size: int, reason: str) -> None:
        """Take bytes that are no frame; they are only counted and told."""
        self.counts["aside bytes"] = self.counts.get("aside bytes", 0) + size
        self._tell_aside(position, connection, size, reason, None)

    def count(self, name: str, by: int = 1) -> None:
        """Count something that the file's row is to tell."""
        self.counts[name] = self.counts.get(name, 0) + by

    def full(self) -> Iterator[pa.RecordBatch]:
        """The next batch, when there is enough for one."""
        if len(self._rows) >= _BATCH_ROWS or self._bytes >= _BATCH_BYTES:
            yield self._batch()

    def end(self) -> Iterator[pa.RecordBatch]:
        """What remains, and the file's row."""
        self.counts["unanswered"] += len(self._outstanding)
        self._rows.extend(self._outstanding.values())
        self._outstanding.clear()
        row: _Row = [None] * len(ROWS)
        row[_AT["kind"]], row[_AT["file"]] = "file", self._file
        row[_AT["counts"]] = list(self.counts.items())
        self._rows.append(row)
        yield self._batch()

    def _aside(self, position: int, connection: str, data: bytes, reason: str) -> None:
        self.counts["aside"] += 1
        self._tell_aside(position, connection, len(data), reason, data[:_KEPT_OF_ASIDE])

    def _tell_aside(
        self, position: int, connection: str | None, size: int, reason: str, data: bytes | None
    ) -> None:
        row: _Row = [None] * len(ROWS)
        for name, value in (
            ("kind", "aside"),
            ("file", self._file),
            ("position", position),
            ("connection", connection),
            ("size", size),
            ("reason", reason),
            ("body", data),
        ):
            row[_AT[name]] = value
        self._rows.append(row)

    def _batch(self) -> pa.RecordBatch:
        columns = zip(*self._rows, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, ROWS, strict=True)]
        self._rows = []
        self._bytes = 0
        return pa.RecordBatch.from_arrays(arrays, schema=ROWS)


def _pairs(ext: dict[str, str] | None) -> list[tuple[str, str]] | None:
    return None if ext is None else list(ext.items())
