"""Checks a data folder that no gateway serves from, and repairs it.

Repairs are made in a transaction, and their result is checked before anything is committed. So the repairs that a check
reports are exactly those that a repair makes.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import IO, NamedTuple

import lmdb

from storage.check import Progress, View, check
from storage.copies import copy_open
from storage.disk import OF_OWNER, sync
from storage.environment import ROOM_FACTOR, Environment
from storage.errors import RestartNeededError, StorageError, way_out
from storage.evidence import RecordReader
from storage.inbox import recover
from storage.inbox_copy import has_copy, is_copy_of
from storage.keys import INBOX_COPY
from storage.meta_pages import DATA_FILE, newest_state
from storage.pages import find_wrong_page
from storage.repairs import make_repairs
from storage.shapes import find_misshapen, find_unordered

_REPAIR_ROOM = 64 << 20
"""Bytes that repairs may need even when the file is small."""

_WITHOUT_REPAIR = "back it up to a new folder, or restore a backup and import what can be exported"
"""What is left to do where a page of LMDB's is wrong."""

_SETTINGS = "the settings cannot be read, and the default ones hold: set them again"
_SET_AGAIN = {
    "topics": _SETTINGS,
    "groups": _SETTINGS,
    "recurring": "its definition cannot be read, and it does not fire: set it again",
}
"""The fault of a row whose value cannot be read, by the tables with values that only the caller can read."""


class Findings(NamedTuple):
    """`faults` are the faults of a folder, one sentence each. `repairs` are the first repairs, as sentences; `made`
    counts all of them. `left` are the faults after the repairs."""

    faults: list[str]
    repairs: list[str]
    made: int
    left: list[str]


class Inspection:
    """A data folder that gateways cannot open while this is open. The redo log of a gateway that died is applied first.

    :param now_ms: the current time, epoch ms.
    :raises DataFolderError: when a gateway serves from the folder, or it cannot be opened.
    """

    def __init__(self, data: Path, reader: RecordReader, now_ms: int) -> None:
        self._reader = reader
        self._now_ms = now_ms
        self._environment = Environment(data)
        try:
            self._environment.catch_up(past_gap=True)
        except StorageError:
            self._environment.close()
            raise

    @property
    def log_trouble(self) -> str | None:
        """See `RedoLog.trouble`. Only the first to open the folder finds it."""
        return self._environment.log.trouble

    @property
    def upgraded(self) -> str | None:
        """See `Environment.upgraded`."""
        return self._environment.upgraded

    def find(self, progress: Progress | None = None) -> Findings:
        """Check all tables. If there are faults, find out what repairs would do. Nothing is changed."""
        try:
            with self._environment.lmdb.begin() as txn:
                wrong = self._wrong_page(txn, progress)
                if wrong is not None:
                    # LMDB could crash, and a repair would write to pages that are in use.
                    fault = f"{wrong}: {_WITHOUT_REPAIR}"
                    return Findings([fault], [], 0, [fault])
                faults = self._misshapen(txn, progress) or self._check(txn, progress)
        except lmdb.Error as error:
            faults = [f"LMDB cannot read its file: {error}{way_out(error)}"]
        if not faults:
            return Findings([], [], 0, [])
        try:
            return self._repair(faults, progress, None)
        except StorageError as error:
            return Findings(faults, [], 0, [*faults, str(error)])

    def copy(self, target: Path) -> int:
        """Copy the folder as it is to a new one, without free pages: see `back_up`."""
        return copy_open(self._environment.lmdb, target, OF_OWNER)

    def repair(self, journal: Path, progress: Progress | None = None) -> Findings:
        """Repair the folder.

        :param journal: a new file for the old values of rows that are removed or changed. It is on disk before the
            repairs are.
        :returns: what was done, and which faults are left; `faults` is empty.
        :raises StorageError: when the repairs cannot be stored. Then nothing is changed, and the journal is deleted.
        :raises RestartNeededError: when the repairs are committed, but the disk may not have them.
        """
        try:
            with journal.open("x") as file:
                try:
                    return self._repair([], progress, file)
                except RestartNeededError:
                    # The repairs are committed. The next start shows whether the disk has them.
                    raise
                except BaseException:
                    journal.unlink()
                    raise
        except OSError as error:
            raise StorageError(f"{journal} could not be written: {error.strerror}") from error

    def close(self) -> None:
        """Release the folder."""
        self._environment.close()

    def _repair(
        self, faults: list[str], progress: Progress | None, journal: IO[str] | None
    ) -> Findings:
        environment = self._environment
        environment.make_room(environment.size // ROOM_FACTOR + _REPAIR_ROOM)
        try:
            txn = environment.lmdb.begin(write=True)
            try:
                made = make_repairs(txn, environment.tables, self._reader, self._now_ms, journal)
                # The copy of the inbox is of before: see `Environment.mark`.
                txn.delete(INBOX_COPY, db=environment.tables.meta)
                left = self._misshapen(txn, progress) or self._check(txn, progress)
                if journal is not None:
                    journal.flush()
                    os.fsync(journal.fileno())
                    # A file's content on disk is useless as long as its name is not on disk.
                    sync(Path(journal.name).parent)
                    with environment.writing():
                        txn.commit()
                    environment.durable.hold()
            finally:
                # After a commit there is nothing to abort.
                txn.abort()
        except (lmdb.Error, ValueError, OverflowError, struct.error) as error:
            raise StorageError(f"it cannot be repaired: {error}") from error
        return Findings(faults, made.named, made.count, left)

    def _wrong_page(self, txn: lmdb.Transaction, progress: Progress | None) -> str | None:
        environment = self._environment
        if progress is not None:
            progress("pages", environment.lmdb.info()["last_pgno"] + 1)
        with (environment.path / DATA_FILE).open("rb") as file:
            return find_wrong_page(file.fileno(), newest_state(file.fileno()))

    def _misshapen(self, txn: lmdb.Transaction, progress: Progress | None) -> list[str]:
        tables = self._environment.tables
        if progress is not None:
            progress("rows", sum(txn.stat(table)["entries"] for table in tables))
        unordered = [f"{table}: its keys are not in order" for table in find_unordered(txn, tables)]
        return unordered + [
            f"{table} {key!r}: its row cannot be read"
            for table, key, _ in find_misshapen(txn, tables)
        ]

    def _to_be_set_again(self, txn: lmdb.Transaction) -> list[str]:
        """Return the faults of settings and definitions, which only an operator can restore."""
        return [
            f"{name} {key!r}: {fault}"
            for name, fault in _SET_AGAIN.items()
            for key, value in txn.cursor(db=getattr(self._environment.tables, name))
            if not self._reader.is_readable(name, key, value)
        ]

    def _check(self, txn: lmdb.Transaction, progress: Progress | None) -> list[str]:
        tables = self._environment.tables
        inbox = list(recover(txn, tables, self._reader.terms_of))
        faults = check(View(txn, tables, self._reader.terms_of, inbox), progress)
        faults += self._to_be_set_again(txn)
        if has_copy(txn, tables) and not is_copy_of(txn, tables, inbox):
            faults.append("the timers that the last stop saved do not match the messages")
        return faults
