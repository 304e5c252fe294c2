"""Reads a packet capture in ranges of its bytes, so that a large one spreads over executors.

First the ranges are read: each packet with data or a change of its connection becomes a segment. Spark
groups the segments by connection and sorts them by place in the recording, on disk if they do not fit
in memory. Then the connections are assembled, one after the other. The result is the same as when a
file is read at once, except for the order of the rows.

The files of a recorder that begins a new one now and then (`tcpdump -C`, `-G`) are one recording.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from spark_jobs.exchanges import Exchange, Pairer
from spark_jobs.packets import PacketReader, Segment, told_segments
from spark_jobs.pcap import Layout, Packet, Survey, layout_of, read_packets, survey
from spark_jobs.schemas import ddl
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
"""The columns of segments (`packets.Segment`), with the keys of their connections."""

_ROWS: Final = 4096
_BYTES: Final = 8 * 1024 * 1024
_OVERLAP_NS: Final = 1_000_000_000
"""Packets are out of order by less than this, even from several processors or after a clock adjustment."""
_SILENCE_NS: Final = 120_000_000_000
"""RocketMQ closes a connection that is idle for so long (serverChannelMaxIdleTimeSeconds)."""


class Times(NamedTuple):
    """When the first and the last packet of a file were recorded."""

    first_ns: int
    last_ns: int


class Recording(NamedTuple):
    """Consecutive files, read as if they were one."""

    files: tuple[str, ...]
    starts: tuple[int, ...]
    """Where each file begins in the whole recording."""

    @classmethod
    def of(cls, files: Sequence[tuple[str, int]]) -> Recording:
        """Make a recording from paths and sizes."""
        starts = accumulate((size for _, size in files), initial=0)
        return cls(tuple(path for path, _ in files), tuple(starts)[:-1])

    def place(self, position: int) -> tuple[str, int]:
        """Return the file of a place in the whole recording, and the place in that file."""
        number = bisect_right(self.starts, position) - 1
        return self.files[number], position - self.starts[number]


class PacketRange(msgspec.Struct, kw_only=True):
    """A range of a file whose beginning is certain, with the file's layout there."""

    file: str
    file_start: int = 0
    """Where the file begins in its recording."""
    start: int
    end: int
    last_ns: int | None
    layout: Layout


def times_of(path: str) -> Times | None:
    """Return the times of a packet capture; None if it has no packet.

    :raises JobError: if the file is no packet capture.
    """
    file = Path(path)
    first_ns = last_ns = None
    for one in read_packets(file, layout_of(file)):
        if isinstance(one, Packet):
            last_ns = one.time_ns
            first_ns = last_ns if first_ns is None else first_ns
    return None if first_ns is None or last_ns is None else Times(first_ns, last_ns)


def in_recordings(files: Sequence[str], times: Sequence[Times | None]) -> list[list[str]]:
    """Group files into recordings. In a recording each file begins when the one before it has ended.

    Files that overlap in time, or that have a break between them in which idle connections would
    have been closed, belong to different recordings.
    """
    timed = [(found, file) for file, found in zip(files, times, strict=True) if found is not None]
    recordings = [[file] for file, found in zip(files, times, strict=True) if found is None]
    open_until: list[tuple[int, list[str]]] = []
    for (first_ns, last_ns), file in sorted(timed):
        open_until = [one for one in open_until if first_ns - one[0] <= _SILENCE_NS]
        ended = [one for one in open_until if first_ns - one[0] >= -_OVERLAP_NS]
        if ended:
            before = min(ended, key=lambda one: abs(first_ns - one[0]))
            open_until.remove(before)
            recording = before[1]
        else:
            recording = []
            recordings.append(recording)
        recording.append(file)
        open_until.append((last_ns, recording))
    return recordings


def guess(span: Span) -> Survey:
    """Survey a range. The beginning that is found is only likely."""
    file, start, end = span
    return survey(Path(file), layout_of(Path(file)), start, end, is_certain=start == 0)


def packet_ranges(
    file: Path, spans: Sequence[Span], guesses: Sequence[Survey], file_start: int = 0
) -> list[PacketRange]:
    """Return the ranges of a file. Each begins where the one before it ends.

    :param file_start: where the file begins in its recording.
    """
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
                file=str(file),
                file_start=file_start,
                start=one.first,
                end=one.after,
                last_ns=last_ns,
                layout=layout,
            )
        )
        layout, last_ns = one.follow(layout), one.last_ns
    return found


def read_in_ranges(
    spark: SparkSession,
    files: Sequence[tuple[str, int]],
    first: int,
    folder: Path,
    *,
    ports: frozenset[int],
    levels: tuple[int, ...],
) -> list[Receipt]:
    """Read the packet captures of one recording, paths and sizes, and write their tables.

    :param first: the number of its first part. There is a part for each range of a file, with the
        bytes that are no packets, and one for each range of the whole, with some of the connections.
    """
    recording = Recording.of(files)
    spans = [(path, start, end) for path, size in files for start, end in ranges(size)]
    count = len(spans)
    count_together = len(ranges(sum(size for _, size in files)))
    numbers = range(first, first + count + count_together)
    done = receipts(folder)
    if not all(number in done for number in numbers):
        parts = _parts_of(recording, spans, in_tasks(spark, guess, spans))
        read = partial(
            read_range, parts=parts, first=first, folder=folder, ports=ports, levels=levels
        )
        assemble = partial(
            _assemble_part,
            recording=recording,
            first=first + count,
            done=frozenset(done),
            folder=folder,
            ports=ports,
            levels=levels,
        )
        # Each row of `range` is the number of a range, and a task of its own.
        segments = spark.range(0, count, 1, count).mapInArrow(read, ddl(SEGMENTS))
        together = segments.repartition(count_together, "key")
        together = together.sortWithinPartitions("key", "position")
        with explained():
            together.mapInArrow(assemble, "part int").collect()
        done = receipts(folder)
    return [done[number] for number in numbers]


def _parts_of(
    recording: Recording, spans: Sequence[Span], guesses: Sequence[Survey]
) -> list[PacketRange]:
    found: list[PacketRange] = []
    surveyed = zip(spans, guesses, strict=True)
    for file_start, (path, some) in zip(
        recording.starts, groupby(surveyed, lambda one: one[0][0]), strict=True
    ):
        of_file, guessed = zip(*some, strict=True)
        found += packet_ranges(Path(path), of_file, guessed, file_start)
    return found


def read_range(
    batches: Iterable[pa.RecordBatch],
    *,
    parts: Sequence[PacketRange],
    first: int,
    folder: Path,
    ports: frozenset[int],
    levels: tuple[int, ...],
) -> Iterator[pa.RecordBatch]:
    """Yield the segments of ranges as batches of `SEGMENTS`, and write the bytes that are no packets.

    :param batches: the numbers of the ranges.
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
            place = (segment.key, part.file_start + packet.position, packet.time_ns)
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
    recording: Recording,
    folder: Path,
    ports: frozenset[int],
    levels: tuple[int, ...],
) -> Receipt:
    """Assemble connections and write their tables. Their counts are those of the recording's first file.

    :param batches: batches of `SEGMENTS`, sorted by connection and place.
    """
    path = recording.files[0]
    writer = PartWriter(folder, number, levels)
    pairer = Pairer(path, is_in_order=False)
    reader = PacketReader(path, pairer, ports)
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
                    _write_taken(pairer, writer, recording)
        reader.end()
        _write_taken(pairer, writer, recording)
    return writer.end(path, path, pairer)


def _write_taken(pairer: Pairer, writer: PartWriter, recording: Recording) -> None:
    """Write the rows that a pairer of a whole recording has so far, each with its file."""
    exchanges, asides = pairer.take()
    by_file: dict[str, list[Exchange]] = {}
    for exchange in exchanges:
        file, position = recording.place(exchange[0])
        by_file.setdefault(file, []).append((position, *exchange[1:]))
    for file, some in by_file.items():
        writer.write_pairs(file, some)
    writer.write_asides([(*recording.place(position), *rest) for _, position, *rest in asides])
