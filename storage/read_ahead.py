"""Reads rows in parallel that are needed next, if they are not in memory.

The index can be far larger than memory. A page that is only on disk takes 0.1 to 1 ms to read, during which everybody
waits. But a disk reads many pages at the same time: on the machine measured, 12,000 a second one after the other and
40,000 in parallel.
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
"""Pages that are read at the same time. With more, the disk measured was no faster."""

FEW: Final = 8
"""Fewer rows than this are read one after the other: starting threads costs as much as some reads."""

EVERY: Final = 16
"""One row of so many is probed first, and at least two, some 2 us each. If all probed rows are in memory, so are the
others."""


class Rows(NamedTuple):
    """Rows of a table, by keys. A key may have no row."""

    table: lmdb._Database
    keys: Sequence[bytes]


class ReadAhead:
    """Threads that read LMDB's file. They start when a probed row had to be read from disk."""

    def __init__(self, environment: lmdb.Environment) -> None:
        self._environment = environment
        self._threads = _threads()

    def touch(self, txn: Reader, *wanted: Rows) -> bool:
        """Load rows into memory as far as possible. A failure does no harm: the rows are then read when they are
        needed.

        :returns: whether they seemed not to be there.
        """
        if sum(len(rows.keys) for rows in wanted) < FEW or not _must_wait(txn, wanted):
            return False
        try:
            wait([self._threads.submit(self._read, *part) for part in _parts(wanted)])
        except RuntimeError:
            # The system has no more threads. Those that were started must not read on: LMDB's map may grow next.
            self.close()
            self._threads = _threads()
        return True

    def _read(self, table: lmdb._Database, keys: Sequence[bytes]) -> None:
        # This reads the state of the last checkpoint: rows changed since then are in memory anyway. With buffers, no
        # value is copied, but LMDB's binding still touches each of its pages.
        with suppress(lmdb.Error), self._environment.begin(buffers=True) as txn:
            for key in keys:
                txn.get(key, db=table)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown()


def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, "read-ahead")


def _must_wait(txn: Reader, wanted: Sequence[Rows]) -> bool:
    """Whether one of the probed rows, of all tables, had to be read from disk."""
    before = getrusage(RUSAGE_THREAD).ru_majflt
    for table, keys in wanted:
        for key in keys[:: max(1, min(len(keys) // 2, EVERY))]:
            txn.get(key, db=table)
            if getrusage(RUSAGE_THREAD).ru_majflt != before:
                return True
    return False


def _parts(wanted: Sequence[Rows]) -> Iterator[Rows]:
    """Split rows into as many parts as there are threads. Neighbours stay together, as they may share a page."""
    size = -(-sum(len(rows.keys) for rows in wanted) // THREADS)
    for table, keys in wanted:
        for start in range(0, len(keys), size):
            yield Rows(table, keys[start : start + size])
