"""Makes large captures from small ones: the frames of real clients, many times over.

A copy has the recorded frames with their bytes and order. Only the time, the connection's number, and
eight digits of the message ids of clients (UNIQ_KEY) differ from copy to copy, as they would in
production.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from gateway.wire.codes import CommandFlag
from recording.format import MAGIC, RECORD_HEAD
from spark_jobs.capture import FROM_CLIENT, FROM_SERVER, OPENED, Record, read_records
from spark_jobs.exchanges import decode_frame

_ID: Final = re.compile(
    rb"(?:\\u0001|[^0-9A-F])(?:[0-9A-F]{24})?[0-9A-F]{16}([0-9A-F]{8})[0-9A-F]{8}(?![0-9A-F])"
)
"""An id of 32 digits, or of 56 from a client with an IPv6 address. The eight digits before the last eight are
replaced."""


class Recording(NamedTuple):
    """A capture that was made."""

    frames: int
    requests: int
    size: int
    """The size of the file in bytes."""
    seconds: float
    """The time from its first to its last frame, by the times in it."""


class _Template:
    """The records of some captures as one block, with the places that differ from copy to copy."""

    def __init__(self, records: Sequence[Record]) -> None:
        parts = []
        times, connections, ids = [], [], []
        at = 0
        for record in records:
            times.append(at)
            connections.append(at + 8)
            start = at + RECORD_HEAD.size
            ids += [start + found.start(1) for found in _ID.finditer(record.data)]
            head = RECORD_HEAD.pack(0, record.connection, record.kind, len(record.data))
            parts.append(head + record.data)
            at = start + len(record.data)
        self.block = np.frombuffer(b"".join(parts), np.uint8)
        self.times = _places(times, 8)
        self.connections = _places(connections, 4)
        self.ids = _places(ids, 8)


def _places(starts: Sequence[int], width: int) -> Any:
    return np.array(starts, np.int64).reshape(-1, 1) + np.arange(width)


def multiply(
    recordings: Sequence[Path],
    file: Path,
    frames: int,
    *,
    start_ns: int,
    codes: Collection[int] | None = None,
    per_second: float = 10_000.0,
    lanes: int = 8,
) -> Recording:
    """Write a capture of at least `frames` frames.

    :param codes: write only requests of these codes, and their answers.
    :param per_second: frames per second, by the times in the capture.
    :param lanes: copies use this many sets of the recordings' connections in turn.
    """
    records, opened, requests = _records(recordings, codes)
    template = _Template(records)
    count = len(records)
    copies = -(-frames // count)
    step_ns = 1e9 / per_second
    numbers = np.array([record.connection for record in records], np.int64)
    width = max(opened)
    with file.open("wb") as stream:
        stream.write(MAGIC)
        for lane in range(lanes):
            for number, name in opened.items():
                head = RECORD_HEAD.pack(start_ns, lane * width + number, OPENED, len(name))
                stream.write(head + name)
        for copy in range(copies):
            block = template.block.copy()
            since_ns = (copy * count + np.arange(count)) * step_ns
            block[template.times] = _big_endian(start_ns + since_ns.astype(np.int64), 8)
            block[template.connections] = _big_endian(numbers + copy % lanes * width, 4)
            block[template.ids] = np.frombuffer(b"%08X" % copy, np.uint8)
            stream.write(block.data)
        size = stream.tell()
    total = copies * count
    return Recording(total, copies * requests, size, total / per_second)


def _records(
    recordings: Sequence[Path], codes: Collection[int] | None
) -> tuple[list[Record], dict[int, bytes], int]:
    """Return the wanted records with new connection numbers, the connections, and the number of requests."""
    wanted: list[Record] = []
    opened: dict[int, bytes] = {}
    requests = 0
    for recording in recordings:
        base = max(opened, default=0)
        asked: set[tuple[int, bool, int]] = set()
        for record in read_records(recording):
            if not isinstance(record, Record):
                raise ValueError(f"{recording} is damaged at byte {record.position}")
            number = base + record.connection
            if record.kind == OPENED:
                opened[number] = record.data
            if record.kind not in (FROM_CLIENT, FROM_SERVER):
                continue
            header, _ = decode_frame(record.data)
            is_answer = bool((header.flag or 0) & CommandFlag.RESPONSE)
            place = (number, (record.kind == FROM_CLIENT) != is_answer, header.opaque)
            if not is_answer and (codes is None or header.code in codes):
                asked.add(place)
                requests += 1
            elif not is_answer or place not in asked:
                continue
            wanted.append(record._replace(connection=number))
    used = {record.connection for record in wanted}
    return wanted, {number: name for number, name in opened.items() if number in used}, requests


def _big_endian(values: Any, width: int) -> Any:
    return values.astype(f">i{width}").view(np.uint8).reshape(-1, width)
