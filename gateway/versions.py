"""Versions of the tables of topics, groups and settings, by which tools see that something changed."""

from __future__ import annotations

from typing import Protocol

from gateway.wire.admin_bodies import DataVersion


class Changing(Protocol):
    """A table that counts the changes made to it since the start."""

    changes: int


class TableVersion:
    """A table's version: how often it changed, and when that was last seen."""

    def __init__(self, table: Changing) -> None:
        self._table = table
        self._seen: DataVersion | None = None

    def at(self, now_ms: int) -> DataVersion:
        """Return the present version."""
        if self._seen is None or self._seen.counter != self._table.changes:
            self._seen = DataVersion(self._table.changes, now_ms)
        return self._seen
