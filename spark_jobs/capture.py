"""Reads the captures of `tidegate capture` and the tap; `recording.format` describes a capture file.

Reading continues after damage, and the bytes that were skipped are returned with their place. A large
file is read in ranges: `survey` reads only the heads of the records and finds where the first one of a
range begins. That is not certain until the range before it has been surveyed.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from recording.format import LONGEST_FRAME, MAGIC, RECORD_HEAD, Kind
from spark_jobs.errors import Damage, JobError

# Plain numbers, like the kind in a record: comparing it with an enum would take longer.
OPENED: Final = int(Kind.OPENED)
FROM_CLIENT: Final = int(Kind.FROM_CLIENT)
FROM_SERVER: Final = int(Kind.FROM_SERVER)
CLOSED: Final = int(Kind.CLOSED)
LOST: Final = int(Kind.LOST)

_head_and_length = struct.Struct(">QIBII").unpack_from
_LONGEST: Final = LONGEST_FRAME + 4
_LONGEST_NAME: Final = 256
_NO_TIME: Final = 1 << 63
"""Times must be below this: the tables have signed numbers of 64 bits."""
_NEAR_NS: Final = 24 * 60 * 60 * 1_000_000_000
"""When records are searched after damage, one counts only if it is within a day of the record before."""
_MAY_BE: Final = re.compile(rb"(?=[\x00-\x7f].{7}(?!\x00{4}).{4}[\x00-\x04]{2}.{3})", re.DOTALL)
"""Where a record's head may be: a time, a connection that is not 0, a kind, and a length below 83,886,080."""


class Record(NamedTuple):
    """A record, and the byte of the file where it begins."""

    position: int
    time_ns: int
    connection: int
    kind: int
    data: bytes


_record = partial(tuple.__new__, Record)
"""Does the same as `Record(...)`, in a third of the time."""


class Survey(msgspec.Struct, kw_only=True):
    """The contents of a range of a capture."""

    first: int
    """Where the range's first record, or damage, begins."""
    after: int
    """Where the first record, or damage, after the range begins."""
    last_ns: int | None
    """Time of the range's last record, or else of the last record before it."""
    opened: dict[int, str]
    """Connections that were opened in the range and are open at its end, with the name of their server."""
    closed: list[int]
    """Connections that were closed in the range, also if it opened them: each file repeats the openings of connections
    that are open at its beginning."""


def read_records(
    file: Path, start: int = 0, end: int | None = None, last_ns: int | None = None
) -> Iterator[Record | Damage]:
    """Yield the records of a capture file. Each byte after the first line is in one record or damage.

    :param start: where a record begins; 0 means the first one.
    :param end: records that begin here or later are not returned.
    :param last_ns: time of the record before `start`.
    :raises JobError: if the file is no capture.
    """
    with closing(_map(file)) as data:
        for found in _walk(data, max(start, len(MAGIC)), min(end or len(data), len(data)), last_ns):
            if isinstance(found, Damage):
                yield found
            else:
                position, time_ns, connection, kind, stop = found
                record = data[position + RECORD_HEAD.size : stop]
                yield _record((position, time_ns, connection, kind, record))


def survey(
    file: Path, start: int, end: int, *, is_certain: bool, last_ns: int | None = None
) -> Survey:
    """Survey a range of a capture by the heads of its records.

    :param is_certain: whether a record, or damage, begins at `start`. If not, the range begins at
        the next place that looks like a record.
    :raises JobError: if the file is no capture.
    """
    with closing(_map(file)) as data:
        first = max(start, len(MAGIC))
        if not is_certain:
            first = _next_record(data, first, len(data), None)
        found = Survey(first=first, after=first, last_ns=last_ns, opened={}, closed=[])
        for one in _walk(data, first, min(end, len(data)), last_ns):
            if isinstance(one, Damage):
                found.after = one.position + one.size
                continue
            position, found.last_ns, connection, kind, found.after = one
            if kind == OPENED:
                name = data[position + RECORD_HEAD.size : found.after]
                found.opened[connection] = name.decode(errors="replace")
            elif kind == CLOSED:
                found.opened.pop(connection, None)
                found.closed.append(connection)
    return found


def check_head(file: Path) -> None:
    """Raise JobError for a file that does not begin with the first line of this format."""
    with file.open("rb") as stream:
        if stream.read(len(MAGIC)) != MAGIC:
            raise JobError(f"{file} is not a capture: its first line is not {MAGIC.decode()!r}")


def _map(file: Path) -> mmap.mmap:
    check_head(file)
    with file.open("rb") as stream:
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)


def _walk(
    data: mmap.mmap, position: int, end: int, last_ns: int | None
) -> Iterator[tuple[int, int, int, int, int] | Damage]:
    """Yield position, time, connection, kind and end of the records that begin before `end`."""
    size = len(data)
    while position < end:
        if position + 21 <= size:
            # Most records are whole frames.
            time_ns, connection, kind, length, inner = _head_and_length(data, position)
            stop = position + 17 + length
            if (
                kind in (FROM_CLIENT, FROM_SERVER)
                and length == inner + 4
                and connection
                and time_ns < _NO_TIME
                and stop <= size
                and length <= _LONGEST
            ):
                yield position, time_ns, connection, kind, stop
                last_ns = time_ns
                position = stop
                continue
        known = _end_of_record(data, position, size)
        if known is None:
            following = _next_record(data, position + 1, size, last_ns)
            reason = "the file ends within a record" if following == size else "no record"
            yield Damage(position, following - position, reason)
            position = following
            continue
        last_ns, connection, kind, _ = RECORD_HEAD.unpack_from(data, position)
        yield position, last_ns, connection, kind, known
        position = known


def _end_of_record(data: mmap.mmap, position: int, size: int) -> int | None:
    """Return where the record at a byte ends; None if there is no record."""
    if position + RECORD_HEAD.size > size:
        return None
    time_ns, connection, kind, length = RECORD_HEAD.unpack_from(data, position)
    end = position + RECORD_HEAD.size + length
    if kind > LOST or length > _LONGEST or end > size or connection == 0 or time_ns >= _NO_TIME:
        return None
    if kind in (FROM_CLIENT, FROM_SERVER):
        # A frame has its own length; if the two lengths differ, one of them is damaged.
        start = position + RECORD_HEAD.size
        if length < 4 or int.from_bytes(data[start : start + 4], "big") != length - 4:
            return None
    elif (
        (kind == CLOSED and length)
        or (kind == OPENED and length > _LONGEST_NAME)
        or (kind == LOST and length != 8)
    ):
        return None
    return int(end)


def _next_record(data: mmap.mmap, position: int, size: int, last_ns: int | None) -> int:
    """Return the next byte where two records in a row begin, or one that ends the file; else the file's end."""
    for found in _MAY_BE.finditer(data, position):
        at = found.start()
        end = _end_of_record(data, at, size)
        if end is None or not _is_near(data, at, last_ns):
            continue
        (time_ns, *_) = RECORD_HEAD.unpack_from(data, at)
        if end == size or (_end_of_record(data, end, size) and _is_near(data, end, time_ns)):
            return at
    return size


def _is_near(data: mmap.mmap, position: int, last_ns: int | None) -> bool:
    (time_ns, *_) = RECORD_HEAD.unpack_from(data, position)
    return last_ns is None or abs(time_ns - last_ns) < _NEAR_NS
