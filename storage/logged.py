"""LMDB's write transaction, which stays open over many batches, and the redo log that makes each batch durable.

A commit of LMDB writes every page that it touched, with the pages above it, and syncs twice. So a batch only changes
the transaction and appends its rows to the log. From time to time a checkpoint commits the transaction, and the log
begins anew. All reads in this process go through the transaction. A crash, or a batch that is refused, loses the open
transaction; its stored batches are then applied again from the log.
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
"""Rows after which a checkpoint is due, some 2 ms of writing."""

MOST_ROWS: Final = 40_000
"""Rows after which a checkpoint is due even while the disk is busy with the previous one. It then blocks until the disk
is done. Each row may be on a page of its own, which the transaction keeps in memory until the checkpoint."""

CHECKPOINT_SECONDS: Final = 1.0
"""Seconds from the first batch after a checkpoint to the next checkpoint. Other processes see the state of the last
checkpoint."""

EARLY_SECONDS: Final = 0.25
EARLY_BYTES: Final = 1 << 17
"""Without `sync`, a checkpoint is due after `EARLY_SECONDS` already if the log has `EARLY_BYTES`. It puts the committed
batches on disk without a sync of the log, which would be more to write."""

RETRY_SECONDS: Final = 5.0
"""Seconds until a failed checkpoint is tried again: a failure means that all batches must be applied again."""


class LoggedTransaction:
    """The open transaction, with the rows that the batch has changed so far.

    :raises StorageError: when LMDB has no room for the changes in the log.
    """

    get: Callable[..., bytes | None]
    """See `reader.Reader`."""
    cursor: Callable[..., lmdb.Cursor]
    """See `Reader`. Changes through a cursor are not logged: use `delete_at`."""
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
        if self._log.needs_checkpoint:
            # The records behind a gap have the same stamp: they would be valid again as soon as a new record ended
            # where they begin. When both files of the log are needed, there is none for new records. And without a
            # stamp, new records would be lost.
            try:
                self.checkpoint()
                environment.durable.wait()
            except (lmdb.Error, RestartNeededError) as error:
                raise StorageError(f"a new redo log cannot be started: {error}") from error

    # -- changes

    def put(self, key: bytes, value: bytes, *, db: lmdb._Database) -> bool:
        """Put a row, replacing the one with its key. Always True, as LMDB returns it."""
        self._changed[db].append((key, value))
        return self._txn.put(key, value, db=db)

    def put_all(
        self, rows: list[tuple[bytes, bytes]], *, db: lmdb._Database, append: bool = False
    ) -> None:
        """Put rows.

        :param append: the rows belong behind all others, in their order.
        :raises StorageError: when they do not.
        """
        self._changed[db].extend(rows)
        _, added = self._txn.cursor(db=db).putmulti(rows, append=append)
        if added != len(rows):
            # LMDB reports this only by the count, and a missing row would be a lost message.
            raise StorageError(f"{len(rows) - added} rows of a batch were not in order")

    def delete(self, key: bytes, *, db: lmdb._Database) -> bool:
        """Remove a row. Return False when there is none."""
        found = self._txn.delete(key, db=db)
        if found:
            self._changed[db].append((key, None))
        return found

    def pop(self, key: bytes, *, db: lmdb._Database) -> bytes | None:
        """Remove a row and return its value, or None when there is none."""
        value = self._txn.pop(key, db=db)
        if value is not None:
            self._changed[db].append((key, None))
        return value

    def delete_at(self, cursor: lmdb.Cursor, *, db: lmdb._Database) -> None:
        """Remove the row at a cursor, which moves on to the next one."""
        self._changed[db].append((cursor.key(), None))
        cursor.delete()

    # -- batches

    @property
    def has_changes(self) -> bool:
        """Whether the batch has changed anything."""
        return bool(self._changed)

    def reserve(self, size: int) -> None:
        """Make room in LMDB's map for a batch of this many bytes.

        :raises StorageError: when that fails.
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
        """Make the batch durable.

        :raises lmdb.Error: when neither the log nor LMDB can be written. Nothing of the batch is stored, and
            `roll_back` is needed.
        :raises RestartNeededError: when the disk failed to write a checkpoint: likewise.
        :raises StorageError: when the folder is away: likewise.
        """
        if self._environment.is_away:
            # Without the folder's path: the text is sent to clients.
            raise StorageError("the data folder was moved or deleted")
        if self._environment.durable.has_failed:
            # LMDB's file may contain a batch that was refused because of that.
            self._environment.durable.wait()
        changed = {self._names[table]: rows for table, rows in self._changed.items()}
        if not changed:
            return
        count = sum(map(len, changed.values()))
        try:
            is_logged = self._log.append(changed)
            self._log.fails = False
        except OSError as error:
            is_logged = False
            self._log.fails, self._log.failure = True, error
            self._log.failures += 1
        if not is_logged:
            self.checkpoint()
            return
        if not self._rows:
            self._since = monotonic()
        self._rows += count
        self._changed = defaultdict(list)

    def roll_back(self) -> None:
        """Undo the changes of the batch.

        :raises StorageError: when the stored state cannot be read again. The next read or change tries once more.
        """
        self._txn.abort()
        self._begin()

    def reopen(self) -> None:
        """Begin a new transaction if the last attempt failed, or if LMDB blocks the open one because somebody read a
        damaged page. Other requests must not be refused for that.

        :raises StorageError: when that fails.
        """
        if self._is_lost or (not self._changed and self._is_over()):
            self.roll_back()

    def _is_over(self) -> bool:
        try:
            self._txn.cursor(db=self._environment.tables.meta)
        except lmdb.BadTxnError:
            return True
        return False

    # -- checkpoints

    @property
    def is_due(self) -> bool:
        """Whether it is time for a checkpoint."""
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
        """Commit everything to LMDB, with the changes of the batch so far.

        A thread syncs it to disk. Until that is done, both files of the log are needed, and the next checkpoint waits.
        If the log does not have the batch, this call waits for the sync.

        :raises lmdb.Error: when LMDB fails: then `roll_back` is needed.
        :raises RestartNeededError: when the disk failed to write this checkpoint or the previous one.
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
        # Everything is stored, the batch too. If this fails, the next read or change tries again.
        with suppress(StorageError):
            self._begin()

    def close(self) -> None:
        """End the transaction; an open batch is dropped."""
        self._txn.abort()

    def _begin(self) -> None:
        """Begin a transaction at the last checkpoint, and apply the log to it."""
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
                # As long as this one is open, LMDB begins no other.
                txn.abort()
                raise
        except lmdb.MapFullError:
            # The map had room for it once: a process that died had enlarged it.
            environment.was_full(MAX_LOG)
            environment.make_room(0)
            self._begin()
            return
        except lmdb.PanicError as error:
            # The meta page, which names the last state of the file, could not be written.
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
