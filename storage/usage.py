"""The size of a data folder."""

from __future__ import annotations

from typing import NamedTuple

from storage.environment import used_bytes
from storage.store import Store


class Usage(NamedTuple):
    """The size of a data folder in bytes, and numbers of rows.

    `free` is the size of pages without rows: those that can be reused, and the list of them.
    """

    size: int
    used: int
    free: int
    map_size: int
    disk_free: int
    messages: int
    halves: int
    popped: int


def usage_of(store: Store) -> Usage:
    """Return the size of a store's folder, without reading rows."""
    environment, tables, txn = store.environment, store.tables, store.reader()
    size, used = environment.size, used_bytes(txn, tables)
    return Usage(
        size,
        used,
        max(0, size - used),
        environment.lmdb.info()["map_size"],
        environment.disk_free(),
        txn.stat(tables.messages)["entries"],
        txn.stat(tables.halves)["entries"],
        txn.stat(tables.pops)["entries"],
    )
