"""Reads sources in tasks: whole files, or ranges of files, of captures, packet captures and commit logs.

The tasks write captures and packet captures directly as Parquet (`tables`). Commit logs are a Spark
data source of Arrow batches, in ranges of `RANGE_BYTES`.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_jobs import messages
from spark_jobs.capture import (
    CLOSED,
    FROM_CLIENT,
    FROM_SERVER,
    LOST,
    OPENED,
    Record,
    Survey,
    read_records,
    survey,
)
from spark_jobs.commitlog import Found, read_log
from spark_jobs.errors import Damage
from spark_jobs.exchanges import DDL, Pairer
from spark_jobs.logged_sends import send_batch, send_of
from spark_jobs.tables import HEADS, OPEN, PartWriter, Receipt

RANGE_BYTES: Final = 128 * 1024 * 1024
"""The size of a file's range for one task."""

_LOG_ROWS: Final = 4096
_LOG_BYTES: Final = 16 * 1024 * 1024


class FilePart(InputPartition):
    """A range of a file's bytes."""

    def __init__(self, file: str, start: int = 0, end: int = 0) -> None:
        self.file = file
        self.start = start
        self.end = end


class Part(msgspec.Struct, kw_only=True):
    """A range of a capture whose beginning is certain, with the state of the recording there."""

    number: int
    file: str
    run: str
    """The run of a recorder that wrote the file, with the folder; files of one run share their connections."""
    start: int
    end: int
    last_ns: int | None = None
    connections: dict[int, str] = {}
    """Connections that are open at the beginning, with the name of their server."""
    begins: bool = True
    """Whether the recording begins with this part, so that there are no earlier requests."""
    ends: bool = True
    """Whether the recording ends with this part, so that there are no later answers."""


Span = tuple[str, int, int]
"""A file, and a range of its bytes."""


def ranges(size: int, range_bytes: int = RANGE_BYTES) -> list[tuple[int, int]]:
    """Divide a file's bytes into adjacent ranges; an empty file has one."""
    starts = range(0, max(size, 1), range_bytes)
    return [(start, min(start + range_bytes, size)) for start in starts]


def guess(span: Span) -> Survey:
    """Survey a range. The beginning that is found is only likely."""
    file, start, end = span
    return survey(Path(file), start, end, is_certain=start == 0)


class Surveyed(Protocol):
    """The survey of a range of a capture or a packet capture."""

    first: int
    after: int
    last_ns: int | None


_Survey = TypeVar("_Survey", bound=Surveyed)


def certain(
    spans: Sequence[Span],
    guesses: Sequence[_Survey],
    again: Callable[[Span, Sequence[_Survey]], _Survey],
) -> list[_Survey]:
    """Return the surveys of adjacent ranges of files, with their beginnings now certain.

    :param again: surveys a range again whose guessed beginning was wrong. It gets the certain surveys
        so far; the range begins where the last of them ends.
    """
    found: list[_Survey] = []
    for span, guessed in zip(spans, guesses, strict=True):
        is_inside = span[1] > 0
        if is_inside and (guessed.first != found[-1].after or guessed.last_ns is None):
            found.append(again(span, found))
        else:
            found.append(guessed)
    return found


def survey_again(span: Span, before: Sequence[Survey]) -> Survey:
    """Survey a range of a capture that begins where the last survey ends."""
    file, _, end = span
    last = before[-1]
    return survey(Path(file), last.after, end, is_certain=True, last_ns=last.last_ns)


def parts_of_run(run: str, spans: Sequence[Span], surveys: Sequence[Survey]) -> list[Part]:
    """Return a run's parts, made from the surveys of its files, in order.

    The caller must set the number of each part.
    """
    parts: list[Part] = []
    connections: dict[int, str] = {}
    last_ns: int | None = None
    for at, ((file, _, _), found) in enumerate(zip(spans, surveys, strict=True)):
        parts.append(
            Part(
                number=0,
                file=file,
                run=run,
                start=found.first,
                end=found.after,
                last_ns=last_ns,
                connections=dict(connections),
                begins=at == 0,
                ends=at == len(surveys) - 1,
            )
        )
        last_ns = found.last_ns
        for number in found.closed:
            connections.pop(number, None)
        connections |= found.opened
    return parts


def read_part(part: Part, folder: Path, levels: tuple[int, ...]) -> Receipt:
    """Read a part of a capture and write its tables."""
    writer = PartWriter(folder, part.number, levels)
    pairer = Pairer(part.file, begins=part.begins)
    if part.last_ns is not None:
        pairer.last_ns = part.last_ns
    for number, server in part.connections.items():
        pairer.open(number, f"{part.run}#{number}", server)
    records = read_records(Path(part.file), part.start, part.end, part.last_ns)
    with without_collector():
        for record in records:
            if isinstance(record, Damage):
                pairer.aside(record.position, None, record.size, record.reason)
            elif record[3] == OPENED or record[3] > FROM_SERVER:
                _take_event(record, part.run, pairer)
                pairer.last_ns = record[1]  # as a part that begins after this record gets it
            else:
                position, time_ns, number, kind, data = record
                connection = pairer.connection(number)
                if connection is None:
                    connection = pairer.open(number, f"{part.run}#{number}", None)
                pairer.frame(position, time_ns, connection, kind == FROM_CLIENT, data)
                if pairer.is_full:
                    write_taken(pairer, writer)
        if part.ends:
            pairer.end()
        else:
            writer.write_seam(OPEN, part.file, pairer.outstanding())
        writer.write_seam(HEADS, part.file, pairer.heads)
        write_taken(pairer, writer)
    return writer.end(part.file, part.run, pairer)


def read_packet_file(
    part: Part, folder: Path, levels: tuple[int, ...], ports: frozenset[int]
) -> Receipt:
    """Read a packet capture and write its tables."""
    from spark_jobs.packets import PacketReader, told_segments
    from spark_jobs.pcap import layout_of, read_packets

    writer = PartWriter(folder, part.number, levels)
    pairer = Pairer(part.file, is_in_order=False)
    file = Path(part.file)
    reader = PacketReader(part.file, pairer, ports)
    with without_collector():
        for told in told_segments(read_packets(file, layout_of(file)), ports, pairer):
            if told is not None:
                packet, segment = told
                reader.segment(packet.position, packet.time_ns, segment)
            if pairer.is_full:
                write_taken(pairer, writer)
        reader.end()
        write_taken(pairer, writer)
    return writer.end(part.file, part.run, pairer)


def _take_event(record: Record, run: str, pairer: Pairer) -> None:
    """Take a record that is no frame: the opening or the end of a connection, or what the recorder lost."""
    _, _, number, kind, data = record
    if kind == CLOSED:
        if pairer.connection(number) is None:  # all its frames are before this part
            pairer.open(number, f"{run}#{number}", None)
        pairer.close(number)
    elif kind == LOST:
        pairer.count("records that the recorder lost", int.from_bytes(data, "big"))
    else:
        known = pairer.connection(number)
        pairer.open(number, f"{run}#{number}", data.decode(errors="replace"))
        if known is None or known.server is None:  # else an earlier file has its opening
            pairer.count("connections")


def write_taken(pairer: Pairer, writer: PartWriter) -> None:
    """Write the rows that a pairer has so far."""
    exchanges, asides = pairer.take()
    writer.write_pairs(pairer.file, exchanges)
    writer.write_asides(asides)


@contextmanager
def without_collector() -> Iterator[None]:
    """Switch off garbage collection: there are many rows without cycles, and it takes a third of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class LogReader(DataSourceReader):
    """Reads commit logs. The option `levels` is the broker's `messageDelayLevel`; `table` is `sends` or
    `messages`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.files: list[str] = json.loads(options["files"])
        self.options = options

    def partitions(self) -> list[InputPartition]:
        return [
            FilePart(file, start, end)
            for file in self.files
            for start, end in ranges(Path(file).stat().st_size)
        ]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        place = (Path(partition.file), partition.start, partition.end)
        if self.options.get("table") == "sends":
            return read_sends(*place)
        levels = messages.parse_levels(self.options["levels"])
        return read_commit_log(*place, levels)


class CommitLogSource(DataSource):
    """The data source of commit logs. The option `files` is a JSON list of paths.

    The option `table` is `messages` for the events of messages, or `sends` for the requests that sent
    them, as rows of `exchanges.ROWS`.
    """

    @classmethod
    def name(cls) -> str:
        return "tidegate-commitlog"

    def schema(self) -> StructType | str:
        return DDL if self.options.get("table") == "sends" else messages.DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        return LogReader(self.options)


def read_commit_log(
    file: Path, start: int, end: int, levels: tuple[int, ...]
) -> Iterator[pa.RecordBatch]:
    """Yield the records in a range of a commit log, and the damage, as rows of `messages.MESSAGES`."""
    rows: list[dict[str, Any]] = []
    for found in read_log(file, start, end):
        place = {"file": str(file), "position": found.position}
        if isinstance(found, Found):
            rows.append(place | messages.message_of_log(found.message, levels))
        else:
            said = f"{found.size} bytes: {found.reason}"
            rows.append(place | {"event": messages.UNREADABLE, "reason": said})
        if len(rows) >= _LOG_ROWS:
            yield messages.message_batch(rows)
            rows = []
    if rows:
        yield messages.message_batch(rows)


def read_sends(file: Path, start: int, end: int) -> Iterator[pa.RecordBatch]:
    """Yield the requests that sent the records in a range of a commit log (`exchanges.ROWS`)."""
    rows: list[dict[str, Any]] = []
    size = 0
    for found in read_log(file, start, end):
        send = send_of(found.message) if isinstance(found, Found) else None
        if send is None:
            continue
        rows.append(send | {"file": str(file), "position": found.position})
        size += len(send["body"])
        if len(rows) >= _LOG_ROWS or size >= _LOG_BYTES:
            yield send_batch(rows)
            rows, size = [], 0
    if rows:
        yield send_batch(rows)
