"""Changes of single rows of a damaged folder: each is named, and what was there before is written down."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import IO, Final

import lmdb

from storage.environment import Tables
from storage.keys import split_timer_key

MAX_NAMED: Final = 1_000
"""Repairs of which more is kept than their number."""


class Changes:
    """Changes rows in a transaction, which the caller commits or not.

    :param journal: takes a line of JSON for each row that is taken out or changed: its table, and key and value in hex.
    """

    def __init__(self, txn: lmdb.Transaction, tables: Tables, journal: IO[str] | None) -> None:
        self.txn = txn
        self.tables = tables
        self._journal = journal
        self.named: list[str] = []
        """The first `MAX_NAMED`, as sentences."""
        self.count = 0
        """How many there are."""

    def get(self, table: str, key: bytes) -> bytes | None:
        """A row's value as it is now."""
        return self.txn.get(key, db=getattr(self.tables, table))

    def make(self, table: str, key: bytes, value: bytes | None, sentence: str) -> None:
        """Put a row, or with None take it out."""
        database: lmdb._Database = getattr(self.tables, table)
        before = self.txn.get(key, db=database)
        if before == value:
            return
        if value is None:
            self.txn.delete(key, db=database)
        else:
            self.txn.put(key, value, db=database)
        if before is not None and self._journal is not None:
            row = {"table": table, "key": key.hex(), "value": before.hex()}
            self._journal.write(json.dumps(row) + "\n")
        self.count += 1
        if len(self.named) < MAX_NAMED:
            self.named.append(sentence)

    def keys(self, table: str) -> Iterator[bytes]:
        """A table's keys as they are now, whatever is changed meanwhile.

        :raises lmdb.Error: when they are not in order: they would go round in a circle.
        """
        cursor = self.txn.cursor(db=getattr(self.tables, table))
        alive = cursor.first()
        while alive:
            key = cursor.key()
            yield key
            alive = cursor.set_range(key + b"\0")
            if alive and cursor.key() <= key:
                raise lmdb.Error(f"the keys of {table} are not in order")


def moment(ms: int | bytes) -> str:
    """A time as people read it, and as the number that it is where it is none."""
    number = int.from_bytes(ms) if isinstance(ms, bytes) else ms
    try:
        return datetime.fromtimestamp(number / 1_000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(number)


def timed(timer: bytes) -> str:
    """The sentence that gives a message its timer."""
    due_ms, _, sequence, _ = split_timer_key(timer)
    return f"message {sequence}: is to fire at {moment(due_ms)}"


def text(name: bytes) -> str:
    """A name as people read it."""
    return name.decode(errors="backslashreplace")
