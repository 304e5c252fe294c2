"""A data folder that a test opens, closes, lets crash and opens again."""

from __future__ import annotations

import lzma
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from storage import Store, find_faults
from storage.durable import NOTE_FILE
from storage.inbox import INBOX_SIZE, recover
from storage.redo_log import LOG_FILES
from tests.scratch import scratch_folder
from tests.storage.sample import terms_of

FORMATS = Path(__file__).with_name("formats")
"""Data folders as earlier versions left them (test_upgrades.py)."""


class Folder:
    """One data folder, with at most one open store.

    No test here outlives the machine, so by default a commit does not wait for the disk.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store: Store | None = None

    def open(
        self, *, sync: bool = False, map_size: int = 1 << 28, inbox_size: int = INBOX_SIZE
    ) -> Store:
        """Open the folder; an open store is closed first.

        :param inbox_size: with 0, every commit puts its timers into `timers`.
        """
        self.close()
        self.store = Store(self.path, terms_of, sync=sync, map_size=map_size, inbox_size=inbox_size)
        return self.store

    def close(self) -> None:
        """Close the folder as the gateway does when it stops."""
        store, self.store = self.store, None
        if store is not None:
            store.close()

    def reopen_after_crash(self, *, inbox_size: int = INBOX_SIZE) -> Store:
        """Open the folder as it is after a process died before its commit."""
        store, self.store = self.store, None
        assert store is not None
        store.environment.close()
        return self.open(inbox_size=inbox_size)

    def damage(self, table: str, key: bytes, value: bytes | None) -> Store:
        """Open the folder with another value in a row, or without the row."""
        self.close()

        def how(txn: lmdb.Transaction, database: lmdb._Database) -> None:
            if value is None:
                txn.delete(key, db=database)
            else:
                txn.put(key, value, db=database)

        change_table(self.path, table, how)
        return self.open()

    def check(self) -> None:
        """Check that the folder is sound, also after it is opened again, and after a crash."""
        try:
            if self.store is not None:
                check(self.store)
            if self.path.exists():
                check(self.open())
        finally:
            self.close()


@contextmanager
def scratch_data() -> Iterator[Folder]:
    """A data folder for an example of a property, of which a test has many. It is checked at the end."""
    with scratch_folder() as place:
        folder = Folder(place / "data")
        yield folder
        folder.check()


def check(store: Store) -> None:
    """Check that all tables agree, and that a start after a crash would recover the timers in memory."""
    assert find_faults(store) == []
    txn = store.settled_reader()
    assert sorted(recover(txn, store.tables, terms_of)) == sorted(store.inbox.rows())


def change_table(
    data: Path, table: str, how: Callable[[lmdb.Transaction, lmdb._Database], object]
) -> None:
    """Change a table without the store's knowledge."""
    # Without the note, a start does not go back to the state noted there.
    (data / NOTE_FILE).unlink(missing_ok=True)
    with lmdb.open(str(data), max_dbs=32, map_size=1 << 30) as environment:
        database = environment.open_db(table.encode())
        with environment.begin(write=True) as txn:
            how(txn, database)


def damage_log(data: Path, text: bytes) -> None:
    """Change one byte of the redo log's record that contains a text, such as a message's id. Bodies are packed."""
    for name in LOG_FILES:
        content = bytearray((data / name).read_bytes())
        if text in content:
            content[content.index(text)] ^= 1
            (data / name).write_bytes(content)
            return
    raise ValueError(f"no record has {text!r}")


def clear_first_record(data: Path) -> None:
    """Make the first message of a folder unreadable."""

    def clear(txn: lmdb.Transaction, messages: lmdb._Database) -> None:
        cursor = txn.cursor(db=messages)
        assert cursor.first()
        txn.put(cursor.key(), b"\0" * len(cursor.value()), db=messages)

    change_table(data, "messages", clear)


def unpack(folder: Folder, version: int) -> None:
    """Unpack a folder of an earlier format into a test's folder."""
    folder.path.mkdir()
    names = {"mdb": "data.mdb", "log": "redo.log", "log-2": "redo-2.log", "durable": "durable"}
    for ending, name in names.items():
        packed = FORMATS / f"format-{version}.{ending}.xz"
        if packed.exists():
            (folder.path / name).write_bytes(lzma.decompress(packed.read_bytes()))
    if (folder.path / "durable").exists():
        (folder.path / "redo-2.log").touch()
