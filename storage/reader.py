"""The interface through which rows are read, and scans of neighbouring rows and of names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import lmdb


class Reader(Protocol):
    """A transaction of LMDB's own, or a `LoggedTransaction`."""

    def get(self, key: bytes, *, db: lmdb._Database) -> bytes | None:
        """Return a row's value."""

    def cursor(self, db: lmdb._Database) -> lmdb.Cursor:
        """Return a cursor in a table."""

    def stat(self, db: lmdb._Database | None = None) -> lmdb._Stat:
        """Return a table's statistics; without a table, the statistics of the list of tables."""


def rows_with_prefix(
    txn: Reader, table: lmdb._Database, prefix: bytes, start: bytes = b""
) -> Iterator[tuple[bytes, bytes]]:
    """Return all rows whose key begins with `prefix`, in order, from `start` on."""
    cursor = txn.cursor(db=table)
    if cursor.set_range(max(prefix, start)):
        for key, value in cursor:
            if not key.startswith(prefix):
                return
            yield key, value


def names_in(txn: Reader, table: lmdb._Database) -> Iterator[bytes]:
    """Return what the keys of a table have before their first zero byte, each once, leaping from one to the next."""
    cursor = txn.cursor(db=table)
    alive = cursor.first()
    while alive:
        name = cursor.key().partition(b"\0")[0]
        yield name
        alive = cursor.set_range(name + b"\1")
