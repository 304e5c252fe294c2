"""What rows are read through, and reading those that stand together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import lmdb


class Reader(Protocol):
    """A transaction of LMDB's own, or the one that is logged."""

    def get(self, key: bytes, *, db: lmdb._Database) -> bytes | None:
        """A row's value."""

    def cursor(self, db: lmdb._Database) -> lmdb.Cursor:
        """A place in a table."""

    def stat(self, db: lmdb._Database | None = None) -> lmdb._Stat:
        """A table's size; without one, that of the list of tables."""


def rows_with_prefix(
    txn: Reader, table: lmdb._Database, prefix: bytes, start: bytes = b""
) -> Iterator[tuple[bytes, bytes]]:
    """All rows whose key begins with `prefix`, in order, from `start` on."""
    cursor = txn.cursor(db=table)
    if cursor.set_range(max(prefix, start)):
        for key, value in cursor:
            if not key.startswith(prefix):
                return
            yield key, value
