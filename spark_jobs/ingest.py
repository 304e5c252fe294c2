"""Reads sources into Parquet tables, each file once.

The folder of tables has one folder for each batch of files. It is written under another name and
renamed when it is complete, so the leftovers of a killed run are never read as tables:

    batch=00001/sources.json        the files, with size and time of change, their counts, and the flags
    batch=00001/rows/kind=pair/     pairs (`exchanges.ROWS`)
    batch=00001/rows/kind=aside/    bytes that are no frame, with file, place and reason
    batch=00001/rows/kind=file/     the counts of each file
    batch=00001/rows/kind=send/     for commit logs: the requests that sent their messages (`logged_sends`)
    batch=00001/messages/           events of messages (`messages.MESSAGES`)

The next run continues a killed one: parts with a receipt are not read again.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from recording.format import OPEN_SUFFIX, run_of
from spark_jobs import messages
from spark_jobs.capture import check_head
from spark_jobs.errors import JobError
from spark_jobs.exchanges import ASIDE_DDL, DDL
from spark_jobs.locks import alone_in
from spark_jobs.packet_ranges import in_recordings, read_in_ranges, times_of
from spark_jobs.pcap import layout_of, layout_told
from spark_jobs.result_files import write_text
from spark_jobs.seams import stitch
from spark_jobs.sources import (
    Part,
    certain,
    guess,
    parts_of_run,
    ranges,
    read_packet_file,
    read_part,
    survey_again,
)
from spark_jobs.tables import (
    ASIDES,
    FILE_DDL,
    FILES,
    MESSAGES,
    PAIRS,
    SENDS,
    Receipt,
    read_parquet,
    receipts,
    rows_in,
    unreadable_in,
    write_file_counts,
)
from spark_jobs.tasks import in_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CAPTURE: Final = "capture"
PACKETS: Final = "packets"
COMMIT_LOG: Final = "commitlog"

MISSING: Final = "places where files are missing"
_UNREADABLE: Final = "messages unreadable"
LACKING: Final = (
    *(MISSING, "records that the recorder lost", "bytes that were not recorded"),
    *("aside", "aside bytes", _UNREADABLE),
)
"""Names of counts that show that a recording is incomplete."""

_NO_LOGS: Final = frozenset(
    {"consumequeue", "consumequeue_ext", "batchconsumequeue", "timerlog", "compaction"}
)
"""Folders of a broker's store whose files are named like commit logs, but are none."""
_LOST_AND_FOUND: Final = "lost+found"
"""The folder in a new file system (ext4), which only root may read."""
_CAPTURE_START: Final = b"tidegate capture"
_COMPRESSED: Final = frozenset({".gz", ".bz2", ".zst", ".lz4"})
"""Suffixes of compressed files; recorders, or people who archive recordings, may compress them."""
_HEAD: Final = 24
"""Bytes at the start of a file that identify a recording."""
_FILES_AT_ONCE: Final = 64
_NUMBER: Final = re.compile(r"\d+")


class Source(NamedTuple):
    """A file to read, with its size and time of change when it was found."""

    path: str
    kind: str
    size: int
    changed_ns: int


class Reading(NamedTuple):
    """What a run reads, and how."""

    fresh: list[Source]
    folder: Path
    ports: Sequence[int]
    levels: str
    known: int
    being_written: int
    others: int

    def done(self, counts: dict[str, int]) -> Ingested:
        """Return the result of a run that has read this."""
        return Ingested(len(self.fresh), self.known, counts, self.being_written, self.others)


class Ingested(NamedTuple):
    """The result of a run. `counts` are summed over its files."""

    files: int
    known: int
    """Files that were read before."""
    counts: dict[str, int]
    being_written: int
    """Captures that were left for a later run."""
    others: int
    """Files in the folders that are no recordings."""


def find_sources(paths: Iterable[Path], passed_over: set[Path] | None = None) -> list[Source]:
    """Return the files of these paths, each once. Folders are searched recursively, in the order of names.

    :param passed_over: receives the files in folders that are not read, and captures that are still being written, with
        whole paths.
    :raises JobError: if a path does not exist or is a pipe, a file given by name is of no known kind, or a file is a
        capture of another format or a compressed recording.
    """
    found = []
    passed_over = set() if passed_over is None else passed_over
    for path in paths:
        if path.is_dir():
            for file in sorted(_files_in(path)):
                # A capture that is still being written is left for a later run.
                is_whole = file.suffix != OPEN_SUFFIX and file.exists()
                kind = _kind(file) if is_whole else None
                if kind is not None:
                    found.append(_source(file, kind))
                else:
                    passed_over.add(file.resolve())
        elif path.is_file():
            kind = _kind(path)
            if kind is None and not path.stat().st_size:
                raise JobError(f"{path} is empty: nothing was recorded")
            if kind is None:
                raise JobError(f"{path} is no capture, no pcap or pcapng and no commit log file")
            if kind == CAPTURE and path.suffix == OPEN_SUFFIX:
                passed_over.add(path.resolve())  # by its final name it would be read once more
            else:
                found.append(_source(path, kind))
        elif path.exists():
            raise JobError(f"{path} is a pipe or a device: give a file, as tasks read it in parts")
        else:
            raise JobError(f"{path} does not exist")
    return list(dict.fromkeys(found))


def _files_in(folder: Path) -> Iterator[Path]:
    """Yield all files below a folder, links followed, but for a `lost+found`. Also yields links that lead nowhere.
    Raises OSError if another folder there cannot be read."""
    seen = {folder.resolve()}  # links may lead round in a circle

    def refuse(error: OSError) -> None:
        raise error

    for place, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        whole = {name: Path(place, name).resolve() for name in folders if name != _LOST_AND_FOUND}
        folders[:] = [name for name, path in whole.items() if path not in seen]
        seen.update(whole.values())
        files = (Path(place, name) for name in names)
        yield from (file for file in files if file.is_file() or not file.exists())


def _kind(file: Path) -> str | None:
    if _is_log_name(file.name):
        return None if _NO_LOGS.intersection(file.parts) else COMMIT_LOG
    if file.suffix in _COMPRESSED and _has_recording(file):
        raise JobError(f"{file} is a compressed recording: unpack it first, or keep it elsewhere")
    with file.open("rb") as stream:
        start = stream.read(len(_CAPTURE_START))
    if start == _CAPTURE_START:
        check_head(file)
        return CAPTURE
    try:
        layout_of(file)
    except JobError:
        return None
    return PACKETS


def _is_log_name(name: str) -> bool:
    return name.isdecimal() and len(name) == 20


def _has_recording(compressed: Path) -> bool:
    """Whether a compressed file contains a recording; False if it cannot be decompressed."""
    if _is_log_name(compressed.stem):
        return not _NO_LOGS.intersection(compressed.parts)
    try:
        with pa.input_stream(str(compressed), compression="detect") as stream:
            head = stream.read(_HEAD)
    except OSError:
        return False
    return head.startswith(_CAPTURE_START) or layout_told(head) is not None


def _source(file: Path, kind: str) -> Source:
    stat = file.stat()
    return Source(str(file.resolve()), kind, stat.st_size, stat.st_mtime_ns)


def batches(folder: Path) -> list[Path]:
    """Return the complete batches of a folder of tables."""
    return sorted(path for path in folder.glob("batch=*") if path.is_dir())


def known_sources(folder: Path) -> dict[Source, dict[str, Any]]:
    """Return the sources that have been read into a folder, each with what its batch says of all its sources."""
    entries = [json.loads((batch / "sources.json").read_text()) for batch in batches(folder)]
    return {Source(*file): entry for entry in entries for file in entry["files"]}


def ingest(
    spark: SparkSession,
    paths: Sequence[Path],
    folder: Path,
    *,
    ports: Sequence[int] = (),
    levels: str,
) -> Ingested:
    """Read the new files of these paths into a folder of tables.

    :raises JobError: as `planned`.
    """
    with planned(paths, folder, ports=ports, levels=levels) as reading:
        return read(spark, reading)


@contextmanager
def planned(
    paths: Sequence[Path], folder: Path, *, ports: Sequence[int] = (), levels: str
) -> Iterator[Reading]:
    """Find the new files of these paths without Spark, and keep other runs out of the folder in the block.

    A file that has changed since it was read is an error, because its first part would be counted
    twice. So are other flags than those with which it was read, as its tables would stay as they are.
    It can be read into another folder.

    :raises JobError: as `find_sources`, without a recording to read, for a folder with a replay, for a changed file or
        other flags, and while another run writes to the folder.
    """
    passed_over: set[Path] = set()
    sources = find_sources(paths, passed_over)
    unread = passed_over - {Path(source.path) for source in sources}
    being_written = sum(file.suffix == OPEN_SUFFIX for file in unread)
    others = len(unread) - being_written
    if not sources and not being_written:
        raise JobError(
            f"no capture, pcap or pcapng and no commit log is in {', '.join(map(str, paths))}; files of other kinds "
            f"there: {others:,}"
        )
    if (folder / "results").exists():
        raise JobError(
            f"{folder} has a replay, for which 'verify' would take the tables: use another folder"
        )
    with alone_in(folder, f"another 'tidegate ingest' reads into {folder}: wait until it is done"):
        known = known_sources(folder)
        paths_known = {source.path for source in known}
        fresh = [source for source in sources if source not in known]
        for source in fresh:
            if source.path in paths_known:
                raise JobError(f"{source.path} has changed since it was read: use another folder")
        for source in sources:
            if flag := _other_flag(source, known.get(source, {}), ports, levels):
                raise JobError(
                    f"{source.path} was read with another {flag}: use another folder, or the same {flag}"
                )
        known_before = len(sources) - len(fresh)
        yield Reading(fresh, folder, ports, levels, known_before, being_written, others)


def read(spark: SparkSession, reading: Reading) -> Ingested:
    """Read the files into the folder of tables, while `planned` keeps others out."""
    total: dict[str, int] = {}
    for kind in (CAPTURE, PACKETS, COMMIT_LOG):
        of_kind = [source for source in reading.fresh if source.kind == kind]
        for some in _in_groups(sorted(of_kind, key=_order)):
            for name, number in _ingest_batch(spark, kind, some, reading).items():
                total[name] = total.get(name, 0) + number
    return reading.done(total)


def _other_flag(
    source: Source, entry: Mapping[str, Any], ports: Sequence[int], levels: str
) -> str | None:
    """Return the flag that would change what was read of a source; None if there is none, or it is not known."""
    if entry.get("levels", levels) != levels:
        return "--levels"
    if source.kind == PACKETS and set(entry.get("ports", ports)) != set(ports):
        return "--port"
    return None


def _in_groups(sources: list[Source]) -> Iterator[list[Source]]:
    """Yield the files in groups. The files of one run of a recorder stay together."""
    some: list[Source] = []
    for _, run in itertools.groupby(sources, _run_of):
        some += run
        if len(some) >= _FILES_AT_ONCE:
            yield some
            some = []
    if some:
        yield some


def _run_of(source: Source) -> str:
    """Return a key that is the same for files that may be from one run of a recorder."""
    path = Path(source.path)
    if source.kind == CAPTURE:
        return str(path.parent / run_of(path.name))
    if source.kind == PACKETS:
        # tcpdump appends a number to the name, or puts a time into it.
        return str(path.parent / _NUMBER.sub("", path.name))
    return source.path


def _order(source: Source) -> tuple[str, int, str]:
    """Return a key that sorts the files of a run by their numbers, which may have more than five digits."""
    return _run_of(source), len(Path(source.path).stem), source.path


def _ingest_batch(
    spark: SparkSession, kind: str, sources: list[Source], reading: Reading
) -> dict[str, int]:
    folder, ports, levels = reading.folder, reading.ports, reading.levels
    numbers = [int(batch.name.partition("=")[2]) for batch in batches(folder)]
    name = f"batch={max(numbers, default=0) + 1:05}"
    unfinished = folder / f".unfinished-{name}"
    plan = msgspec.json.encode([sources, list(ports), levels])
    _keep_if_same(unfinished, plan)
    if kind == COMMIT_LOG:
        counts = _read_logs(spark, sources, unfinished, levels)
    else:
        delays = messages.parse_levels(levels)
        found = _read_parts(spark, kind, sources, unfinished, frozenset(ports), delays)
        stitched = stitch(unfinished, found, delays)
        counts = _counts(unfinished, [(one.file, one.counts) for one in found] + stitched)
    entry = {
        "files": [list(source) for source in sources],
        "counts": counts,
        "ports": list(ports),
        "levels": levels,
    }
    write_text(unfinished / "sources.json", json.dumps(entry, indent=1))
    unfinished.rename(folder / name)
    # Until here a run that goes on with this one needs them.
    shutil.rmtree(folder / name / "seams", ignore_errors=True)
    return counts


def _keep_if_same(unfinished: Path, plan: bytes) -> None:
    """Keep what a killed run has read if this run has the same plan; else remove it."""
    file = unfinished / "plan.json"
    if unfinished.exists() and (not file.exists() or file.read_bytes() != plan):
        shutil.rmtree(unfinished)
    unfinished.mkdir(exist_ok=True)
    write_text(file, plan.decode())
    for hidden in unfinished.rglob(".part-*"):
        hidden.unlink()  # what the killed run had not written whole takes up the disk for nothing


def _read_logs(
    spark: SparkSession, sources: list[Source], unfinished: Path, levels: str
) -> dict[str, int]:
    read = (
        spark.read.format(f"tidegate-{COMMIT_LOG}")
        .option("files", json.dumps([source.path for source in sources]))
        .option("levels", levels)
    )
    for table, place in (("sends", SENDS), ("messages", MESSAGES)):
        rows = read.option("table", table).load()
        rows.write.mode("overwrite").parquet(str(unfinished / place))
    written = read_parquet(spark, messages.DDL, unfinished / MESSAGES)
    by_event = written.groupBy("event").count().collect()
    counts = {f"messages {row['event']}": int(row["count"]) for row in by_event}
    counts["sends"] = read_parquet(spark, DDL, unfinished / SENDS).count()
    return counts


def _read_parts(
    spark: SparkSession,
    kind: str,
    sources: list[Source],
    unfinished: Path,
    ports: frozenset[int],
    levels: tuple[int, ...],
) -> list[Receipt]:
    """Read the parts of these files that have no receipt yet, with a task for each part."""
    shuffled: list[list[Source]] = []
    if kind == CAPTURE:
        parts = _parts_of_captures(spark, sources)
        read = partial(read_part, folder=unfinished, levels=levels)
    else:
        parts = []
        for recording in _recordings(spark, sources):
            if len(recording) > 1 or len(ranges(recording[0].size)) > 1:
                shuffled.append(recording)
            else:
                parts.append(_whole(recording[0]))
        read = partial(read_packet_file, folder=unfinished, levels=levels, ports=ports)
    for number, part in enumerate(parts):
        part.number = number
    done = receipts(unfinished)
    rest = [part for part in parts if part.number not in done]
    in_tasks(spark, read, rest)
    done = receipts(unfinished)
    found = [done[part.number] for part in parts]
    for recording in shuffled:
        files = [(source.path, source.size) for source in recording]
        found += read_in_ranges(spark, files, len(found), unfinished, ports=ports, levels=levels)
    return found


def _recordings(spark: SparkSession, sources: list[Source]) -> list[list[Source]]:
    """Group packet captures into recordings: a recorder may begin a new file now and then."""
    found: list[list[Source]] = []
    for _, files in itertools.groupby(sources, _run_of):
        by_path = {source.path: source for source in files}
        paths = list(by_path)
        times = in_tasks(spark, times_of, paths) if len(paths) > 1 else [None]
        found += [[by_path[path] for path in some] for some in in_recordings(paths, times)]
    return found


def _parts_of_captures(spark: SparkSession, sources: list[Source]) -> list[Part]:
    """Return the files' ranges as parts. Runs with more than one range are surveyed first."""
    found: list[Part] = []
    for run, files in itertools.groupby(sources, _run_of):
        spans = [
            (source.path, start, end) for source in files for start, end in ranges(source.size)
        ]
        if len(spans) == 1:
            found.append(Part(number=0, file=spans[0][0], run=run, start=0, end=spans[0][2]))
            continue
        guesses = in_tasks(spark, guess, spans)
        found += parts_of_run(run, spans, certain(spans, guesses, survey_again))
    return found


def _whole(source: Source) -> Part:
    return Part(number=0, file=source.path, run=source.path, start=0, end=source.size)


def _counts(unfinished: Path, told: Iterable[tuple[str, Mapping[str, int]]]) -> dict[str, int]:
    """Sum the counts of a batch, write those of each file, and check them against the written rows.

    :param told: the counts of files, and of the seams between their parts; without what could not be read of messages.
    :raises JobError: if a frame is in no row, or in two.
    """
    by_file: defaultdict[str, Counter[str]] = defaultdict(Counter)
    total: Counter[str] = Counter()
    for file, counts in told:
        by_file[file].update(counts)
        total.update(counts)
    for written in (unfinished / MESSAGES).glob("*.parquet"):
        for file in unreadable_in(written):
            by_file[file][_UNREADABLE] += 1
            total[_UNREADABLE] += 1
    rows = sum(rows_in(file) for file in (unfinished / PAIRS).glob("*.parquet"))
    ends = 2 * total["paired"] + total["unanswered"] + total["unasked"]
    if ends + total["aside"] != total["frames"] or rows != ends - total["paired"]:
        raise JobError(
            f"{total['frames']} frames were read, {ends} are in {rows} pairs and {total['aside']} "
            "set aside: the tables would not be complete"
        )
    write_file_counts(unfinished, by_file)
    return total


def _missing(sources: Iterable[Source]) -> int:
    """Return in how many places files of a run, or of a commit log, are missing between others."""
    spans = []
    for source in sources:
        path = Path(source.path)
        if source.kind == COMMIT_LOG:  # named by the place of their first byte
            spans.append((str(path.parent), int(path.name), int(path.name) + source.size))
        elif source.kind == CAPTURE and run_of(path.name) != path.name:
            number = int(path.stem.rpartition("-")[2])
            spans.append((_run_of(source), number, number + 1))
    return sum(
        one[0] == following[0] and one[2] < following[1]
        for one, following in itertools.pairwise(sorted(spans))
    )


def check_tables(folder: Path) -> None:
    """Raise JobError if nothing was read into a folder of tables."""
    if not batches(folder):
        raise JobError(f"{folder} has no tables: run 'tidegate ingest' into it first")


def read_table(spark: SparkSession, folder: Path, table: str) -> DataFrame:
    """Read the table `pair`, `send`, `aside`, `file` or `messages` of all complete batches.

    :raises JobError: as `check_tables`.
    """
    check_tables(folder)
    part, schema = {
        "pair": (PAIRS, DDL),
        "send": (SENDS, DDL),
        "aside": (ASIDES, ASIDE_DDL),
        "file": (FILES, FILE_DDL),
        "messages": (MESSAGES, messages.DDL),
    }[table]
    folders = [batch / part for batch in batches(folder) if (batch / part).exists()]
    if not folders:
        return spark.createDataFrame([], schema)
    return read_parquet(spark, schema, *folders)


def has_traffic(folder: Path) -> bool:
    """Return whether any frame, or message of a commit log, was read into a folder."""
    return any(
        number and (name == "frames" or name.startswith("messages "))
        for name, number in totals(folder).items()
    )


def totals(folder: Path) -> dict[str, Any]:
    """Return the summed counts of all batches of a folder, with the number of files, and of places between them where
    files are missing."""
    total: dict[str, int] = {"files": 0, MISSING: _missing(known_sources(folder))}
    for batch in batches(folder):
        entry = json.loads((batch / "sources.json").read_text())
        total["files"] += len(entry["files"])
        for name, number in entry["counts"].items():
            total[name] = total.get(name, 0) + number
    return total
