"""Sources to Parquet tables, file by file, each once.

The folder has one folder for each batch of files, made under another name and renamed when it is
whole, so what a killed run left is never read:

    batch=00001/sources.json        the files, with size and time of change, and their counts
    batch=00001/rows/kind=pair/     pairs (`exchanges.ROWS`)
    batch=00001/rows/kind=aside/    what is no frame, with file, place and reason
    batch=00001/rows/kind=file/     the counts of each file
    batch=00001/messages/           events of messages (`messages.MESSAGES`)
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spark_jobs.errors import JobError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CAPTURE: Final = "capture"
PACKETS: Final = "packets"
COMMIT_LOG: Final = "commitlog"

_PCAP_MAGICS: Final = {
    bytes.fromhex(digits) for digits in ("a1b2c3d4", "d4c3b2a1", "a1b23c4d", "4d3cb2a1", "0a0d0d0a")
}
_FILES_AT_ONCE: Final = 64


class Source(NamedTuple):
    """A file to be read, as it was when it was found."""

    path: str
    kind: str
    size: int
    changed_ns: int


class Ingested(NamedTuple):
    """What a run did. `counts` are summed over its files."""

    files: int
    known: int
    counts: dict[str, int]


def find_sources(paths: Iterable[Path]) -> list[Source]:
    """The files of these paths, folders searched through, in the order of their names.

    :raises JobError: when a path is not there, or a named file is of no known kind.
    """
    found = []
    for path in paths:
        if path.is_dir():
            files = sorted(file for file in path.rglob("*") if file.is_file())
            kinds = [(file, _kind(file)) for file in files]
            found += [_source(file, kind) for file, kind in kinds if kind is not None]
        elif path.is_file():
            kind = _kind(path)
            if kind is None:
                raise JobError(f"{path} is no capture, no pcap or pcapng and no commit log file")
            found.append(_source(path, kind))
        else:
            raise JobError(f"{path} does not exist")
    return found


def _kind(file: Path) -> str | None:
    if file.name.isdecimal() and len(file.name) == 20:
        return COMMIT_LOG if file.parent.name != "consumequeue" else None
    with file.open("rb") as stream:
        start = stream.read(len(b"tidegate capture"))
    if start == b"tidegate capture":
        return CAPTURE
    return PACKETS if start[:4] in _PCAP_MAGICS else None


def _source(file: Path, kind: str) -> Source:
    stat = file.stat()
    return Source(str(file.resolve()), kind, stat.st_size, stat.st_mtime_ns)


def batches(folder: Path) -> list[Path]:
    """The whole batches of a folder of tables."""
    return sorted(path for path in folder.glob("batch=*") if path.is_dir())


def known_sources(folder: Path) -> set[Source]:
    """What has been read into a folder."""
    return {
        Source(*entry)
        for batch in batches(folder)
        for entry in json.loads((batch / "sources.json").read_text())["files"]
    }


def ingest(
    spark: SparkSession,
    paths: Sequence[Path],
    folder: Path,
    *,
    ports: Sequence[int] = (),
    levels: str,
) -> Ingested:
    """Read what is new among the files of these paths into a folder of tables.

    A file that has grown since it was read is read anew only when it is named in another folder:
    it is an error here, because its first part would be counted twice.

    :raises JobError: as `find_sources`, and for a file that has changed.
    """
    sources = find_sources(paths)
    known = known_sources(folder)
    paths_known = {source.path for source in known}
    fresh = [source for source in sources if source not in known]
    for source in fresh:
        if source.path in paths_known:
            raise JobError(f"{source.path} has changed since it was read: use another folder")
    folder.mkdir(parents=True, exist_ok=True)
    total: dict[str, int] = {}
    for kind in (CAPTURE, PACKETS, COMMIT_LOG):
        for some in _in_groups([source for source in fresh if source.kind == kind]):
            for name, number in _ingest_batch(spark, kind, some, folder, ports, levels).items():
                total[name] = total.get(name, 0) + number
    return Ingested(len(fresh), len(sources) - len(fresh), total)


def _in_groups(sources: list[Source]) -> Iterator[list[Source]]:
    for at in range(0, len(sources), _FILES_AT_ONCE):
        yield sources[at : at + _FILES_AT_ONCE]


def _ingest_batch(
    spark: SparkSession,
    kind: str,
    sources: list[Source],
    folder: Path,
    ports: Sequence[int],
    levels: str,
) -> dict[str, int]:
    numbers = [int(batch.name.partition("=")[2]) for batch in batches(folder)]
    name = f"batch={max(numbers, default=0) + 1:05}"
    unfinished = folder / f".unfinished-{name}"
    if unfinished.exists():
        shutil.rmtree(unfinished)
    read = (
        spark.read.format(f"tidegate-{kind}")
        .option("files", json.dumps([source.path for source in sources]))
        .option("ports", json.dumps(list(ports)))
        .option("levels", levels)
        .load()
    )
    if kind == COMMIT_LOG:
        read.write.parquet(str(unfinished / "messages"))
        written = spark.read.parquet(str(unfinished / "messages"))
        by_event = written.groupBy("event").count().collect()
        counts = {f"messages {row['event']}": int(row["count"]) for row in by_event}
    else:
        read.write.partitionBy("kind").parquet(str(unfinished / "rows"))
        counts = _counts(spark, unfinished / "rows")
        if (unfinished / "rows" / "kind=pair").exists():
            _write_messages(spark, unfinished, levels)
    unfinished.mkdir(exist_ok=True)
    entry = {"files": [list(source) for source in sources], "counts": counts}
    (unfinished / "sources.json").write_text(json.dumps(entry, indent=1))
    unfinished.rename(folder / name)
    return counts


def _counts(spark: SparkSession, rows: Path) -> dict[str, int]:
    """The counts of all files of a batch, checked against the rows that were written.

    :raises JobError: when a frame is in no row, or in two.
    """
    from pyspark.sql import functions as f

    told = spark.read.parquet(str(rows / "kind=file")).select("counts").collect()
    counts: dict[str, int] = {}
    for row in told:
        for name, number in row["counts"].items():
            counts[name] = counts.get(name, 0) + number
    stored = 0
    if (rows / "kind=pair").exists():
        ends = f.col("asked_ns").isNotNull().cast("int") + f.col("answered_ns").isNotNull().cast(
            "int"
        )
        stored = spark.read.parquet(str(rows / "kind=pair")).agg(f.sum(ends)).collect()[0][0]
    if stored + counts["aside"] != counts["frames"]:
        raise JobError(
            f"{counts['frames']} frames were read, {stored} are in pairs and {counts['aside']} "
            "set aside: the tables would not be complete"
        )
    return counts


def _write_messages(spark: SparkSession, batch: Path, levels: str) -> None:
    from pyspark.sql import functions as f

    from spark_jobs import messages

    pairs = spark.read.parquet(str(batch / "rows" / "kind=pair"))
    read = partial(messages.messages_of_pairs, levels=messages.parse_levels(levels))
    wanted = (
        *("file", "position", "connection", "asked_ns", "answered_ns", "code", "ext", "body"),
        *("answer_code", "answer_ext", "answer_body"),
    )
    (
        pairs.where(f.col("code").isin(*messages.CODES) & f.col("asked_ns").isNotNull())
        .select(*wanted)
        .mapInArrow(read, messages.DDL)
        .write.parquet(str(batch / "messages"))
    )


def read_table(spark: SparkSession, folder: Path, table: str) -> DataFrame:
    """`pair`, `aside`, `file` or `messages` of all whole batches.

    :raises JobError: when nothing was read into the folder.
    """
    from spark_jobs import exchanges, messages

    found = batches(folder)
    if not found:
        raise JobError(f"{folder} has no tables: run 'tidegate ingest' into it first")
    part = "messages" if table == "messages" else f"rows/kind={table}"
    paths = [str(batch / part) for batch in found if (batch / part).exists()]
    schema = messages.DDL if table == "messages" else exchanges.DDL.removeprefix("kind string, ")
    if not paths:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*paths)


def totals(folder: Path) -> dict[str, Any]:
    """The counts of all batches of a folder, summed, with the number of files."""
    total: dict[str, int] = {"files": 0}
    for batch in batches(folder):
        entry = json.loads((batch / "sources.json").read_text())
        total["files"] += len(entry["files"])
        for name, number in entry["counts"].items():
            total[name] = total.get(name, 0) + number
    return total
