"""LMDB's write transaction, which stays open over many batches, and the redo log that makes each of them last.

A commit of LMDB writes every page that it touched, and those above it, and syncs twice. So a batch only changes the
transaction and appends its rows to the log; every now and then a checkpoint commits the transaction, and the log
begins anew. Whoever reads in this process reads through the transaction. What is lost with it, by a crash or by a
batch that is refused, is done again from the log.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Final

import lmdb

from storage.environment import Environment
from storage.errors import RestartNeededError, StorageError, StorageFullError, way_out
from storage.redo_log import MAX_LOG, Row, new_stamp

CHECKPOINT_BYTES: Final = 12 << 20
"""Bytes of the log after which a checkpoint is due."""

CHECKPOINT_ROWS: Final = 12_000
"""Rows after which one is due, some 2 ms of writing."""

MOST_ROWS: Final = 40_000
"""Rows after which it waits for the disk, which may not have the one before yet: each row may be on a page of its own,
which the transaction holds in memory until then."""

CHECKPOINT_SECONDS: Final = 1.0
"""Time after the first batch since the last one. Other processes see what the last checkpoint left."""

EARLY_SECONDS: Final = 0.25
EARLY_BYTES: Final = 1 << 17
"""Without `sync`, the time after which one is due that has so many bytes of the log before it: the disk then holds what
was committed without holding the log, which would be more to write."""

RETRY_SECONDS: Final = 5.0
"""Time until a checkpoint that failed is tried again: it costs doing all batches again."""


class LoggedTransaction:
    """The open transaction, with the rows that the batch has changed so far.

    :raises StorageError: when LMDB has no room for what the log has.
    """

    get: Callable[..., bytes | None]
    """See `reader.Reader`."""
    cursor: Callable[..., lmdb.Cursor]
    """See `Reader`. What a cursor changes is not logged: see `delete_at`."""
    stat: Callable[..., lmdb._Stat]
    """See `Reader`."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._log = environment.log
        tables = environment.tables
        self._names = dict(zip(tables, tables._fields, strict=True))
        self._changed: defaultdict[lmdb._Database, list[Row]]
        self._not_before = 0.0
        self._begin()
        if self._log.has_gap or self._log.has_two:
            # What follows a gap has the same stamp: it would come back as soon as a new record ends where it begins.
            # And where both files of the log are needed there is none for what comes.
            try:
                self.checkpoint()
                environment.durable.wait()
            except (lmdb.Error, RestartNeededError) as error:
                self.close()
                raise StorageError(f"the redo log cannot be begun anew: {error}") from error

    # -- changes

    def put(self, key: bytes, value: bytes, *, db: lmdb._Database) -> bool:
        """Put a row, in place of the one with its key; always True, as LMDB has it."""
        self._changed[db].append((key, value))
        return self._txn.put(key, value, db=db)

    def put_all(
        self, rows: list[tuple[bytes, bytes]], *, db: lmdb._Database, append: bool = False
    ) -> None:
        """Put rows.

        :param append: they are behind all others, in their order.
        :raises StorageError: when they are not.
        """
        self._changed[db].extend(rows)
        _, added = self._txn.cursor(db=db).putmulti(rows, append=append)
        if added != len(rows):
            # LMDB only says so by the count, and a row that is not there would be a lost message.
            raise StorageError(f"{len(rows) - added} rows of a batch were not in order")

    def delete(self, key: bytes, *, db: lmdb._Database) -> bool:
        """Remove a row; False when there is none."""
        found = self._txn.delete(key, db=db)
        if found:
            self._changed[db].append((key, None))
        return found

    def pop(self, key: bytes, *, db: lmdb._Database) -> bytes | None:
        """Remove a row: its value, or None when there is none."""
        value = self._txn.pop(key, db=db)
        if value is not None:
            self._changed[db].append((key, None))
        return value

    def delete_at(self, cursor: lmdb.Cursor, *, db: lmdb._Database) -> None:
        """Remove the row that a cursor stands on, which goes on to the next one."""
        self._changed[db].append((cursor.key(), None))
        cursor.delete()

    # -- batches

    @property
    def has_changes(self) -> bool:
        """Whether the batch has changed anything."""
        return bool(self._changed)

    def reserve(self, size: int) -> None:
        """Let LMDB's map have room for a batch of so many bytes.

        :raises StorageError: when it cannot.
        """
        self.reopen()
        if self._log.size + size > self._room:
            if self._log.size:
                self.checkpoint()
            self._txn.abort()
            try:
                self._environment.make_room(size)
            finally:
                self._begin()

    def commit(self) -> None:
        """Have the batch last.

        :raises lmdb.Error: when neither the log nor LMDB can be written: nothing of it is stored, and `roll_back` is
            needed.
        :raises RestartNeededError: when the disk did not take a checkpoint: likewise.
        :raises StorageError: when the folder is away: likewise.
        """
        if self._environment.is_away:
            # Not with its path: whoever waits for the batch is told, over the wire.
            raise StorageError("the data folder was moved or deleted")
        if self._environment.durable.has_failed:
            # LMDB's file may have a batch that was refused for that.
            self._environment.durable.wait()
        changed = {self._names[table]: rows for table, rows in self._changed.items()}
        if not changed:
            return
        count = sum(map(len, changed.values()))
        try:
            is_logged = self._log.append(changed)
        except OSError:
            is_logged = False
        if not is_logged:
            self.checkpoint()
            return
        if not self._rows:
            self._since = monotonic()
        self._rows += count
        self._changed = defaultdict(list)

    def roll_back(self) -> None:
        """Take back what the batch has changed.

        :raises StorageError: when what was stored cannot be read again; whoever reads or changes next tries once more.
        """
        self._txn.abort()
        self._begin()

    def reopen(self) -> None:
        """Begin a transaction where that failed before, or where LMDB takes nothing more of the one that is open, as
        somebody has met a page that it cannot read: nobody else is to be refused for that.

        :raises StorageError: when it fails.
        """
        if self._is_lost or (not self._changed and self._is_over()):
            self.roll_back()

    def _is_over(self) -> bool:
        try:
            self._txn.stat()
        except lmdb.BadTxnError:
            return True
        return False

    # -- checkpoints

    @property
    def is_due(self) -> bool:
        """Whether a checkpoint would be well now."""
        durable = self._environment.durable
        if durable.has_failed:
            return True
        if not self._rows:
            return False
        now, size = monotonic(), self._log.size
        is_early = not self._log.syncs and size >= EARLY_BYTES
        is_time = now >= self._not_before and (
            size >= CHECKPOINT_BYTES
            or self._rows >= CHECKPOINT_ROWS
            or now - self._since >= (EARLY_SECONDS if is_early else CHECKPOINT_SECONDS)
        )
        return is_time and (not durable.is_busy or self._rows >= MOST_ROWS)

    def checkpoint(self) -> None:
        """Have LMDB hold everything, with what the batch has changed so far.

        The disk is left to a thread: until it holds that too, both files of the log are needed, and the next checkpoint
        waits. A batch that the log does not have waits for it here.

        :raises lmdb.Error: when it cannot: then `roll_back` is needed.
        :raises RestartNeededError: when the disk did not take this checkpoint or the one before it.
        """
        durable = self._environment.durable
        durable.wait()
        is_logged = not self._changed
        stamp = new_stamp()
        self._not_before = monotonic() + RETRY_SECONDS
        self._is_lost = True
        self._environment.mark(self._txn, stamp)
        with self._environment.writing():
            self._txn.commit()
        self._not_before = 0.0
        self._log.restart(stamp)
        durable.begin()
        if not is_logged:
            durable.wait()
        # All is stored, the batch too: where this fails, whoever reads or changes next tries again.
        with suppress(StorageError):
            self._begin()

    def close(self) -> None:
        """End the transaction; a batch that is open is forgotten."""
        self._txn.abort()

    def _begin(self) -> None:
        """Begin a transaction where the last checkpoint ended, and do again what the log has."""
        self._is_lost = True
        self._changed = defaultdict(list)
        environment = self._environment
        with suppress(StorageFullError):
            environment.make_room(0)
        try:
            txn = environment.lmdb.begin(write=True)
            try:
                self._rows = environment.redo(txn)
            except BaseException:
                # No other one begins while it is open.
                txn.abort()
                raise
        except lmdb.MapFullError:
            # A map that had room for it once; a process that died had made it larger.
            environment.was_full(MAX_LOG)
            environment.make_room(0)
            self._begin()
            return
        except lmdb.PanicError as error:
            # The page that says which state of the file is the last could not be written.
            raise RestartNeededError(f"LMDB has given up: {error}") from error
        except (lmdb.Error, OSError, MemoryError) as error:
            raise StorageError(
                f"what was stored cannot be read again: {error}{way_out(error)}"
            ) from error
        self._txn = txn
        self.get, self.cursor, self.stat = txn.get, txn.cursor, txn.stat
        self._room = environment.room()
        self._since = monotonic()
        self._is_lost = False
