"""Reading rows side by side that will be needed one after the other, where they are not in memory.

The index can be far larger than memory. A page of it that is on the disk only takes 0.1 to 1 ms to read, during which
everybody waits; but a disk reads many pages at one time: here 12,000 a second one after the other and 40,000 side by
side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from resource import RUSAGE_THREAD, getrusage
from typing import Final, NamedTuple

import lmdb

from storage.reader import Reader

THREADS: Final = 16
"""Pages that are read at one time; with more, the disk here was no faster."""

FEW: Final = 8
"""Rows that are left to be read one after the other: asking threads costs as much as some reads."""

EVERY: Final = 16
"""Of so many rows one is read first, and at least two, some 2 us each: where none of them is on the disk only, nor are
the others."""


class Rows(NamedTuple):
    """Rows of a table, by keys of which some may have none."""

    table: lmdb._Database
    keys: Sequence[bytes]


class ReadAhead:
    """Threads that read a file of LMDB's; they begin with the first row that had to be waited for."""

    def __init__(self, environment: lmdb.Environment) -> None:
        self._environment = environment
        self._threads = ThreadPoolExecutor(THREADS, "read-ahead")

    def touch(self, txn: Reader, *wanted: Rows) -> None:
        """Have rows in memory, as far as may be. Nothing is wrong where that fails: then they are read when they are
        needed."""
        if sum(len(rows.keys) for rows in wanted) < FEW or not _must_wait(txn, wanted):
            return
        # No thread can be started where the system has no more.
        with suppress(RuntimeError):
            wait([self._threads.submit(self._read, *part) for part in _parts(wanted)])

    def _read(self, table: lmdb._Database, keys: Sequence[bytes]) -> None:
        # What the last checkpoint left: whatever was changed since then is in memory anyway. With buffers no value is
        # copied; LMDB's binding touches each of its pages all the same.
        with suppress(lmdb.Error), self._environment.begin(buffers=True) as txn:
            for key in keys:
                txn.get(key, db=table)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown()


def _must_wait(txn: Reader, wanted: Sequence[Rows]) -> bool:
    """Whether some of these rows, of all tables, must be waited for."""
    before = getrusage(RUSAGE_THREAD).ru_majflt
    for table, keys in wanted:
        for key in keys[:: max(1, min(len(keys) // 2, EVERY))]:
            txn.get(key, db=table)
            if getrusage(RUSAGE_THREAD).ru_majflt != before:
                return True
    return False


def _parts(wanted: Sequence[Rows]) -> Iterator[Rows]:
    """As many parts as there are threads. Neighbours stay together, as they may share a page."""
    size = -(-sum(len(rows.keys) for rows in wanted) // THREADS)
    for table, keys in wanted:
        for start in range(0, len(keys), size):
            yield Rows(table, keys[start : start + size])
