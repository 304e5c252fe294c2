"""The format of a capture file.

A capture is the line `tidegate capture 1`, and then records up to the end of the file, big-endian:

    | time, ns since 1970: 8 | connection: 4 | kind: 1 | length: 4 | data: length |

`kind` is a `Kind`. Frames are complete, as they were on the wire, with their length field. Connections are numbered
from 1. A frame's time is when its last byte arrived at the recorder. The records are in the order of their times, as
far as the recorder's clock is.

The files of one run of a recorder are named `RUN-NNNNN.capture`, counted from 1; the file being written ends with
`.open` instead. Connections keep their numbers across the files of a run, and each file begins with an `OPENED` record
for every open connection.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple

MAGIC: Final = b"tidegate capture 1\n"
RECORD_HEAD: Final = struct.Struct(">QIBI")
"""Time, connection, kind, length of the data."""
LONGEST_FRAME: Final = 64 * 1024 * 1024
"""The most bytes of a frame after its length field; a larger length does not belong to a frame. Servers may allow more
than their default of 16 MiB (com.rocketmq.remoting.frameMaxLength)."""

SUFFIX: Final = ".capture"
OPEN_SUFFIX: Final = ".open"
"""The suffix of a file that is being written, or that a killed recorder left."""

_NAME: Final = re.compile(r"(.+)-(\d{5,})\.(?:capture|open)")


class Kind(IntEnum):
    """The kind of a record."""

    OPENED = 0
    """A new connection. The data is the server's name, ASCII."""
    FROM_CLIENT = 1
    """A frame."""
    FROM_SERVER = 2
    """A frame."""
    CLOSED = 3
    """The end of a connection; no data."""
    LOST = 4
    """Records that could not be written here. The data is their number, 8 bytes; the connection is that of one of
    them."""


class Record(NamedTuple):
    """One record of a capture file."""

    time_ns: int
    connection: int
    kind: Kind
    data: bytes


class CaptureError(Exception):
    """A file is not a capture, or its end is missing."""


def run_of(name: str) -> str:
    """Return the name of the run that a file belongs to; connection numbers are unique within a run. A file without a
    run's name is its own run."""
    match = _NAME.fullmatch(name)
    return match[1] if match else name


def read_capture(file: Path) -> Iterator[Record]:
    """Return the records of an undamaged capture file, in order. Raises CaptureError."""
    with file.open("rb") as stream:
        if stream.read(len(MAGIC)) != MAGIC:
            raise CaptureError(f"{file} is not a capture")
        while head := stream.read(RECORD_HEAD.size):
            if len(head) < RECORD_HEAD.size:
                raise CaptureError(f"{file} ends within a record")
            time_ns, connection, kind, length = RECORD_HEAD.unpack(head)
            data = stream.read(length)
            if len(data) < length:
                raise CaptureError(f"{file} ends within a record")
            yield Record(time_ns, connection, Kind(kind), data)
