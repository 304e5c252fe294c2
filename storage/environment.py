"""Opens, creates or refuses a data folder, and grows LMDB's map before writes need it.

A folder holds `data.mdb` (LMDB), `durable` (which state of `data.mdb` is on disk), `redo.log` and `redo-2.log` (the
changes of the last batches), `lock.mdb` (LMDB's readers) and `tidegate.lock`. The serving process holds an exclusive
`flock` on `tidegate.lock` and on the folder itself. The kernel releases it when the process dies, however it dies.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from errno import EACCES, EDQUOT, EIO, ENOSPC, EROFS
from itertools import starmap
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import lmdb

from storage.disk import OF_OWNER, free_bytes, make_folder
from storage.durable import (
    NOTE_FILE,
    Durable,
    check_file,
    go_back,
    has_gone_back,
    transaction_ahead,
)
from storage.errors import (
    DAMAGE,
    DataFolderError,
    FolderBeingCopiedError,
    FolderInUseError,
    StorageError,
    StorageFullError,
    cannot_use,
)
from storage.keys import FORMAT, IDENTITY, INBOX_COPY, STAMP
from storage.meta_pages import DATA_FILE, META_PAGES, file_size
from storage.read_ahead import ReadAhead, Rows
from storage.reader import Reader
from storage.redo_log import LOG_FILES, MAX_LOG, RedoLog, has_records, new_stamp
from storage.upgrades import FORMAT_VERSION, format_of, upgrade

LOCK_FILE = "tidegate.lock"

STORED_FILES = (DATA_FILE, NOTE_FILE, *LOG_FILES)
"""The files that hold stored data."""

READERS_FILE = "lock.mdb"
"""The file in which LMDB registers the readers of a folder."""

FOLDER_FILES = (*STORED_FILES, LOCK_FILE, READERS_FILE)
"""All files that a store keeps in its folder."""

_READERS_ROOM = 1 << 16
"""Bytes. The file needs a page or two on disk."""

ROOM_FACTOR = 8
"""Pages that a batch may dirty, as a multiple of its bytes: every row of a small batch can touch a leaf page of its
own."""

_AT_ONCE = 2 << 20
"""Bytes. The kernel takes a write in pieces of up to that size, and refuses one for which the disk has no room. So
nearly as much may be free on a disk that is full."""

MAX_READERS = 64
"""Views of the file open at the same time, of all processes. A backup or an export needs one each; a gateway briefly
needs one when it starts and stops, and up to `read_ahead.THREADS` when it reads ahead."""


class Tables(NamedTuple):
    """The named databases of the environment; `keys` shows what each holds."""

    messages: lmdb._Database
    parts: lmdb._Database
    timers: lmdb._Database
    ids: lmdb._Database
    keys: lmdb._Database
    queues: lmdb._Database
    ends: lmdb._Database
    held: lmdb._Database
    hours: lmdb._Database
    totals: lmdb._Database
    paused: lmdb._Database
    waiting: lmdb._Database
    debounced: lmdb._Database
    aborted: lmdb._Database
    expired: lmdb._Database
    halves: lmdb._Database
    checks: lmdb._Database
    pops: lmdb._Database
    recurring: lmdb._Database
    recurrences: lmdb._Database
    planned: lmdb._Database
    offsets: lmdb._Database
    topics: lmdb._Database
    groups: lmdb._Database
    meta: lmdb._Database


class Environment:
    """An open data folder.

    :param path: the folder; made when it is missing.
    :param sync: whether a batch counts as stored only when the disk has it. Without it, a power cut can lose the last
        batches although they were answered; a killed process loses nothing.
    :param map_size: the initial size of LMDB's map, in bytes. The map doubles before it is full.
    :raises DataFolderError: when the folder cannot be used.
    """

    def __init__(self, path: Path, *, sync: bool = True, map_size: int = 1 << 30) -> None:
        self.path = path
        with ExitStack() as opened:
            opened.enter_context(lock_folder(path))
            try:
                check_file(path)
                if not has_room_to_lock(path):
                    raise OSError(os.strerror(ENOSPC))
                if (ahead := transaction_ahead(path)) is not None:
                    _refuse_readers(path, ahead)
                    go_back(path)
                map_size = max(map_size, file_size(path))
                with closing(_open(path, map_size)) as environment:
                    _refuse_readers_of_another(environment, path)
                    # Sync these changes before any others: a start could not go back to an empty file.
                    self.upgraded = _check_version(environment, path)
                    """That the folder was upgraded just now, for the operator: there is no way back. None if not."""
                    open_tables(environment)
                # Before the note, which says that the folder has a log.
                self.log = RedoLog(path, sync=sync)
                opened.callback(self.log.close)
                self.durable = Durable(path)
                opened.callback(self.durable.close)
                self.lmdb = _open(path, max(map_size, file_size(path)), sync=False)
                opened.callback(self.lmdb.close)
                self.tables = open_tables(self.lmdb, create=False)
                self.ahead = ReadAhead(self.lmdb)
                opened.callback(self.ahead.close)
                self.folder = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                """The open folder, wherever its path leads by now."""
                opened.callback(os.close, self.folder)
                # LMDB's file may be a link to another disk.
                place = (path / DATA_FILE).resolve().parent
                self._place = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
                opened.callback(os.close, self._place)
                self._files = [(path / name, (path / name).stat()) for name in STORED_FILES]
            except (lmdb.Error, MemoryError, OSError) as error:
                raise cannot_use("open", path, error) from error
            self._opened = opened.pop_all()
        self.is_away = False
        """Whether `look` found that the folder was moved or deleted. Nothing is stored from then on."""
        self.page_size: int = self.lmdb.stat()["psize"]
        """Bytes of a page of the file."""
        self._map_size = self.lmdb.info()["map_size"]
        self._lacking = 0

    @property
    def size(self) -> int:
        """Bytes of the file, free pages included."""
        return (self.lmdb.info()["last_pgno"] + 1) * self.page_size

    def make_room(self, batch_bytes: int) -> None:
        """Grow the map before a batch needs it. Call it only while no transaction is open.

        :raises StorageFullError: when the address space cannot hold a larger map.
        """
        needed = self.size + ROOM_FACTOR * batch_bytes + self._map_size // 8
        if self._lacking:
            needed = max(needed, self._map_size + ROOM_FACTOR * self._lacking)
        if needed <= self._map_size:
            return
        size = self._map_size
        while size < needed:
            size *= 2
        try:
            # LMDB releases its map before it requests the larger one, and cannot go on without either. So check first.
            mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0).close()
            self.lmdb.set_mapsize(size)
        except (OSError, OverflowError, MemoryError, lmdb.Error) as error:
            raise StorageFullError(f"LMDB's map cannot grow to {size} bytes: {error}") from error
        self._map_size = size
        self._lacking = 0

    def look(self) -> None:
        """Check that the folder still has the files that are open here. If not, writes would go to files that nobody
        can find, and that vanish with this process once they are deleted."""
        self.is_away = not all(starmap(_is_there, self._files))

    def unheld_seconds(self) -> float:
        """Return for how many seconds, at most, a commit without `sync` has not been on disk; 0 when the disk has
        everything."""
        held_at = max(self.durable.held_at, self.log.held_at)
        return monotonic() - held_at if self.log.written_at > held_at else 0.0

    def room(self) -> int:
        """Return how many bytes batches may add before the map must grow."""
        return (self._map_size - self._map_size // 8 - self.size) // ROOM_FACTOR

    def redo(self, txn: lmdb.Transaction) -> int:
        """Apply to a transaction the changes that the redo log has and LMDB does not.

        :returns: how many rows were changed.
        """
        count = 0
        for record in self.log.records(txn.get(STAMP, db=self.tables.meta) or b""):
            for name, rows in record.items():
                table = getattr(self.tables, name)
                self.ahead.touch(txn, Rows(table, [key for key, _ in rows]))
                cursor = txn.cursor(db=table)
                last = cursor.key() if cursor.last() else b""
                for key, value in rows:
                    if value is None:
                        txn.delete(key, db=table)
                    else:
                        # Otherwise LMDB leaves pages half empty behind rows that come in order.
                        txn.put(key, value, db=table, append=key > last)
                        last = max(last, key)
                count += len(rows)
        return count

    def mark(self, txn: lmdb.Transaction, stamp: bytes) -> None:
        """Note in a transaction that the redo log begins anew after it, with records of this stamp.

        The copy of the inbox becomes invalid, so it is deleted. Comparing transaction numbers would not do: a file that
        was compacted, or restored from a backup, counts from 1 again and reaches the same number once more.
        """
        txn.put(STAMP, stamp, db=self.tables.meta)
        txn.delete(INBOX_COPY, db=self.tables.meta)
        # Of a folder made by a version that gave none.
        _identify(txn, self.tables.meta)

    def _stamp(self) -> bytes:
        with self.view() as txn:
            return txn.get(STAMP, db=self.tables.meta) or b""

    def catch_up(self, *, past_gap: bool = False) -> None:
        """Apply the redo log of a process that died to LMDB.

        :param past_gap: whether to give up the records behind one that cannot be read.
        :raises StorageError: when the log cannot be applied, or has such a gap and `past_gap` is false.
        """
        try:
            if has_records(self.path, self._stamp()):
                self.make_room(MAX_LOG)
                with self.change() as txn:
                    self.redo(txn)
                    if self.log.has_gap and not past_gap:
                        raise StorageError(
                            f"the redo log of {self.path} has a record that cannot be read, and others behind it: "
                            "start the gateway or run 'tidegate fsck', which go on without them"
                        )
                    self.mark(txn, new_stamp())
        except (lmdb.Error, OSError) as error:
            raise StorageError(
                f"the redo log of {self.path} cannot be replayed: {error}"
            ) from error

    @contextmanager
    def change(self) -> Iterator[lmdb.Transaction]:
        """Run a transaction of LMDB's own, without the redo log. When the context ends, the changes are on disk. When
        it ends with an error, nothing is stored.

        :raises RestartNeededError: when the disk does not store it.
        """
        self.durable.wait()
        with self.writing(), self.lmdb.begin(write=True) as txn:
            yield txn
        self.durable.hold()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Translate the errors of LMDB's writes inside the context.

        :raises lmdb.DiskError: when the disk is full, or the user's quota is used up. When only a part of a write
            fitted, LMDB reports an input/output error instead.
        """
        try:
            yield
        except lmdb.Error as error:
            if str(error).endswith(os.strerror(EDQUOT)):
                raise lmdb.DiskError(os.strerror(EDQUOT)) from error
            if str(error).endswith(os.strerror(EIO)) and self.disk_free() < _AT_ONCE:
                raise lmdb.DiskError(os.strerror(ENOSPC)) from error
            raise

    def view(self) -> lmdb.Transaction:
        """Open a view of the last checkpoint. Close it soon: while it is open, LMDB cannot reuse freed pages.

        :raises StorageError: when `MAX_READERS` views are open.
        """
        try:
            return self.lmdb.begin()
        except lmdb.ReadersFullError:
            self.forget_dead_readers()
        try:
            return self.lmdb.begin()
        except lmdb.ReadersFullError as error:
            raise too_many_readers(self.path) from error

    def forget_dead_readers(self) -> int:
        """Free the pages and the reader slots of processes that died while they read the file.

        :returns: how many slots.
        """
        return self.lmdb.reader_check()

    def was_full(self, batch_bytes: int) -> None:
        """Note that a batch did not fit into the map. This happens when most of it arrived after its transaction began.
        The next batch gets a map with room for another one like it."""
        self._lacking = max(1, batch_bytes)

    def disk_free(self) -> int:
        """Return the bytes that the disk has free for files to grow. If LMDB's file is on another disk, the one with
        less counts. Free pages inside the file come on top."""
        return min(free_bytes(self.folder), free_bytes(self._place))

    def close(self) -> None:
        """Close the file and release the folder."""
        self._opened.close()


def _is_there(file: Path, opened: os.stat_result) -> bool:
    """Whether a path still names the file that was opened there; True when this cannot be checked."""
    try:
        return os.path.samestat(file.stat(), opened)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def too_many_readers(path: Path) -> StorageError:
    """Return the error for a folder of which `MAX_READERS` views are open."""
    return StorageError(
        f"the data folder {path} is being read {MAX_READERS} times, which is the most: "
        "wait until its backups and exports are done"
    )


def open_tables(environment: lmdb.Environment, *, create: bool = True) -> Tables:
    """Open the named databases; missing ones are created if `create` allows it."""
    return Tables(*(environment.open_db(name.encode(), create=create) for name in Tables._fields))


def used_bytes(txn: Reader, tables: Tables) -> int:
    """Return the bytes of the pages that are not free: about the size of a compacted copy."""
    stats = [txn.stat(), *map(txn.stat, tables)]
    pages = sum(
        stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"] for stat in stats
    )
    return (META_PAGES + pages) * stats[0]["psize"]


def has_room_to_lock(path: Path) -> bool:
    """Whether a folder has LMDB's lock file, or the disk has room for one. LMDB maps that file into memory, and on a
    full disk a write to it kills the process (SIGBUS)."""
    return (path / READERS_FILE).exists() or free_bytes(path) >= _READERS_ROOM


def lock_folder(path: Path) -> ExitStack:
    """Keep other processes from serving from a folder until the returned stack is closed. A missing folder is created.

    :raises DataFolderError: when another process serves from it, or the folder cannot be written to.
    """
    with ExitStack() as locked:
        is_there = False
        try:
            is_there = path.exists()
            make_folder(path, OF_OWNER)
            folder = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            locked.callback(os.close, folder)
            # Lock the folder too: somebody could delete the lock file as a left-over while a process serves.
            if _is_locked(folder):
                raise _in_use(path)
            lock = locked.enter_context((path / LOCK_FILE).open("a+b", buffering=0))
        except OSError as error:
            if error.errno in (ENOSPC, EDQUOT):
                advice = "make room on its disk"
            elif is_there and error.errno == EACCES:
                advice = "run this as the owner of the folder, or make it this user's (chown -R)"
            elif is_there and error.errno == EROFS:
                advice = "copy it to a disk that can be written to, and name the copy"
            else:
                advice = "choose a folder that this user may make and write to"
            raise DataFolderError(
                f"cannot write to the data folder {path}: {error.strerror}; {advice}"
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _in_use(path) from error
        except OSError as error:
            # For example a network file system without locks.
            raise DataFolderError(
                f"cannot lock the data folder {path}: {error.strerror}; choose a folder on another file system"
            ) from error
        # The process id only serves the message of `_in_use`. A full disk, which can still be read, must not prevent a
        # start.
        with suppress(OSError):
            lock.truncate(0)
            lock.write(b"%d\n" % os.getpid())
        return locked.pop_all()


def _is_locked(folder: int) -> bool:
    """Lock an open folder if its file system supports that. Return whether another process holds the lock."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def _in_use(path: Path) -> FolderInUseError:
    owner = ""
    with suppress(OSError):
        owner = (path / LOCK_FILE).read_text().strip()
    return FolderInUseError(
        f"the data folder {path} is in use by process {owner or '?'}: "
        "stop it, or choose another folder"
    )


def _open(path: Path, map_size: int, *, sync: bool = True) -> lmdb.Environment:
    return lmdb.open(
        str(path),
        map_size=map_size,
        max_dbs=len(Tables._fields),
        max_readers=MAX_READERS,
        sync=sync,
        # The index is far larger than memory and is read at random, so read-ahead would fetch pages that nobody needs.
        readahead=False,
    )


def _refuse_readers(path: Path, transaction: int) -> None:
    """Refuse to go on while another process reads the state of a transaction: the next writes overwrite its pages."""
    with lmdb.open(str(path), readonly=True, max_readers=MAX_READERS) as environment:
        for process, read in _readers(environment):
            if read == str(transaction):
                raise _is_being_copied(path, process)


def _refuse_readers_of_another(environment: lmdb.Environment, path: Path) -> None:
    """Refuse to go on while another process still has the file open in whose place this one was put. LMDB's processes
    share the number of the last transaction by the lock file. It would be that of the other file, and LMDB would choose
    this file's meta page by it, perhaps the one that says that the file is empty."""
    # A writer's mutex: after a process that died as a writer, LMDB corrects the number.
    with environment.begin(write=True) as txn:
        shared = txn.id() - 1
    last = environment.info()["last_txnid"]
    # The number may also still be that of a state that was taken back.
    if shared != last and not (shared > last and has_gone_back(path)):
        own = str(os.getpid())
        others = (process for process, _ in _readers(environment) if process != own)
        raise _is_being_copied(path, next(others, "?"))


def _readers(environment: lmdb.Environment) -> Iterator[tuple[str, str]]:
    """Return the process and the transaction of each view of the file."""
    environment.reader_check()
    for reader in environment.readers().splitlines()[1:]:
        process, _, read = reader.split()
        yield process, read


def _is_being_copied(path: Path, process: str) -> FolderBeingCopiedError:
    return FolderBeingCopiedError(
        f"the data folder {path} is being copied by process {process}: wait until the copy is done, or "
        "stop that process"
    )


def _identify(txn: lmdb.Transaction, meta: lmdb._Database) -> None:
    txn.put(IDENTITY, os.urandom(16), db=meta, overwrite=False)


def _check_version(environment: lmdb.Environment, path: Path) -> str | None:
    """Stamp a new file with the format's version and upgrade an older one. Refuse a newer one, and a file that is not
    Tidegate's.

    :returns: a line that says so if the file was upgraded.
    """
    with environment.begin(write=True) as txn:
        if txn.stat()["entries"] == 0:
            meta = environment.open_db(b"meta", txn=txn)
            txn.put(FORMAT, b"%d" % FORMAT_VERSION, db=meta)
            txn.put(STAMP, new_stamp(), db=meta)
            _identify(txn, meta)
            return None
    found, is_damaged = 0, (path / NOTE_FILE).exists()
    try:
        meta = environment.open_db(b"meta", create=False)
        with environment.begin() as txn:
            found = format_of(txn, meta)
    except (lmdb.NotFoundError, lmdb.IncompatibleError):
        pass
    except DAMAGE:
        # A repair could not read it either.
        is_damaged = True
    if not found and is_damaged:
        raise DataFolderError(
            f"{path / DATA_FILE} is damaged, and its format cannot be read: restore a backup"
        )
    if not found:
        raise DataFolderError(
            f"{path / DATA_FILE} was not written by Tidegate: choose another folder"
        )
    if found > FORMAT_VERSION:
        raise DataFolderError(
            f"the data folder {path} has format {found}, "
            f"this program reads format {FORMAT_VERSION}: use the version of Tidegate that wrote it"
        )
    if found == FORMAT_VERSION:
        return None
    try:
        upgrade(environment, found)
    except (ValueError, struct.error) as error:
        raise DataFolderError(
            f"{path} is damaged, and its format is too old to be repaired: restore a backup ({error})"
        ) from error
    return (
        f"the data folder {path} was upgraded from format {found} to {FORMAT_VERSION}: "
        "earlier versions of Tidegate cannot use it any more"
    )
