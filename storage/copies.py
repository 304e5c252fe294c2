"""Copies a data folder while a gateway serves from it, and reads the pending messages of a copy.

LMDB lets other processes read the file that one process writes. Each function here works on the state of a checkpoint:
all tables at one moment. It waits for that checkpoint, so that everything stored before is included. While such a
reader works, freed pages cannot be reused, so the file of a busy gateway grows.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager, suppress
from errno import EAGAIN
from heapq import merge
from pathlib import Path
from time import monotonic, sleep
from typing import NamedTuple

import lmdb

from storage.disk import LOST_AND_FOUND, OF_OWNER, check_link, free_bytes, make_folder, sync
from storage.durable import check_file, transaction_ahead, transaction_held
from storage.environment import (
    MAX_READERS,
    READERS_FILE,
    STORED_FILES,
    Environment,
    Tables,
    has_room_to_lock,
    lock_folder,
    open_tables,
    too_many_readers,
    used_bytes,
)
from storage.errors import (
    DataFolderError,
    FolderBeingCopiedError,
    FolderInUseError,
    StorageError,
    cannot_read,
    cannot_use,
    way_out,
)
from storage.inbox import recover
from storage.keys import STAMP, TermsOf, pack_u64, split_timer_key
from storage.meta_pages import DATA_FILE
from storage.paused import misplaced, waiting_timers
from storage.records import read_record
from storage.redo_log import has_records
from storage.shapes import is_timer
from storage.upgrades import FORMAT_VERSION, format_of

_COMPACTED = ".compact"
"""The folder beside the data file in which `compact` makes the new file."""

CHECKPOINT_PATIENCE = 15
"""Seconds that a reader waits for a gateway's checkpoint."""

_WRONG_PAGE = (lmdb.CorruptedError, lmdb.PageNotFoundError)

_GROWTH = 1 << 32
"""Bytes by which a reader's map exceeds the file: the gateway may grow the file meanwhile."""


class Pending(NamedTuple):
    """A pending message, read from a copy or a snapshot."""

    due_ms: int
    sequence: int
    record: bytes


def back_up(data: Path, target: Path) -> int:
    """Copy a data folder to a new one, without its free pages. A gateway may serve from it meanwhile.

    The copy gets its name only when all of it is on disk.

    :returns: its size, in bytes.
    :raises DataFolderError: when there is nothing to copy, or the target exists and is not an empty folder.
    :raises StorageError: when the copy could not be written.
    """
    with reading(data, older=True) as environment:
        return copy_open(environment, target)


def copy_open(environment: lmdb.Environment, target: Path, mode: int = 0o777) -> int:
    """Copy a data folder that is open in this process: see `back_up`.

    :param mode: see `new_folder`.
    """
    with new_folder(target, mode) as unfinished:
        try:
            _copy_used_pages(environment, unfinished / DATA_FILE)
        except lmdb.Error as error:
            # The disk of either folder may be full or failing.
            source = environment.path()
            raise StorageError(
                f"{source} could not be copied to {target}: {error}{way_out(error)}"
            ) from error
        return (unfinished / DATA_FILE).stat().st_size


def copy_files(data: Path, target: Path) -> int:
    """Copy the files of a data folder as they are, free and damaged pages too, to a new folder: see `back_up`. No other
    process may write to them.

    :returns: the size of LMDB's file, in bytes.
    """
    with new_folder(target, OF_OWNER) as unfinished:
        names = (name for name in STORED_FILES if (data / name).exists())
        return _copy_whole(names, data, unfinished, target)


def _copy_used_pages(environment: lmdb.Environment, file: Path) -> None:
    """Write a copy of LMDB's file, without its free pages, to a new file.

    LMDB knows of no interruption. So a thread copies, and a Ctrl-C makes its next write fail.
    """
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with suppress(OSError):
            # As in LMDB's own `copy`: the copy need not take the place of what the page cache has.
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
        with ThreadPoolExecutor(1) as thread:
            try:
                copying = thread.submit(environment.copyfd, descriptor, compact=True)
                # Python sees a signal that comes just before a wait only when the wait ends.
                while wait([copying], timeout=1).not_done:
                    pass
                copying.result()
            except KeyboardInterrupt:
                unwritable = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
                os.dup2(unwritable, descriptor, inheritable=False)
                os.close(unwritable)
                raise
            except RuntimeError as error:
                # The system has no more threads.
                raise OSError(EAGAIN, str(error)) from error
    finally:
        os.close(descriptor)


def restore(backup: Path, data: Path) -> int:
    """Create a data folder from a backup, which stays unchanged.

    :returns: its size, in bytes.
    :raises StorageError: as from `back_up`.
    """
    # A gateway may serve from the folder that was given as the backup. While a view is open, no page of the state that
    # the copy begins with is overwritten.
    with (
        reading(backup, older=True) as environment,
        environment.begin(),
        new_folder(data, OF_OWNER) as unfinished,
    ):
        return _copy_whole([DATA_FILE], backup, unfinished, data)


def _copy_whole(names: Iterable[str], source: Path, unfinished: Path, target: Path) -> int:
    """Copy files as they are, LMDB's among them, and return its size.

    :param names: is read while copying, so that a disk that fails then is told in the same way.
    :param unfinished: the folder of the copies until it becomes `target`.
    """
    try:
        for name in names:
            shutil.copyfile(source / name, unfinished / name)
    except OSError as error:
        # The disk of either folder may be full or failing.
        raise StorageError(f"{source} could not be copied to {target}: {error.strerror}") from error
    return (unfinished / DATA_FILE).stat().st_size


def data_file(data: Path) -> Path:
    """Return the path of LMDB's file in a data folder. It has everything but the changes that are only in the redo log.

    :raises DataFolderError: when there is no such file, or it is empty.
    """
    file = data / DATA_FILE
    if not file.is_file():
        raise DataFolderError(f"{data} is not a data folder: it has no {DATA_FILE}")
    if not file.stat().st_size:
        # The error of `check_file` says more if the folder has held messages.
        check_file(data)
        raise DataFolderError(f"{file} is empty: copy it again, or restore a backup")
    return file


class Compacted(NamedTuple):
    """Sizes of the data file, in bytes."""

    before: int
    after: int


def compact(data: Path) -> Compacted:
    """Rewrite the data file without its free pages. No gateway may be serving from the folder.

    The new file replaces the old one in one step, once all of it is on disk.

    :raises DataFolderError: when a gateway serves, or the folder is not a data folder.
    :raises StorageError: when the disk has no room for the second file beside the first.
    """
    file = data_file(data)
    with lock_folder(data):
        # Report a folder in use before waiting for anything.
        pass
    _await_checkpoint(data)
    with lock_folder(data):
        before = file.stat().st_size
        try:
            with new_data_file(data, _COMPACTED) as unfinished, reading(data) as environment:
                tables = open_tables(environment, create=False)
                with environment.begin() as txn:
                    needed = used_bytes(txn, tables)
                free = free_bytes(unfinished)
                if free < needed:
                    raise StorageError(
                        f"compacting {data} needs {needed:,} bytes beside the old file, and the disk has {free:,} "
                        "free: make room, or back up to another disk, which compacts as well, and restore"
                    )
                _copy_used_pages(environment, unfinished / DATA_FILE)
        except (OSError, lmdb.Error) as error:
            raise StorageError(f"{data} could not be compacted: {error}") from error
        return Compacted(before, file.stat().st_size)


@contextmanager
def new_data_file(data: Path, name: str) -> Iterator[Path]:
    """Provide a folder in which to make a new data file for a data folder. On success the file replaces the old one in
    one step, once all of it is on disk; otherwise nothing is changed. No other process may open the data folder.

    :param name: of the folder, which is beside the old file.
    """
    # A link, as to another disk, stays.
    file = data_file(data).resolve()
    unfinished = file.with_name(name if file.name == DATA_FILE else f".{file.name}{name}")
    # An earlier attempt that was killed may have left it.
    shutil.rmtree(unfinished, ignore_errors=True)
    before = file.stat()
    try:
        unfinished.mkdir(OF_OWNER)
        yield unfinished
        made = unfinished / DATA_FILE
        sync(made)
        shutil.copymode(file, made)
        # Root makes it for the gateway's user.
        with suppress(PermissionError):
            os.chown(made, before.st_uid, before.st_gid)
        made.replace(file)
        # A backup that still reads the old file keeps its lock file, which says what that file's last state is.
        (data / READERS_FILE).unlink(missing_ok=True)
        for folder in {data, file.parent}:
            sync(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def read_pending(
    data: Path, terms_of: TermsOf, damaged: set[bytes] | None = None
) -> Iterator[Pending]:
    """Return all pending messages of a data folder in the order of due times, as of one moment.

    :param terms_of: see `Store`.
    :param damaged: receives the packed sequences of messages that are left out because their records cannot be read,
        and the keys of timers that cannot be read.
    :raises DataFolderError: when the folder is not one that this program can read.
    """
    damaged = set() if damaged is None else damaged
    with reading(data) as environment:
        tables = open_tables(environment, create=False)
        with closing(_Records(environment, tables)) as records, ExitStack() as views:
            try:
                txn = views.enter_context(environment.begin())
                accepted_lately = sorted(recover(txn, tables, terms_of, damaged=damaged))
            except _WRONG_PAGE:
                views.close()
                damaged.clear()
                txn = views.enter_context(environment.begin())
                found = recover(txn, tables, terms_of, damaged=damaged, read=records.read)
                accepted_lately = sorted(found)
            waiting = waiting_timers(txn, tables)
            damaged.update(misplaced(txn, tables))
            for key, value in merge(txn.cursor(db=tables.timers), accepted_lately, waiting):
                if not is_timer(key, value):
                    damaged.add(key)
                    continue
                due_ms, _, sequence, _ = split_timer_key(key)
                number = pack_u64(sequence)
                record = records.read(number)
                if record is None:
                    damaged.add(number)
                    continue
                yield Pending(due_ms, sequence, record)


class _Records:
    """Reads records in a view of its own: one in which LMDB came upon a page that it cannot read is of no more use."""

    def __init__(self, environment: lmdb.Environment, tables: Tables) -> None:
        self._environment = environment
        self._tables = tables
        self._txn = environment.begin()

    def read(self, number: bytes) -> bytes | None:
        """Return the record of a packed sequence; None when it cannot be read."""
        try:
            return read_record(self._txn, self._tables, number)
        except _WRONG_PAGE:
            self._txn.abort()
            self._txn = self._environment.begin()
            return None

    def close(self) -> None:
        """End the view."""
        self._txn.abort()


@contextmanager
def reading(data: Path, *, older: bool = False) -> Iterator[lmdb.Environment]:
    """Open a data folder for reading, while another process may be writing to it.

    :param older: whether the folder may have an earlier format.
    """
    _await_checkpoint(data)
    with _open_to_read(data) as environment:
        try:
            meta = environment.open_db(b"meta", create=False)
            with environment.begin() as txn:
                version = format_of(txn, meta)
        except (lmdb.NotFoundError, lmdb.IncompatibleError) as error:
            raise DataFolderError(
                f"{data / DATA_FILE} was not written by Tidegate: {error}"
            ) from error
        except lmdb.Error as error:
            raise cannot_use("read", data, error) from error
        if not version:
            raise DataFolderError(
                f"the format of {data / DATA_FILE} cannot be read: it is damaged, or was not written by Tidegate; "
                "restore a backup, or name another folder"
            )
        if version > FORMAT_VERSION:
            raise DataFolderError(
                f"{data} has format {version}, this program reads format {FORMAT_VERSION}: use the version of "
                "Tidegate that wrote it"
            )
        if version < FORMAT_VERSION and not older:
            raise DataFolderError(
                f"{data} has format {version}, and {FORMAT_VERSION} is needed: 'tidegate fsck' or 'tidegate serve' "
                "brings it there; back it up before"
            )
        try:
            yield environment
        except lmdb.ReadersFullError as error:
            raise too_many_readers(data) from error
        except lmdb.Error as error:
            raise cannot_use("read", data, error) from error
        except (ValueError, struct.error) as error:
            raise cannot_read(data, error) from error


def _await_checkpoint(data: Path) -> None:
    """Wait until LMDB's file, on disk, has everything that is now in the redo log. A serving gateway sees to that every
    second or so. If none is serving, the last one died, and its log is applied here.

    :raises StorageError: when neither happens.
    """
    begun: _Checkpoint | None = None
    wanted: int | None = None
    last = monotonic() + CHECKPOINT_PATIENCE
    while not _has_all(data):
        try:
            with closing(Environment(data)) as environment:
                environment.catch_up()
        except FolderInUseError as error:
            # On a slow disk, a busy gateway makes each checkpoint as soon as the disk has the one before. So the last
            # one may never be on disk, but the first one since this began soon is.
            newest = _last_checkpoint(data)
            begun = begun or newest
            if wanted is None and newest.stamp != begun.stamp:
                wanted = newest.transaction
            if wanted is not None and transaction_held(data) >= wanted:
                return
            if monotonic() > last:
                if isinstance(error, FolderBeingCopiedError):
                    raise
                raise StorageError(
                    f"the gateway that serves from {data} has not written a checkpoint for "
                    f"{CHECKPOINT_PATIENCE} s: is it stopped, or its disk full?"
                ) from None
            sleep(0.05)


def _has_all(data: Path) -> bool:
    """Whether the last checkpoint is on disk, and the redo log has nothing since."""
    try:
        # A checkpoint that is not known to be on disk may be one that a power cut left, which must not be read.
        if transaction_ahead(data) is not None:
            return False
        stamp = _last_checkpoint(data).stamp
        return not (stamp and has_records(data, stamp) and _last_checkpoint(data).stamp == stamp)
    except OSError as error:
        raise cannot_use("read", data, error) from error


class _Checkpoint(NamedTuple):
    """A checkpoint: its transaction, and the stamp of the redo log's records since."""

    transaction: int
    stamp: bytes | None


def _last_checkpoint(data: Path) -> _Checkpoint:
    with _open_to_read(data) as environment:
        try:
            meta = environment.open_db(b"meta", create=False)
            with environment.begin() as txn:
                return _Checkpoint(txn.id(), txn.get(STAMP, db=meta))
        except lmdb.Error:
            # The next to open the file reports what is wrong with it.
            return _Checkpoint(0, None)


def _open_to_read(data: Path) -> lmdb.Environment:
    file = data_file(data)
    try:
        check_file(data)
        return lmdb.open(
            str(data),
            map_size=file.stat().st_size + _GROWTH,
            max_dbs=len(Tables._fields),
            max_readers=MAX_READERS,
            readonly=True,
            readahead=False,
            # No lock if no process has the folder open and none can on a full disk: so a backup there can still be
            # read.
            lock=has_room_to_lock(data),
        )
    except lmdb.ReadersFullError as error:
        raise too_many_readers(data) from error
    except lmdb.LockError as error:
        # LMDB identifies its readers by process id, and in each container those begin with 1.
        raise DataFolderError(
            f"the data folder {data} is in use by a process of the same number in another container: "
            "run this command in that container, such as by 'podman exec'"
        ) from error
    except (OSError, lmdb.Error) as error:
        readers = data / READERS_FILE
        written = readers if readers.exists() else data
        if not os.access(written, os.W_OK, effective_ids=True):
            raise DataFolderError(
                f"cannot write {readers}, in which LMDB notes the readers of {data}: "
                "run this as the owner of the folder, or copy it while no gateway serves from it, and name the copy"
            ) from error
        raise cannot_use("read", data, error) from error


@contextmanager
def new_folder(target: Path, mode: int) -> Iterator[Path]:
    """Provide a folder in which to make a data file. On success it is synced and moved to the target; otherwise it is
    deleted.

    An existing empty target is kept as it is: it may be a link, a mount point, or a folder beside which nothing can be
    written.

    :param mode: of the folder, reduced by the umask.
    """
    try:
        check_link(target)
        is_there = target.exists()
        parent = target if is_there else target.parent
        unfinished = parent / f".{target.name}.unfinished"
        known = (LOST_AND_FOUND, unfinished.name)
        if is_there and any(file.name not in known for file in target.iterdir()):
            raise DataFolderError(f"{target} is not empty: choose a folder that does not exist yet")
        make_folder(unfinished, mode)
    except OSError as error:
        raise DataFolderError(f"cannot write to {target}: {error.strerror}") from error
    with alone_in(unfinished):
        try:
            # An earlier attempt that was killed may have left them.
            for file in unfinished.iterdir():
                file.unlink()
            yield unfinished
            # LMDB's file last: without it, nobody takes the target for a data folder.
            files = sorted(unfinished.iterdir(), reverse=True)
            # Sync the folder too: a file's content on disk is useless as long as its name is not on disk.
            for path in (*files, unfinished):
                sync(path)
            moves = [(unfinished, target)]
            if is_there:
                moves = [(file, target / file.name) for file in files]
            for made, place in moves:
                made.rename(place)
            try:
                sync(parent)
            except OSError:
                # The next attempt must not find a file there.
                for made, place in moves:
                    place.rename(made)
                raise
        except OSError as error:
            raise StorageError(f"{target} could not be written: {error.strerror}") from error
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep other copies out of a folder in which one is being made.

    :raises DataFolderError: when another copy is being made there, or the folder cannot be locked.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DataFolderError(f"another copy is being made in {folder}") from error
        except OSError as error:
            raise DataFolderError(f"cannot lock {folder}: {error.strerror}") from error
        yield
    finally:
        os.close(descriptor)
