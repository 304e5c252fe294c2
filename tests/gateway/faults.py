"""What can go wrong below the gateway, made to happen."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import lmdb

from storage import StorageFullError
from storage.logged import LoggedTransaction
from tests.gateway.memory import MemoryGateway
from tests.storage import faults
from tests.storage.faults import DISK_FULL
from tests.storage.folder import change_table


@contextmanager
def commits_fail(gateway: MemoryGateway, trouble: lmdb.Error = DISK_FULL) -> Iterator[None]:
    """No commit succeeds."""
    with faults.commits_fail(gateway.store, trouble):
        yield


@contextmanager
def batches_cannot_begin() -> Iterator[None]:
    """There is no room for a batch, which is found out with its first change."""

    def fail(txn: LoggedTransaction, size: int) -> None:
        raise StorageFullError("no room for the batch")

    with patch.object(LoggedTransaction, "reserve", fail):
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


@contextmanager
def damaged_row(
    gateway: MemoryGateway, table: str, key: bytes, damage: Callable[[bytes], bytes]
) -> Iterator[None]:
    """A row of a table is another one meanwhile. Before and after that the gateway is stopped and started.

    :param damage: is given what stands there; nothing, where no row does.
    """
    whole: list[bytes] = []

    def spoil(txn: lmdb.Transaction, db: lmdb._Database) -> None:
        whole.append(bytes(txn.get(key, db=db) or b""))
        txn.put(key, damage(whole[0]), db=db)

    def mend(txn: lmdb.Transaction, db: lmdb._Database) -> None:
        if whole[0]:
            txn.put(key, whole[0], db=db)
        else:
            txn.delete(key, db=db)

    def restart(change: Callable[[lmdb.Transaction, lmdb._Database], None]) -> None:
        gateway.stop()
        change_table(gateway.data, table, change)
        gateway.start()

    restart(spoil)
    try:
        yield
    finally:
        restart(mend)


@contextmanager
def damaged_page(gateway: MemoryGateway, table: str, key: bytes) -> Iterator[None]:
    """LMDB cannot read the page of a table on which a row stands, meanwhile. Before that the gateway is stopped and
    started."""
    gateway.restart()
    row = gateway.store.reader().get(key, db=getattr(gateway.store.tables, table))
    assert row is not None
    size = gateway.store.reader().stat()["psize"]
    with (gateway.data / "data.mdb").open("r+b") as file:
        content = file.read()
        pages = [at for at in range(0, len(content), size) if row in content[at : at + size]]

        def put_flags(flags: list[bytes]) -> None:
            for at, own in zip(pages, flags, strict=True):
                os.pwrite(file.fileno(), own, at + 10)

        # Neither those of a leaf nor of a page above one.
        put_flags([b"\4\0"] * len(pages))
        try:
            yield
        finally:
            put_flags([content[at + 10 : at + 12] for at in pages])
