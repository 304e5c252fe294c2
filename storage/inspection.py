"""Checks a data folder that no gateway serves from, and repairs it.

Repairs are made in a transaction, and their result is checked before anything is committed. So the repairs that a check
reports are exactly those that a repair makes.
"""

from __future__ import annotations

import os
import shutil
import struct
from errno import EEXIST
from pathlib import Path
from typing import IO, Final, NamedTuple

import lmdb

from storage.check import Progress, View, check
from storage.copies import copy_files, copy_open, data_file, new_data_file
from storage.disk import OF_OWNER, free_bytes, sync
from storage.environment import ROOM_FACTOR, Environment
from storage.errors import RestartNeededError, StorageError, way_out
from storage.evidence import RecordReader
from storage.inbox import recover
from storage.inbox_copy import has_copy, is_copy_of
from storage.keys import INBOX_COPY
from storage.meta_pages import DATA_FILE, newest_state
from storage.pages import find_wrong_page
from storage.rebuilding import Readable, find_losses, rebuild
from storage.redo_log import LOG_FILES
from storage.repairs import make_repairs
from storage.shapes import find_misshapen, find_unordered

_REPAIR_ROOM = 64 << 20
"""Bytes that repairs may need even when the file is small."""

_ANEW: Final = (
    "data.mdb is written anew with the rows that can be read, and what they contradict is repaired"
)
"""The repair of a file with wrong pages."""

_REPAIRED: Final = ".repair"
"""The folder beside the data file in which such a repair makes the new file."""

_NO_ROOM: Final = (lmdb.DiskError, lmdb.MapFullError)
"""The errors of LMDB's that do not come from its file's pages."""

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
    """A data folder that gateways cannot open while this is open. The redo log of a gateway that died is applied first,
    unless pages are wrong: LMDB could crash, or write to pages that are in use.

    :param now_ms: the current time, epoch ms.
    :raises DataFolderError: when a gateway serves from the folder, or it cannot be opened.
    """

    def __init__(self, data: Path, reader: RecordReader, now_ms: int) -> None:
        self._reader = reader
        self._now_ms = now_ms
        self._environment = Environment(data)
        # What can be read where pages are wrong.
        self._readable: Readable | None = None
        self._is_committed = False

    @property
    def log_trouble(self) -> str | None:
        """See `RedoLog.trouble`. It is known after `find`, and only the first to open the folder finds it."""
        return self._environment.log.trouble

    @property
    def upgraded(self) -> str | None:
        """See `Environment.upgraded`."""
        return self._environment.upgraded

    def find(self, progress: Progress | None = None) -> Findings:
        """Check all tables. If there are faults, find out what repairs would do. Nothing is changed.

        :raises StorageError: when the redo log cannot be applied.
        """
        self._readable = None
        wrong = self._wrong_page(progress)
        if wrong is not None:
            return self._find_losses([wrong], progress)
        self._environment.catch_up(past_gap=True)
        try:
            with self._environment.lmdb.begin() as txn:
                faults = self._misshapen(txn, progress) or self._check(txn, progress)
        except lmdb.Error as error:
            faults = [f"LMDB cannot read its file: {error}{way_out(error)}"]
        if not faults:
            return Findings([], [], 0, [])
        try:
            return self._repair(faults, progress, None)
        except StorageError as error:
            if isinstance(error.__cause__, lmdb.Error) and not isinstance(
                error.__cause__, _NO_ROOM
            ):
                # A page may be what it was before, and have rows that its table has elsewhere.
                return self._find_losses(faults, progress)
            return Findings(faults, [], 0, [*faults, str(error)])

    def check_room(self, copy: Path | None) -> None:
        """Check that the disk has room for the repair that `find` has announced.

        :param copy: the folder for `copy`; None for none.
        :raises StorageError: when it has not.
        """
        if self._readable is None:
            return
        file = data_file(self._environment.path).resolve()
        needed, free = self._readable.size, free_bytes(file)
        if copy is not None:
            disk = next(one for one in (copy, *copy.absolute().parents) if one.exists())
            if disk.stat().st_dev == file.stat().st_dev:
                needed += file.stat().st_size
        if free < needed:
            raise StorageError(
                f"the repair needs {needed:,} bytes beside {file}, and the disk has {free:,} free"
            )

    def copy(self, target: Path) -> int:
        """Copy the folder as it is to a new one: see `back_up`. Free pages are left out, unless pages are wrong."""
        if self._readable is not None:
            return copy_files(self._environment.path, target)
        return copy_open(self._environment.lmdb, target, OF_OWNER)

    def repair(self, journal: Path, progress: Progress | None = None) -> Findings:
        """Repair the folder. If pages are wrong, this is the last call but `close`.

        :param journal: a new file for the old values of rows that are removed or changed. It is on disk before the
            repairs are, and gets this name once they are made: until then the name ends in `.unfinished`.
        :returns: what was done, and which faults are left; `faults` is empty.
        :raises StorageError: when the repairs cannot be stored. Then nothing is changed, and the journal is deleted.
        :raises RestartNeededError: when the repairs are committed, but the disk may not have them.
        """
        unfinished = journal.with_name(f"{journal.name}.unfinished")
        try:
            if journal.exists():
                raise FileExistsError(EEXIST, os.strerror(EEXIST))
            with unfinished.open("x") as file:
                try:
                    if self._readable is not None:
                        done = self._write_anew(self._readable, progress, file)
                    else:
                        done = self._repair([], progress, file)
                except BaseException:
                    # Once the repairs are committed, the next start shows whether the disk has them.
                    if not self._is_committed:
                        unfinished.unlink()
                    raise
        except OSError as error:
            raise StorageError(f"{journal} could not be written: {error.strerror}") from error
        try:
            unfinished.rename(journal)
        except OSError as error:
            raise RestartNeededError(
                f"the repairs are made, but {unfinished} could not be renamed: {error.strerror}"
            ) from error
        return done

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
                    self._is_committed = True
                    environment.durable.hold()
            finally:
                # After a commit there is nothing to abort.
                txn.abort()
        except (lmdb.Error, ValueError, OverflowError, struct.error) as error:
            raise StorageError(f"it cannot be repaired: {error}") from error
        return Findings(faults, made.named, made.count, left)

    def _find_losses(self, faults: list[str], progress: Progress | None) -> Findings:
        """Find out what can be read although pages are wrong.

        :param faults: what has been found so far.
        """
        if progress is not None:
            progress("pages, for what can be read", self._environment.lmdb.info()["last_pgno"] + 1)
        try:
            self._readable = find_losses(self._environment.path / DATA_FILE)
        except ValueError as error:
            faults = [*faults[:-1], f"{faults[-1]}: {error}: restore a backup"]
            return Findings(faults, [], 0, faults)
        return Findings([*faults, *self._readable.losses], [_ANEW], 1, [])

    def _write_anew(
        self, readable: Readable, progress: Progress | None, journal: IO[str]
    ) -> Findings:
        """Repair a folder with wrong pages. Nothing is changed until the new file, repaired, replaces the old one."""
        data = self._environment.path
        self.check_room(None)
        try:
            with new_data_file(data, _REPAIRED) as folder:
                if progress is not None:
                    progress("rows, which are written to a new file", readable.rows)
                rebuild(data / DATA_FILE, folder, self._needs_settings)
                for name in LOG_FILES:
                    shutil.copyfile(data / name, folder / name)
                inspection = Inspection(folder, self._reader, self._now_ms)
                try:
                    inspection._environment.catch_up(past_gap=True)
                    done = inspection._repair([], progress, journal)
                finally:
                    inspection.close()
        except (OSError, lmdb.Error, RestartNeededError, ValueError) as error:
            raise StorageError(f"{data / DATA_FILE} could not be written anew: {error}") from error
        trouble = inspection.log_trouble
        named = [_ANEW, *([trouble] if trouble is not None else []), *done.repairs]
        return Findings([], named, done.made + 1, done.left)

    def _needs_settings(self, table: str, name: bytes) -> bool:
        return not self._reader.is_readable(table, name, b"")

    def _wrong_page(self, progress: Progress | None) -> str | None:
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
