"""Writes the tables of one part of the sources: Parquet files that are complete or absent.

Tasks write with Arrow, which takes a third of the processor time of passing rows to Spark. All tasks,
and the driver, must see the folder under the same path.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from spark_jobs import messages
from spark_jobs.errors import JobError
from spark_jobs.exchanges import Exchange, Pairer, aside_batch, exchange_batch
from spark_jobs.schemas import ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PAIRS: Final = "rows/kind=pair"
ASIDES: Final = "rows/kind=aside"
FILES: Final = "rows/kind=file"
SENDS: Final = "rows/kind=send"
"""Requests made from the records of commit logs."""
MESSAGES: Final = "messages"
OPEN: Final = "seams/open"
"""Requests without an answer in their part, if another part follows."""
HEADS: Final = "seams/heads"
"""Answers without a request in their part, if there is an earlier part."""
RECEIPTS: Final = "receipts"

_FILES: Final = pa.schema([("file", pa.string()), ("counts", pa.map_(pa.string(), pa.int64()))])
FILE_DDL: Final = ddl(_FILES)
_ROW_GROUP_ROWS: Final = 65_536
_ROW_GROUP_BYTES: Final = 64 * 1024 * 1024
_CODES: Final = frozenset(messages.CODES)
_COLUMN: Final = re.compile("`([^`]+)`")
"""Finds the columns in a schema of `schemas.ddl`."""
_PATTERNS: Final = "__globPaths__"
"""The option of Spark (DataSource.GLOB_PATHS_KEY) that says whether paths are patterns."""


class Receipt(msgspec.Struct, kw_only=True):
    """The counts of a part that was read and written."""

    part: int
    file: str
    group: str
    """The same name for all parts of one recording."""
    counts: dict[str, int]
    rows: dict[str, int]
    """By table: how many rows were written."""
    closed: list[str] = []
    """Connections that ended in the part."""


class PartWriter:
    """Writes the tables of one part, under hidden names until `end`.

    A task that runs again replaces the files of its first run, which may still be running on another machine.
    """

    def __init__(self, folder: Path, part: int, levels: tuple[int, ...]) -> None:
        self._folder = folder
        self._part = part
        self._name = f"part-{part:06}"
        self._hidden = f".{self._name}-{secrets.token_hex(4)}"
        self._levels = levels
        self._waiting: dict[str, list[pa.RecordBatch]] = {}
        self._writers: dict[str, pq.ParquetWriter] = {}
        self.rows: dict[str, int] = {}

    def write(self, table: str, batch: pa.RecordBatch) -> None:
        """Take a batch."""
        if not batch.num_rows:
            return
        self.rows[table] = self.rows.get(table, 0) + batch.num_rows
        waiting = self._waiting.setdefault(table, [])
        waiting.append(batch)
        rows = sum(one.num_rows for one in waiting)
        if rows >= _ROW_GROUP_ROWS or sum(one.nbytes for one in waiting) >= _ROW_GROUP_BYTES:
            self._write_waiting(table)

    def write_pairs(self, file: str, exchanges: Sequence[Exchange]) -> None:
        """Take pairs, and the events of the messages in them."""
        if exchanges:
            self.write(PAIRS, exchange_batch(file, exchanges))
            self.write(MESSAGES, _messages(file, exchanges, self._levels))

    def write_asides(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Take rows of `exchanges.ASIDES`."""
        if rows:
            self.write(ASIDES, aside_batch(rows))

    def write_seam(self, table: str, file: str, exchanges: Sequence[Exchange]) -> None:
        """Take requests or answers whose partner may be in another part."""
        if exchanges:
            self.write(table, exchange_batch(file, exchanges))

    def end(self, file: str, group: str, pairer: Pairer) -> Receipt:
        """Write the rest and give the files their visible names, with the receipt last."""
        receipt = Receipt(
            part=self._part,
            file=file,
            group=group,
            counts=pairer.counts,
            rows=self.rows,
            closed=list(pairer.closed.values()),
        )
        self.end_without_receipt()
        receipts = self._folder / RECEIPTS
        with _writing(receipts):
            receipts.mkdir(parents=True, exist_ok=True)
            (receipts / self._hidden).write_bytes(msgspec.json.encode(receipt))
            (receipts / self._hidden).rename(receipts / f"{self._name}.json")
        return receipt

    def end_without_receipt(self) -> None:
        """Write the rest and give the files their visible names. A run that goes on writes them again."""
        for table in list(self._waiting):
            self._write_waiting(table)
        for table, writer in self._writers.items():
            place = self._folder / table
            with _writing(place):
                writer.close()
                (place / self._hidden).rename(place / f"{self._name}.parquet")

    def _write_waiting(self, table: str) -> None:
        batches = self._waiting.pop(table, [])
        if not batches:
            return
        place = self._folder / table
        with _writing(place):
            writer = self._writers.get(table)
            if writer is None:
                place.mkdir(parents=True, exist_ok=True)
                writer = self._writers[table] = pq.ParquetWriter(
                    place / self._hidden, batches[0].schema, compression="zstd"
                )
            writer.write_table(pa.Table.from_batches(batches))


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Name the folder in errors of writing, which may be those of Arrow.

    :raises JobError: instead of such an error.
    """
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else error
        raise JobError(f"cannot write to {folder}: {reason}") from error


def receipts(folder: Path) -> dict[int, Receipt]:
    """Return the receipts of the parts that were written completely, by number."""
    found = [
        msgspec.json.decode(file.read_bytes(), type=Receipt)
        for file in sorted((folder / RECEIPTS).glob("part-*.json"))
    ]
    return {receipt.part: receipt for receipt in found}


def write_file_counts(folder: Path, counts: Mapping[str, Mapping[str, int]]) -> None:
    """Write the table of files."""
    place = folder / FILES
    rows = [{"file": file, "counts": list(of_file.items())} for file, of_file in counts.items()]
    table = pa.Table.from_pylist(rows, schema=_FILES)
    with _writing(place):
        place.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, place / "part-000000.parquet")


def read_parquet(spark: SparkSession, schema: str, *folders: Path) -> DataFrame:
    """Read folders of Parquet files, whatever their names are.

    Spark takes a path for a pattern. In one that has characters of patterns, also escaped ones, Hadoop takes what is
    before a colon for the scheme of an address.

    :raises JobError: if the files have other columns. Spark would take missing ones for empty.
    """
    for folder in folders:
        _check_columns(schema, folder)
    reader = spark.read.schema(schema).option(_PATTERNS, "false")
    return reader.parquet(*map(str, folders))


def _check_columns(schema: str, folder: Path) -> None:
    file = next(folder.glob("[!._]*.parquet"), None)
    if file is None:
        return
    try:
        found = pq.read_schema(file).names
    except (pa.ArrowInvalid, OSError):
        return  # Spark says what is wrong with it
    if found != _COLUMN.findall(schema):
        raise JobError(
            f"{folder} was written by another version of Tidegate: make it again, in another folder"
        )


def rows_in(file: Path) -> int:
    """Return how many rows a Parquet file has."""
    rows: int = pq.read_metadata(file).num_rows
    return rows


def unreadable_in(messages_file: Path) -> list[str]:
    """Return the recorded file of each event of a Parquet file of messages that tells of an unreadable body. Parts of
    the file without such events are not read, as their statistics tell that."""
    is_one = [("event", "=", messages.UNREADABLE)]
    found = pq.read_table(messages_file, columns=["file"], filters=is_one, partitioning=None)
    files: list[str] = found["file"].to_pylist()
    return files


def _messages(file: str, exchanges: Sequence[Exchange], levels: tuple[int, ...]) -> pa.RecordBatch:
    return messages.message_batch(
        event
        for position, connection, _, asked, request, body, answered, answer, answer_body in exchanges
        if request.code in _CODES
        for event in messages.messages_of_pair(
            {
                "file": file,
                "position": position,
                "connection": connection.name,
                "server": connection.server,
                "asked_ns": asked,
                "answered_ns": answered,
                "code": request.code,
                "ext": request.ext,
                "body": body,
                "answer_code": answer.code,
                "answer_ext": answer.ext,
                "answer_body": answer_body,
            },
            levels,
        )
    )
