"""What can go wrong below the gateway, made to happen."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import lmdb

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
