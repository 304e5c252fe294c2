"""Spark data sources: captures, packet captures and commit logs, as Arrow batches.

Each is given the option `files`, a JSON list of paths. Captures and packet captures are read one
file to a task; commit logs in ranges of `RANGE_BYTES`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_jobs import exchanges, messages
from spark_jobs.capture import CLOSED, FROM_CLIENT, OPENED, read_records
from spark_jobs.commitlog import Found, read_log
from spark_jobs.errors import Damage
from spark_jobs.exchanges import Pairer

RANGE_BYTES: Final = 128 * 1024 * 1024
"""So much of a commit log is one task."""

_LOG_ROWS: Final = 4096


class FilePart(InputPartition):
    """A range of a file's bytes."""

    def __init__(self, file: str, start: int = 0, end: int = 0) -> None:
        self.file = file
        self.start = start
        self.end = end


class _FileReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self.files: list[str] = json.loads(options["files"])
        self.options = options

    def partitions(self) -> list[InputPartition]:
        return [FilePart(file) for file in self.files]


class CaptureReader(_FileReader):
    """Reads captures."""

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        return read_capture(Path(partition.file))


class PacketReader(_FileReader):
    """Reads packet captures; the option `ports` is a JSON list."""

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        from spark_jobs.packets import read_packets

        ports = frozenset(json.loads(self.options.get("ports", "[]")))
        return read_packets(Path(partition.file), ports)


class LogReader(_FileReader):
    """Reads commit logs; the option `levels` is the broker's `messageDelayLevel`."""

    def partitions(self) -> list[InputPartition]:
        return [
            FilePart(file, start, start + RANGE_BYTES)
            for file in self.files
            for start in range(0, Path(file).stat().st_size, RANGE_BYTES)
        ]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        levels = messages.parse_levels(self.options.get("levels", messages.DEFAULT_LEVELS))
        return read_commit_log(Path(partition.file), partition.start, partition.end, levels)


class CaptureSource(DataSource):
    """What the recording proxy wrote."""

    @classmethod
    def name(cls) -> str:
        return "tidegate-capture"

    def schema(self) -> StructType | str:
        return exchanges.DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        return CaptureReader(self.options)


class PacketSource(CaptureSource):
    """What tcpdump wrote."""

    @classmethod
    def name(cls) -> str:
        return "tidegate-packets"

    def reader(self, schema: StructType) -> DataSourceReader:
        return PacketReader(self.options)


class CommitLogSource(DataSource):
    """What a broker stored."""

    @classmethod
    def name(cls) -> str:
        return "tidegate-commitlog"

    def schema(self) -> StructType | str:
        return messages.DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        return LogReader(self.options)


def read_capture(file: Path) -> Iterator[pa.RecordBatch]:
    """A capture's rows (`exchanges.ROWS`)."""
    pairer = Pairer(str(file))
    names: dict[int, tuple[str, str]] = {}
    for record in read_records(file):
        if isinstance(record, Damage):
            pairer.aside(record.position, None, record.size, record.reason)
            continue
        position, time_ns, number, kind, data = record
        if kind == OPENED:
            names[number] = (f"{file.name}#{number}", data.decode(errors="replace"))
            pairer.count("connections")
        elif kind == CLOSED:
            names.pop(number, None)
        else:
            name, server = names.get(number) or (f"{file.name}#{number}", "")
            pairer.frame(position, time_ns, name, server, kind == FROM_CLIENT, data)
            yield from pairer.full()
    yield from pairer.end()


def read_commit_log(
    file: Path, start: int, end: int, levels: tuple[int, ...]
) -> Iterator[pa.RecordBatch]:
    """The records in a range of a commit log (`messages.MESSAGES`), and what is none."""
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
