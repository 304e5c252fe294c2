"""Changes single rows of a damaged folder, lists each change, and writes the old row to a journal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import IO, Final

import lmdb

from storage.environment import Tables
from storage.keys import MAX_KEY, split_timer_key

MAX_NAMED: Final = 1_000
"""Repairs that are listed one by one; any more are only counted."""


class Changes:
    """Changes rows in a transaction, which the caller commits or not.

    :param journal: takes one line of JSON for each row that is removed or changed: its table, and its old key and value
        in hex.
    """

    def __init__(self, txn: lmdb.Transaction, tables: Tables, journal: IO[str] | None) -> None:
        self.txn = txn
        self.tables = tables
        self._journal = journal
        self.named: list[str] = []
        """The first `MAX_NAMED` changes, as sentences."""
        self.count = 0
        """How many changes there are."""

    def get(self, table: str, key: bytes) -> bytes | None:
        """Return a row's current value."""
        return self.txn.get(key, db=getattr(self.tables, table))

    def make(self, table: str, key: bytes, value: bytes | None, sentence: str) -> None:
        """Put a row, or remove it where the value is None."""
        if self._change(table, key, value):
            self._name(sentence)

    def remove_all(self, table: str, keys: Iterable[bytes], sentence: str) -> None:
        """Remove rows that count as one change."""
        for key in keys:
            self._change(table, key, None)
        self._name(sentence)

    def put_in_order(self, table: str) -> None:
        """Put rows that no search finds, as their keys are damaged, where they belong. A row goes if another is there
        already.

        :raises lmdb.Error: when a row comes twice, as if its page has the place of another one, whose rows are lost.
        """
        database: lmdb._Database = getattr(self.tables, table)
        displaced: list[tuple[bytes, bytes]] = []
        kept: set[bytes] = set()
        behind = b"\xff" * (MAX_KEY + 1)
        cursor = self.txn.cursor(db=database)
        # Backwards: a cursor whose row is deleted goes on to the next one.
        alive = cursor.last()
        while alive:
            key, value = cursor.key(), cursor.value()
            if key in kept:
                raise lmdb.Error(f"the keys of {table} are not in order")
            is_first = not cursor.prev()
            before = b"" if is_first else cursor.key()
            cursor.first() if is_first else cursor.next()
            # Of two rows that are not in order, the one is wrong without which the others are.
            is_ordered = key < behind and (before < key or before >= behind)
            if is_ordered and self.txn.get(key, db=database) == value:
                behind = key
                kept.add(key)
            else:
                displaced.append((key, value))
                cursor.delete()
            alive = cursor.prev()
        for key, value in displaced:
            if self.txn.get(key, db=database) is None:
                self.txn.put(key, value, db=database)
                self._name(f"{table} {key!r}: is put where it is looked for")
            else:
                self._note(table, key, value)
                self._name(f"{table} {key!r}: a row that nothing leads to goes")

    def _change(self, table: str, key: bytes, value: bytes | None) -> bool:
        """Change a row. Return False when it is like this already."""
        database: lmdb._Database = getattr(self.tables, table)
        before = self.txn.get(key, db=database)
        if before == value:
            return False
        if value is None:
            self.txn.delete(key, db=database)
        else:
            self.txn.put(key, value, db=database)
        if before is not None:
            self._note(table, key, before)
        return True

    def _note(self, table: str, key: bytes, value: bytes) -> None:
        if self._journal is not None:
            row = {"table": table, "key": key.hex(), "value": value.hex()}
            self._journal.write(json.dumps(row) + "\n")

    def _name(self, sentence: str) -> None:
        self.count += 1
        if len(self.named) < MAX_NAMED:
            self.named.append(sentence)

    def keys(self, table: str) -> Iterator[bytes]:
        """Return a table's current keys, even while rows are changed.

        :raises lmdb.Error: when the keys are not in order: the loop would never end.
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
    """Format a time for people; one that is no valid time is shown as its number."""
    number = int.from_bytes(ms) if isinstance(ms, bytes) else ms
    try:
        return datetime.fromtimestamp(number / 1_000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(number)


def timed(timer: bytes) -> str:
    """Return the sentence that reports a timer given to a message."""
    due_ms, _, sequence, _ = split_timer_key(timer)
    return f"message {sequence}: is to fire at {moment(due_ms)}"


def text(name: bytes) -> str:
    """Format a name for people."""
    return name.decode(errors="backslashreplace")
