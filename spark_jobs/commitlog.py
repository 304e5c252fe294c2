"""Reads a broker's commit log in place (CommitLog, MappedFileQueue).

A file's name is the offset of its first byte in the whole log. A record contains its own offset, so a
reader that begins anywhere in a file can find the next true record.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from gateway.wire.messages import (
    CRC_MASK,
    MAGIC_V1,
    MAGIC_V2,
    Message,
    MessageError,
    decode_message,
)
from spark_jobs.errors import Damage, JobError

_BLANK: Final = 0xCBD43194
_head = struct.Struct(">II").unpack_from
_offset = struct.Struct(">q").unpack_from
_OFFSET_AT: Final = 28
_LEAST: Final = 91
_NO_TIME_MS: Final = (1 << 63) // 1_000_000
"""Store times must be below this: the tables have them in ns, as signed numbers of 64 bits."""
_MAGICS: Final = tuple((magic & 0xFFFFFFFF).to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2))
_KNOWN: Final = {magic & 0xFFFFFFFF for magic in (MAGIC_V1, MAGIC_V2)}


class Found(NamedTuple):
    """A record and the byte of the file where it begins."""

    position: int
    message: Message


def base_offset(file: Path) -> int:
    """Return the offset of a file's first byte in the log.

    :raises JobError: if the name does not have 20 digits.
    """
    if len(file.name) != 20 or not file.name.isdecimal():
        raise JobError(f"{file} is no commit log file: its name is not an offset in 20 digits")
    return int(file.name)


def read_log(file: Path, start: int, end: int) -> Iterator[Found | Damage]:
    """Yield the records that begin within a range of a file's bytes, and the damage there.

    Adjacent ranges yield each record and each damage once: a damage belongs to the range with the
    record before it. The unwritten end of a file (zeros) and the blank end of a full file are no damage.
    """
    base = base_offset(file)
    size = file.stat().st_size
    end = min(end, size)
    if start >= end:
        return
    with (
        file.open("rb") as stream,
        closing(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)) as data,
    ):
        position = start if start == 0 else _next_record(data, start, size, base)
        if position >= end:
            return
        while position < size:
            if _is_end(data, position, size):
                return
            if _is_record(data, position, size, base):
                if position >= end:
                    return
                length, _ = _head(data, position)
                try:
                    message = _message(data[position : position + length])
                except MessageError as error:
                    reason = str(error)
                else:
                    yield Found(position, message)
                    position += length
                    continue
            else:
                reason = "no record"
            following = _next_record(data, position + 1, size, base)
            if following == size:
                reason += ", and none follows"
            yield Damage(position, following - position, reason)
            position = following


def _is_end(data: mmap.mmap, position: int, size: int) -> bool:
    """Whether the written part of the file ends here."""
    if position + 8 > size:
        return _is_zero(data, position, size)
    length, magic = _head(data, position)
    return magic == _BLANK or (length == magic == 0 and _is_zero(data, position, size))


def _is_record(data: mmap.mmap, position: int, size: int, base: int) -> bool:
    if position + _LEAST > size:
        return False
    length, magic = _head(data, position)
    (offset,) = _offset(data, position + _OFFSET_AT)
    fits = length >= _LEAST and position + length <= size
    return bool(magic in _KNOWN and offset == base + position and fits)


def _message(record: bytes) -> Message:
    """Return the message of a record. Raises MessageError."""
    message = decode_message(record)
    if message.body_crc != zlib.crc32(message.body) & CRC_MASK:
        raise MessageError("a record whose body is not as it was stored, by its CRC")
    if message.properties.endswith("\0"):
        raise MessageError("a record whose end was not written")
    if not 0 <= message.store_ms < _NO_TIME_MS:
        raise MessageError("a record with an impossible time")
    return message


def _next_record(data: mmap.mmap, start: int, size: int, base: int) -> int:
    """Return the first byte from `start` on where a record begins; else the file's size."""
    found = size
    # No magic is close to the end. A search up to the end itself reads behind it in Python 3.11.2, and may crash.
    last = max(0, size - _LEAST + 8)
    for magic in _MAGICS:
        at = data.find(magic, start + 4, min(found + 8, last))
        while at >= 0:
            if _is_record(data, at - 4, size, base):
                found = min(found, at - 4)
                break
            at = data.find(magic, at + 1, last)
    return found


_PAGE: Final = 1 << 20


def _is_zero(data: mmap.mmap, position: int, size: int) -> bool:
    zeros = bytes(_PAGE)
    while position < size:
        page = data[position : position + _PAGE]
        if page != zeros[: len(page)]:
            return False
        position += _PAGE
    return True
