"""Pairs a request in one part with its answer in a later part.

Each part writes its unanswered requests, and the answers that are the first frames of their number.
These are matched part by part, in order, as if the parts were one. Only the requests that are
outstanding between two parts are in memory.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gateway.wire.codes import CommandFlag
from spark_jobs import messages
from spark_jobs.exchanges import BATCH_BYTES, BATCH_ROWS, ROWS
from spark_jobs.tables import HEADS, MESSAGES, OPEN, PAIRS, PartWriter, Receipt

_ANSWER: Final = ("answered_ns", "answer_code", "answer_remark", "answer_ext", "answer_body")
_ONEWAY: Final = int(CommandFlag.ONEWAY)
_Row = dict[str, Any]
_Key = tuple[str, bool, int]


def stitch(
    folder: Path, parts: Sequence[Receipt], levels: tuple[int, ...]
) -> list[tuple[str, dict[str, int]]]:
    """Write the pairs across parts, and the requests and answers that remain without a partner.

    :returns: files, and the counts to add to theirs.
    """
    writer = PartWriter(folder, max((one.part for one in parts), default=0) + 1, levels)
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    rows: list[_Row] = []
    size = 0
    for _, run in itertools.groupby(parts, lambda part: part.group):
        for name, row in _stitched(folder, list(run)):
            counts[row["file"]][name] += 1
            rows.append(row)
            size += len(row["body"] or b"") + len(row["answer_body"] or b"")
            if len(rows) >= BATCH_ROWS or size >= BATCH_BYTES:
                _write(writer, rows, levels)
                rows, size = [], 0
    _write(writer, rows, levels)
    writer.end_without_receipt()
    return [(file, dict(of_file)) for file, of_file in counts.items()]


def _stitched(folder: Path, parts: Sequence[Receipt]) -> Iterator[tuple[str, _Row]]:
    """Yield rows of `exchanges.ROWS`, each with the name of its count."""
    carried: dict[_Key, _Row] = {}
    for part in parts:
        name = f"part-{part.part:06}.parquet"
        heads = _rows(folder / HEADS / name)
        opened = _rows(folder / OPEN / name)
        for key, head in heads.items():
            row = carried.pop(key, None)
            if row is None:
                yield "unasked", head
            else:
                yield "paired", row | {field: head[field] for field in _ANSWER}
        # A request has no answer if its connection has ended, or if another request used its number before
        # an answer did.
        closed = set(part.closed)
        ended = {key for key in carried if key[0] in closed}
        for key in ended | _used(folder / PAIRS / name, carried) | (carried.keys() & opened.keys()):
            yield "unanswered", carried.pop(key)
        carried |= opened
    for row in carried.values():
        yield "unanswered", row


def _rows(file: Path) -> dict[_Key, _Row]:
    if not file.exists():
        return {}
    return {_key(row): row for row in pq.read_table(file).to_pylist()}


def _key(row: Mapping[str, Any]) -> _Key:
    return row["connection"], row["from_client"], row["opaque"]


def _used(file: Path, carried: Mapping[_Key, _Row]) -> set[_Key]:
    """Return the keys in `carried` that requests of a part have too, except oneway requests."""
    if not carried or not file.exists():
        return set()
    table = pq.read_table(file, columns=["connection", "from_client", "opaque", "asked_ns", "flag"])
    numbers = pa.array({number for _, _, number in carried}, pa.int32())
    names = pa.array({name for name, _, _ in carried}, pa.string())
    near = table.filter(
        pc.and_(
            pc.and_(pc.is_in(table["opaque"], numbers), pc.is_in(table["connection"], names)),
            pc.and_(
                pc.is_valid(table["asked_ns"]),
                pc.equal(pc.bit_wise_and(table["flag"], _ONEWAY), 0),
            ),
        )
    )
    return {key for row in near.to_pylist() if (key := _key(row)) in carried}


def _write(writer: PartWriter, rows: Sequence[_Row], levels: tuple[int, ...]) -> None:
    writer.write(PAIRS, pa.RecordBatch.from_pylist(rows, schema=ROWS))
    events = (
        event
        for row in rows
        if row["code"] in messages.CODES
        for event in messages.messages_of_pair(row, levels)
    )
    writer.write(MESSAGES, messages.message_batch(events))
