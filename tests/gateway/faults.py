"""What can go wrong below the gateway, made to happen."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import lmdb
import pytest

from tests.gateway.memory import MemoryGateway

DISK_FULL = lmdb.DiskError("mdb_txn_commit: No space left on device")
DISK_BROKEN = lmdb.Error("mdb_txn_commit: Input/output error")


class _FailingTransaction:
    """A transaction that takes everything in and cannot be written."""

    def __init__(self, txn: lmdb.Transaction, trouble: lmdb.Error) -> None:
        self._txn = txn
        self._trouble = trouble

    def __getattr__(self, name: str) -> object:
        return getattr(self._txn, name)

    def commit(self) -> None:
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
def commits_fail(gateway: MemoryGateway, trouble: lmdb.Error = DISK_FULL) -> Iterator[None]:
    """No commit succeeds."""
    with pytest.MonkeyPatch.context() as patch:
        database = gateway.store._lmdb
        patch.setattr(gateway.store, "_lmdb", _FailingDatabase(database, trouble))
        yield


@contextmanager
def file_cannot_grow(gateway: MemoryGateway) -> Iterator[None]:
    """The kernel refuses to let the database's file become larger."""
    size = (gateway.data / "data.mdb").stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
