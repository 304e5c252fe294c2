"""What rows are read through."""

from __future__ import annotations

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
