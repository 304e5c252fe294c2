"""Writes a new data file with what can be read of one that has wrong pages.

LMDB does not read the old file: it trusts most of what pages say, and can die of a wrong one. What the file lists as
free does not matter, as the new one has no free pages. What was on a wrong page, or below one, is left out. Pages that
nothing leads to are not searched for rows: they look like those with messages that were aborted or removed long ago.

The redo log is not applied here. The new file has the stamp of the old one, so whoever opens it applies the log.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from typing import Final, NamedTuple

import lmdb

from storage.environment import Tables, open_tables
from storage.keys import (
    ENDS_VALUE,
    FORMAT,
    INBOX_COPY,
    NEXT_SEQUENCE,
    U64,
    pack_u64,
    queue_prefix,
    split_offset_key,
)
from storage.meta_pages import META_PAGES, newest_state, page_size_of
from storage.pages import Region, find_trees, readable_rows
from storage.reader import Reader, names_in, rows_with_prefix
from storage.shapes import is_end, is_message, is_meta, is_name, is_progress, is_queued

ROWS_AT_ONCE: Final = 10_000
"""Rows that one transaction writes. LMDB keeps the pages of a transaction in memory."""

_MOST_NAMED: Final = 5
"""Pages of a table that are named; any more are only counted."""

_SMALLEST_MAP: Final = 1 << 28

_LAST_OFFSET: Final = b"\xff" * U64.size


class Readable(NamedTuple):
    """How much of a file can be read: a sentence for each table of which something is lost; the rows of all tables; and
    about how many bytes a new file with them needs."""

    losses: list[str]
    rows: int
    size: int


def find_losses(data: Path) -> Readable:
    """Look for rows of LMDB's file that cannot be read.

    :raises ValueError: when none of its tables can be found, or it would have no format.
    """
    losses: list[str] = []
    with data.open("rb") as opened:
        file = opened.fileno()
        state = newest_state(file)
        trees = find_trees(file, state)
        if FORMAT not in dict(readable_rows(file, state, trees["meta"], [])):
            raise ValueError("its format cannot be read")
        for name, tree in trees.items():
            gaps: list[Region] = []
            found = sum(1 for _ in readable_rows(file, state, tree, gaps))
            if gaps or found < tree.rows:
                lost = f"{max(tree.rows - found, 0):,} of {tree.rows:,} rows cannot be read"
                losses.append(f"{name}: {lost}{_told(gaps)}")
    pages = META_PAGES + sum(tree.pages for tree in trees.values())
    return Readable(losses, sum(tree.rows for tree in trees.values()), pages * page_size_of(state))


def rebuild(data: Path, folder: Path, needs_settings: Callable[[str, bytes], bool]) -> None:
    """Write all rows of LMDB's file that can be read to a new file in a folder.

    :param needs_settings: whether a topic or a group of a name, in the table `topics` or `groups`, needs a row there.
    :raises ValueError: as from `find_losses`.
    """
    with data.open("rb") as opened:
        file = opened.fileno()
        state = newest_state(file)
        trees = find_trees(file, state)
        size = max(2 * os.fstat(file).st_size, _SMALLEST_MAP)
        count = len(Tables._fields)
        with closing(lmdb.open(str(folder), map_size=size, max_dbs=count, sync=False)) as made:
            tables = open_tables(made)
            gaps: dict[str, list[Region]] = {name: [] for name in Tables._fields}
            for name, table in zip(Tables._fields, tables, strict=True):
                if name in trees:
                    rows = readable_rows(file, state, trees[name], gaps[name])
                    _append(made, table, rows)
            with made.begin(write=True) as txn:
                # It is valid for a transaction of a certain number, and the new file counts from 1.
                txn.delete(INBOX_COPY, db=tables.meta)
                if gaps["messages"] or gaps["parts"]:
                    _keep_numbers(txn, tables)
                if gaps["queues"]:
                    lost = trees["queues"].rows - txn.stat(tables.queues)["entries"]
                    _keep_ends(txn, tables, gaps, lost)
                if gaps["ends"]:
                    _keep_emptied(txn, tables, gaps)
                _keep_names(txn, tables, gaps, needs_settings)
            made.sync(True)


def _append(
    made: lmdb.Environment, table: lmdb._Database, rows: Iterator[tuple[bytes, bytes]]
) -> None:
    while some := list(islice(rows, ROWS_AT_ONCE)):
        with made.begin(write=True) as txn:
            txn.cursor(db=table).putmulti(some, append=True)


def _keep_numbers(txn: lmdb.Transaction, tables: Tables) -> None:
    """Let no new message get the number of a lost one: a client that has the lost one names it by its number."""
    numbers = chain(
        (key[-U64.size :] for key in txn.cursor(db=tables.ids).iternext(values=False)),
        (value[: U64.size] for _, value in txn.cursor(db=tables.queues)),
        txn.cursor(db=tables.halves).iternext(values=False),
    )
    last = max((number for number in numbers if is_message(number, b"")), default=b"")
    noted = txn.get(NEXT_SEQUENCE, db=tables.meta) or b""
    behind = pack_u64(int.from_bytes(last) + 1)
    if noted < behind or not is_meta(NEXT_SEQUENCE, noted):
        txn.put(NEXT_SEQUENCE, behind, db=tables.meta)


def _keep_ends(
    txn: lmdb.Transaction, tables: Tables, gaps: Mapping[str, list[Region]], lost: int
) -> None:
    """Note where queues with lost rows begin and end, as far as others say so. Then the repair puts what has fired back
    where it was, not behind what consumers have read, and gives no new message an offset that they have read.

    :param lost: how many rows all queues have lost.
    """
    ends = {
        prefix: ENDS_VALUE.unpack(value)
        for prefix, value in txn.cursor(db=tables.ends)
        if is_end(prefix, value)
    }
    behind = {prefix: end for prefix, (_, end) in ends.items()}
    for key, value in txn.cursor(db=tables.queues):
        if is_queued(key, value):
            prefix, offset = key[: -U64.size], int.from_bytes(key[-U64.size :])
            behind[prefix] = max(behind.get(prefix, 0), offset + 1)
    read = dict(behind)
    for prefix, offset in _progress(txn, tables):
        # A client can note any offset.
        most = behind.get(prefix, 0) + lost
        read[prefix] = max(read.get(prefix, 0), min(offset, most))
    for prefix, end in read.items():
        is_known = prefix in ends or not _may_be_lost(gaps["ends"], prefix, prefix)
        if is_known and _may_be_lost(gaps["queues"], prefix, prefix + _LAST_OFFSET):
            first, _ = ends.get(prefix, (0, 0))
            txn.put(prefix, ENDS_VALUE.pack(first, end), db=tables.ends)


def _keep_emptied(txn: lmdb.Transaction, tables: Tables, gaps: Mapping[str, list[Region]]) -> None:
    """Note where queues continue that retention has emptied and of which only a row that may be lost said so, by the
    progress of groups. From 0 on, groups would skip what is sent next."""
    # A client can note any offset, but no queue has had more messages than the store.
    noted = txn.get(NEXT_SEQUENCE, db=tables.meta) or b""
    most = int.from_bytes(noted) if is_meta(NEXT_SEQUENCE, noted) else 0
    read: dict[bytes, int] = {}
    for prefix, offset in _progress(txn, tables):
        if _may_be_lost(gaps["ends"], prefix, prefix):
            read[prefix] = max(read.get(prefix, 0), min(offset, most))
    for prefix, end in read.items():
        is_empty = next(rows_with_prefix(txn, tables.queues, prefix), None) is None
        if (
            end
            and is_empty
            and not _may_be_lost(gaps["queues"], prefix, prefix + _LAST_OFFSET)
            and txn.get(prefix, db=tables.ends) is None
        ):
            txn.put(prefix, ENDS_VALUE.pack(end, end), db=tables.ends)


def _progress(txn: lmdb.Transaction, tables: Tables) -> Iterator[tuple[bytes, int]]:
    """Return the progress of all groups: the key prefix of a queue, and the offset of a group in it."""
    for key, value in txn.cursor(db=tables.offsets):
        if is_progress(key, value):
            _, topic, number = split_offset_key(key)
            yield queue_prefix(topic, number), int.from_bytes(value)


def _may_be_lost(gaps: list[Region], first: bytes, last: bytes) -> bool:
    """Whether a row may be lost whose key is one of these or between them."""
    return any(gap.first <= last and first < gap.end for gap in gaps)


def _keep_names(
    txn: lmdb.Transaction,
    tables: Tables,
    gaps: Mapping[str, list[Region]],
    needs_settings: Callable[[str, bytes], bool],
) -> None:
    """Put a row that cannot be read where one may be lost that nothing else replaces. A topic without a row counts as
    deleted, and its messages are removed; what was paused would fire."""
    topics = set(_topics(txn, tables))
    groups = {
        split_offset_key(key)[0]
        for key, value in txn.cursor(db=tables.offsets)
        if is_progress(key, value)
    }
    for name, table, known in (
        ("topics", tables.topics, topics),
        ("groups", tables.groups, groups),
        ("paused", tables.paused, topics),
    ):
        for key in known:
            is_needed = name == "paused" or needs_settings(name, key)
            if is_needed and _may_be_lost(gaps[name], key, key) and txn.get(key, db=table) is None:
                txn.put(key, b"", db=table)


def _topics(txn: Reader, tables: Tables) -> Iterator[bytes]:
    """Return the topics that have settings, messages in queues or timers; some of them more than once."""
    for table in (tables.topics, tables.totals):
        yield from txn.cursor(db=table).iternext(values=False)
    yield from filter(is_name, names_in(txn, tables.queues))


def _told(gaps: list[Region]) -> str:
    """Return which pages are lost, to be appended to a sentence."""
    pages = sorted({gap.page for gap in gaps})
    if not pages:
        return ""
    named = ", ".join(map(str, pages[:_MOST_NAMED]))
    more = f" and {len(pages) - _MOST_NAMED:,} more" if len(pages) > _MOST_NAMED else ""
    return f" (page{'s' if len(pages) > 1 else ''} {named}{more})"
