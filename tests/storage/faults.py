"""Makes faults happen below a store."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fcntl import F_GETFL, fcntl
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any, Protocol

import lmdb
import pytest

from storage import Store
from storage.logged import LoggedTransaction

DISK_FULL = lmdb.DiskError("mdb_txn_commit: No space left on device")
QUOTA_USED_UP = lmdb.Error("mdb_txn_commit: Disk quota exceeded")
DISK_BROKEN = lmdb.Error("mdb_txn_commit: Input/output error")


class _FailingTransaction:
    """A transaction into which every row can be written, but whose commit fails."""

    def __init__(self, txn: lmdb.Transaction, trouble: lmdb.Error) -> None:
        self._txn = txn
        self._trouble = trouble

    def __getattr__(self, name: str) -> object:
        return getattr(self._txn, name)

    def commit(self) -> None:
        """Fail like LMDB when a write fails: the transaction is over, and nothing is stored."""
        self._txn.abort()
        raise self._trouble


class _FailingDatabase:
    """LMDB on a disk that can be read but not written to."""

    def __init__(self, database: lmdb.Environment, trouble: lmdb.Error) -> None:
        self._database = database
        self._trouble = trouble

    def __getattr__(self, name: str) -> object:
        return getattr(self._database, name)

    def begin(self, write: bool = False) -> object:
        txn = self._database.begin(write=write)
        return _FailingTransaction(txn, self._trouble) if write else txn


@contextmanager
def lmdb_cannot_be_written(store: Store, trouble: lmdb.Error = DISK_FULL) -> Iterator[None]:
    """Let every checkpoint fail. No batch may be open when this begins or ends."""
    environment = store.environment
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environment, "lmdb", _FailingDatabase(environment.lmdb, trouble))
        store._txn.roll_back()
        yield
    store._txn.roll_back()


@contextmanager
def disk_takes_no_checkpoint(data: Path) -> Iterator[None]:
    """Leave out the syncs of this process's checkpoints. The store stays open until this ends."""
    file = (data / "data.mdb").resolve()
    opened = [int(link.name) for link in Path("/proc/self/fd").iterdir() if link.resolve() == file]
    # The read-only descriptor is for syncs and reads: LMDB writes through the others.
    (synced,) = [
        number for number in opened if fcntl(number, F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    ]
    whole, nothing = os.dup(synced), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, synced, inheritable=False)
    try:
        yield
    finally:
        os.dup2(whole, synced, inheritable=False)
        os.close(whole)
        os.close(nothing)


@contextmanager
def log_cannot_be_written(store: Store) -> Iterator[None]:
    """Let every append to the redo log fail."""

    def fail(rows: object) -> bool:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store.environment.log, "append", fail)
        yield


@contextmanager
def nothing_can_be_written(store: Store, trouble: lmdb.Error = DISK_FULL) -> Iterator[None]:
    """Let every commit fail; a batch may be open."""

    def fail(txn: LoggedTransaction) -> None:
        raise trouble

    with log_cannot_be_written(store), pytest.MonkeyPatch.context() as patch:
        patch.setattr(LoggedTransaction, "checkpoint", fail)
        yield


@contextmanager
def commits_fail(store: Store, trouble: lmdb.Error = DISK_FULL) -> Iterator[None]:
    """Let writes to both the redo log and LMDB fail, so that every commit fails. No batch may be open when this begins
    or ends."""
    with log_cannot_be_written(store), lmdb_cannot_be_written(store, trouble):
        yield


@contextmanager
def no_more_threads(more: int = 0) -> Iterator[None]:
    """Let the system start no thread, or only so many more; running ones go on."""
    begin, begun = Thread.start, count(1)

    def start(thread: Thread) -> None:
        if next(begun) > more:
            raise RuntimeError("can't start new thread")
        begin(thread)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Thread, "start", start)
        yield


class Closable(Protocol):
    """An object with open files."""

    def close(self) -> None: ...


def left_open_by_failures(folder: Path, start: Callable[[], Closable]) -> list[int]:
    """Start something in a folder again and again, each time with a different system call that fails. Return how many
    of the folder's files were open after each failed start."""
    left = []
    for number in range(20):
        try:
            with _call_fails(number):
                started = start()
        except OSError:
            left.append(_open_files(folder))
        else:
            started.close()
    return left


@contextmanager
def _call_fails(number: int) -> Iterator[None]:
    """Let one call fail, given by its number among the calls that open, read, write and sync files."""
    numbers = count()

    def failing(call: Callable[..., Any]) -> Callable[..., Any]:
        def fail(*args: Any) -> Any:
            if next(numbers) == number:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return call(*args)

        return fail

    with pytest.MonkeyPatch.context() as patch:
        for name in ("open", "fstat", "pread", "pwrite", "ftruncate", "fsync", "fdatasync"):
            patch.setattr(os, name, failing(getattr(os, name)))
        yield


def _open_files(folder: Path) -> int:
    """Return how many files of a folder, and the folder itself, this process has open."""
    opened = (link.resolve() for link in Path("/proc/self/fd").iterdir())
    return sum(folder in (path, path.parent) for path in opened)
