"""Makes faults happen below a gateway."""

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
    """Let every commit fail."""
    with faults.commits_fail(gateway.store, trouble):
        yield


@contextmanager
def batches_cannot_begin() -> Iterator[None]:
    """Let there be no room for a batch, which its first change finds out."""

    def fail(txn: LoggedTransaction, size: int) -> None:
        raise StorageFullError("no room for the batch")

    with patch.object(LoggedTransaction, "reserve", fail):
        yield


@contextmanager
def file_cannot_grow(gateway: MemoryGateway) -> Iterator[None]:
    """Make the kernel refuse to let the database's file grow."""
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
    """Replace a row of a table meanwhile. The gateway is stopped and started before and after that.

    :param damage: receives the row's value, or nothing if there is no row, and returns the new value.
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
    """Make LMDB unable to read the page with a row of a table meanwhile. Before that, the gateway is stopped and
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

        # Flags of neither a leaf nor a branch page.
        put_flags([b"\4\0"] * len(pages))
        try:
            yield
        finally:
            put_flags([content[at + 10 : at + 12] for at in pages])
