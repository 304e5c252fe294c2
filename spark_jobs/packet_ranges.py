"""A packet capture that is read in ranges of its bytes, so that a large one spreads over executors.

Ranges are read first: each packet that says something, by its connection. Spark brings together
what belongs to a connection, sorted by its place in the file and on disk where it does not fit in
memory; then connections are put together, one after the other. What comes of it is what reading
the file at once gives, but the order of the rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from spark_jobs.exchanges import Pairer
from spark_jobs.packets import PacketReader, Segment, told_segments
from spark_jobs.pcap import Layout, Survey, layout_of, read_packets, survey
from spark_jobs.sources import Span, certain, ranges, without_collector, write_taken
from spark_jobs.tables import PartWriter, Receipt, receipts
from spark_jobs.tasks import explained, in_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEGMENTS: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("position", pa.int64()),
        ("time_ns", pa.int64()),
        ("sender", pa.binary()),
        ("sender_port", pa.int32()),
        ("receiver", pa.binary()),
        ("receiver_port", pa.int32()),
        ("sequence", pa.int64()),
        ("acknowledged", pa.int64()),
        ("flags", pa.int32()),
        ("data", pa.binary()),
    ]
)
"""What packets say, by the keys of their connections (`packets.Segment`)."""

_DDL: Final = (
    "key binary, position bigint, time_ns bigint, sender binary, sender_port int, "
    "receiver binary, receiver_port int, sequence bigint, acknowledged bigint, flags int, data binary"
)
_ROWS: Final = 4096
_BYTES: Final = 8 * 1024 * 1024


class PacketRange(msgspec.Struct, kw_only=True):
    """A range of a file whose beginning is certain, and how the file is to be read there."""

    file: str
    start: int
    end: int
    last_ns: int | None
    layout: Layout


def guess(span: Span) -> Survey:
    """The survey of a range; where it begins is only likely."""
    file, start, end = span
    return survey(Path(file), layout_of(Path(file)), start, end, is_certain=start == 0)


def packet_ranges(
    file: Path, spans: Sequence[Span], guesses: Sequence[Survey]
) -> list[PacketRange]:
    """The ranges of a file, each beginning where the one in front of it ends."""
    layout = layout_of(file)

    def again(span: Span, before: Sequence[Survey]) -> Survey:
        here = layout
        for one in before:
            here = one.follow(here)
        last = before[-1]
        return survey(file, here, last.after, span[2], is_certain=True, last_ns=last.last_ns)

    found = []
    last_ns: int | None = None
    for one in certain(spans, guesses, again):
        found.append(
            PacketRange(
                file=str(file), start=one.first, end=one.after, last_ns=last_ns, layout=layout
            )
        )
        layout, last_ns = one.follow(layout), one.last_ns
    return found


def read_in_ranges(
    spark: SparkSession,
    path: str,
    size: int,
    first: int,
    folder: Path,
    *,
    ports: frozenset[int],
    levels: tuple[int, ...],
) -> list[Receipt]:
    """Read a large packet capture and write its tables.

    :param first: the number of its first part. It has two for each range: what of the range is no
        packet, and some of the connections.
    """
    spans = [(path, start, end) for start, end in ranges(size)]
    count = len(spans)
    numbers = range(first, first + 2 * count)
    done = receipts(folder)
    if not all(number in done for number in numbers):
        parts = packet_ranges(Path(path), spans, in_tasks(spark, guess, spans))
        read = partial(
            read_range, parts=parts, first=first, folder=folder, ports=ports, levels=levels
        )
        assemble = partial(
            _assemble_part,
            path=path,
            first=first + count,
            done=frozenset(done),
            folder=folder,
            ports=ports,
            levels=levels,
        )
        # Each row of `range` is the number of a range, and a task of its own.
        segments = spark.range(0, count, 1, count).mapInArrow(read, _DDL)
        together = segments.repartition(count, "key").sortWithinPartitions("key", "position")
        with explained():
            together.mapInArrow(assemble, "part int").collect()
        done = receipts(folder)
    return [done[number] for number in numbers]


def read_range(
    batches: Iterable[pa.RecordBatch],
    *,
    parts: Sequence[PacketRange],
    first: int,
    folder: Path,
    ports: frozenset[int],
    levels: tuple[int, ...],
) -> Iterator[pa.RecordBatch]:
    """What the packets of ranges say, as batches of `SEGMENTS`; what is no packet is written.

    :param batches: numbers of ranges.
    """
    for number in (number for batch in batches for number in batch.column(0).to_pylist()):
        part = parts[number]
        pairer = Pairer(part.file)
        writer = PartWriter(folder, first + number, levels)
        found = read_packets(Path(part.file), part.layout, part.start, part.end, part.last_ns)
        rows: list[tuple[Any, ...]] = []
        size = 0
        for told in told_segments(found, ports, pairer):
            if told is None:
                continue
            packet, segment = told
            sender, receiver = segment.sender, segment.receiver
            place = (segment.key, packet.position, packet.time_ns)
            rows.append(place + sender + receiver + segment[2:])
            size += len(segment.data)
            if len(rows) >= _ROWS or size >= _BYTES:
                yield _batch(rows)
                rows, size = [], 0
        if rows:
            yield _batch(rows)
        write_taken(pairer, writer)
        writer.end(part.file, part.file, pairer)


def _batch(rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SEGMENTS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SEGMENTS)


def _assemble_part(
    batches: Iterable[pa.RecordBatch], *, first: int, done: Collection[int], **more: Any
) -> Iterator[pa.RecordBatch]:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    number = first + context.partitionId()
    if number not in done:
        assemble(batches, number=number, **more)
    yield pa.RecordBatch.from_pydict({"part": pa.array([number], pa.int32())})


def assemble(
    batches: Iterable[pa.RecordBatch],
    *,
    number: int,
    path: str,
    folder: Path,
    ports: frozenset[int],
    levels: tuple[int, ...],
) -> Receipt:
    """Put connections together and write their tables.

    :param batches: of `SEGMENTS`, sorted by connection and place.
    """
    writer = PartWriter(folder, number, levels)
    pairer = Pairer(path, is_in_order=False)
    reader = PacketReader(Path(path).name, pairer, ports)
    last: bytes | None = None
    with without_collector():
        for batch in batches:
            columns = [column.to_pylist() for column in batch.columns]
            for key, position, time_ns, *said in zip(*columns, strict=True):
                if key != last:
                    reader.end()
                    last = key
                sender, receiver = (said[0], said[1]), (said[2], said[3])
                reader.segment(position, time_ns, Segment(sender, receiver, *said[4:]))
                if pairer.is_full:
                    write_taken(pairer, writer)
        reader.end()
        write_taken(pairer, writer)
    return writer.end(path, path, pairer)
