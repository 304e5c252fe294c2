"""What a capture file is.

The line `tidegate capture 1`, then records to its end, big-endian:

    | time, ns since 1970: 8 | connection: 4 | kind: 1 | length: 4 | data: length |

`kind` is a `Kind`. Frames are whole, as they were on the wire, with their length field. Connections
are numbered from 1; a frame's time is when its last byte had arrived at the recorder, and the
records are in the order of their times, as far as its clock is.

The files of one run of a recorder are named `RUN-NNNNN.capture`, counted from 1; the one that is
being written ends with `.open` instead. Connections keep their numbers over the files of a run, and
each file begins with an `OPENED` of every connection that is open.
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
"""Bytes of a frame behind its length field; what announces more is none. Servers may be set to take more than the
16 MiB of their default (com.rocketmq.remoting.frameMaxLength)."""

SUFFIX: Final = ".capture"
OPEN_SUFFIX: Final = ".open"
"""Of a file that is being written, or that a killed recorder left."""

_NAME: Final = re.compile(r"(.+)-(\d{5,})\.(?:capture|open)")


class Kind(IntEnum):
    """What a record is of."""

    OPENED = 0
    """A connection, to the server whose name is the data, ASCII."""
    FROM_CLIENT = 1
    """A frame."""
    FROM_SERVER = 2
    """A frame."""
    CLOSED = 3
    """The end of a connection; no data."""
    LOST = 4
    """Here so many records, an 8-byte number, could not be written. The connection is one of theirs."""


class Record(NamedTuple):
    """One record of a capture file."""

    time_ns: int
    connection: int
    kind: Kind
    data: bytes


class CaptureError(Exception):
    """A file is no capture, or its end is missing."""


def run_of(name: str) -> str:
    """The name of the run that a file is of, by which connections are told apart; else the file's own."""
    match = _NAME.fullmatch(name)
    return match[1] if match else name


def read_capture(file: Path) -> Iterator[Record]:
    """The records of an undamaged capture file, in order. Raises CaptureError."""
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
