"""What a data folder takes up."""

from __future__ import annotations

from typing import NamedTuple

from storage.store import Store

_META_PAGES = 2
"""Pages at the beginning of the file that LMDB keeps for itself."""


class Usage(NamedTuple):
    """What a data folder takes up: bytes, and numbers of rows.

    `free` is what holds no row: pages that can be used again, and the list of them.
    """

    size: int
    used: int
    free: int
    map_size: int
    disk_free: int
    messages: int
    halves: int


def usage_of(store: Store) -> Usage:
    """What a store's folder takes up; it costs no reading of rows."""
    environment, tables, txn = store.environment, store.tables, store.reader()
    info = environment.lmdb.info()
    stats = [txn.stat(), *map(txn.stat, tables)]
    pages = sum(
        stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"] for stat in stats
    )
    page_size = stats[0]["psize"]
    size = (info["last_pgno"] + 1) * page_size
    used = (_META_PAGES + pages) * page_size
    return Usage(
        size,
        used,
        max(0, size - used),
        info["map_size"],
        environment.disk_free(),
        txn.stat(tables.messages)["entries"],
        txn.stat(tables.halves)["entries"],
    )
