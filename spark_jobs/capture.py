"""Reads what the recording proxy wrote: `compat.recorder` says what a capture file is.

A damaged file is read on behind the damage, and what was passed over is told with its place.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from spark_jobs.errors import Damage, JobError

MAGIC: Final = b"tidegate capture 1\n"
OPENED: Final = 0
FROM_CLIENT: Final = 1
FROM_SERVER: Final = 2
CLOSED: Final = 3

_head = struct.Struct(">QIBI")
_LONGEST: Final = 16_777_216 + 4
_LONGEST_NAME: Final = 1024
_NEAR_NS: Final = 24 * 60 * 60 * 1_000_000_000
"""A record within a day of the one before is believed to be one, where records are looked for."""


class Record(NamedTuple):
    """A record, and the byte of the file where it begins."""

    position: int
    time_ns: int
    connection: int
    kind: int
    data: bytes


def read_records(file: Path) -> Iterator[Record | Damage]:
    """All of a capture file: each byte behind the first line is in one record or in one damage.

    :raises JobError: when it is no capture file.
    """
    with file.open("rb") as stream:
        if stream.read(len(MAGIC)) != MAGIC:
            raise JobError(f"{file} is not a capture: its first line is not {MAGIC.decode()!r}")
        size = stream.seek(0, 2)
        if size == len(MAGIC):
            return
        with closing(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)) as data:
            yield from _records(data, size)


def _records(data: mmap.mmap, size: int) -> Iterator[Record | Damage]:
    position = len(MAGIC)
    last_ns: int | None = None
    while position < size:
        end = _end_of_record(data, position, size)
        if end is None:
            following = _next_record(data, position + 1, size, last_ns)
            reason = "the file ends within a record" if following == size else "no record"
            yield Damage(position, following - position, reason)
            position = following
            continue
        time_ns, connection, kind, _ = _head.unpack_from(data, position)
        yield Record(position, time_ns, connection, kind, data[position + _head.size : end])
        last_ns = time_ns
        position = end


def _end_of_record(data: mmap.mmap, position: int, size: int) -> int | None:
    """Where the record at a byte ends; None when there is none."""
    if position + _head.size > size:
        return None
    _, connection, kind, length = _head.unpack_from(data, position)
    end = position + _head.size + length
    if kind > CLOSED or length > _LONGEST or end > size or connection == 0:
        return None
    if kind in (FROM_CLIENT, FROM_SERVER):
        # A frame says its own length; when the two differ, one of them is damaged.
        start = position + _head.size
        if length < 4 or int.from_bytes(data[start : start + 4], "big") != length - 4:
            return None
    elif (kind == CLOSED and length) or (kind == OPENED and length > _LONGEST_NAME):
        return None
    return int(end)


def _next_record(data: mmap.mmap, position: int, size: int, last_ns: int | None) -> int:
    """The next byte at which two records in a row begin, or one that ends the file; else its end."""
    for at in range(position, size - _head.size + 1):
        end = _end_of_record(data, at, size)
        if end is None or not _is_near(data, at, last_ns):
            continue
        if end == size or (_end_of_record(data, end, size) and _is_near(data, end, last_ns)):
            return at
    return size


def _is_near(data: mmap.mmap, position: int, last_ns: int | None) -> bool:
    (time_ns, *_) = _head.unpack_from(data, position)
    return last_ns is None or abs(time_ns - last_ns) < _NEAR_NS
