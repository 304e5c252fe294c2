"""Records which state of LMDB's file is on disk.

A checkpoint does not wait for the disk. It writes its pages, and the meta page that makes them the file's state, and a
thread then syncs them. A power cut before the sync can leave the new meta page on disk with only some of its pages.
The state before it is whole (`meta_pages`). So the file `durable` names the state that is known to be on disk. A start
that finds a later state goes back to the noted one, and the redo logs have the changes since then.

    durable   two places of 512 bytes, used in turn: CRC-32 of the state 4 | state 112 | CRC-32 of the size 4 | size 8

The size is how many bytes LMDB's file has in that state. Notes of earlier versions end before the size.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from errno import EAGAIN
from pathlib import Path
from time import monotonic, perf_counter
from typing import Final, NamedTuple
from zlib import crc32

from storage.disk import sync
from storage.errors import DataFolderError, RestartNeededError
from storage.meta_pages import (
    DATA_FILE,
    STATE_SIZE,
    end_of,
    file_size,
    newest_of,
    newest_state,
    page_size_of,
    put_back,
    read_states,
    transaction_of,
)
from storage.pages import are_free
from storage.redo_log import LOG_FILES

NOTE_FILE: Final = "durable"

_PLACE: Final = 512
"""Bytes between the two places: a disk writes that much completely or not at all."""

_STATE_END: Final = 4 + STATE_SIZE
_SIZE_AT: Final = _STATE_END + 4
_END: Final = _SIZE_AT + 8


class Durable:
    """Syncs to disk what LMDB has committed to an open data folder.

    :raises OSError: when the disk fails.
    """

    def __init__(self, folder: Path) -> None:
        self.has_failed = False
        """Whether the disk failed to store a commit; `wait` gives the reason."""
        self.held_at = monotonic()
        """The disk has everything that was committed until then, a time of `monotonic`."""
        self._thread = ThreadPoolExecutor(1, "durable")
        # Only the last ones: not every program that makes checkpoints reads them.
        self._seconds: deque[float] = deque(maxlen=1_000)
        with ExitStack() as opened:
            self._data = os.open(folder / DATA_FILE, os.O_RDONLY | os.O_CLOEXEC)
            opened.callback(os.close, self._data)
            self._note = os.open(folder / NOTE_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            opened.callback(os.close, self._note)
            opened.callback(self._thread.shutdown)
            self._last = self._start()
            self._take_over(folder)
            self._opened = opened.pop_all()

    @property
    def is_busy(self) -> bool:
        """Whether a sync is still running."""
        return not self._last.done()

    def take_seconds(self) -> Iterator[float]:
        """Return how long each sync took since the last call."""
        while self._seconds:
            yield self._seconds.popleft()

    def begin(self) -> None:
        """Start to sync the last commit. Commit nothing more until the sync is done."""
        self._last = self._thread.submit(self._save_or_fail, monotonic())

    def wait(self) -> None:
        """Return when the disk has what was committed.

        :raises RestartNeededError: when the sync failed. What became of the pages is unknown, so the state before them
            is the last reliable one.
        """
        try:
            self._last.result()
        except OSError as error:
            raise RestartNeededError(f"the disk did not take a checkpoint: {error}") from error

    def hold(self) -> None:
        """Sync the last commit to disk, and return when that is done.

        :raises RestartNeededError: as from `wait`.
        """
        self.begin()
        self.wait()

    def close(self) -> None:
        """Wait for a running sync, and close the files."""
        self._opened.close()

    def _start(self) -> Future[None]:
        """Start the thread now: if the system has no more threads, no checkpoint could be made."""
        try:
            return self._thread.submit(_nothing)
        except RuntimeError as error:
            raise OSError(EAGAIN, str(error)) from error

    def _take_over(self, folder: Path) -> None:
        """Sync a note of the existing file to disk."""
        # If a process died between writing a note and its sync, or the sync failed, the kernel may take the note for
        # written although it is not. So write it again. A full disk that only writes to new places keeps the old note.
        with suppress(OSError):
            os.pwrite(self._note, os.pread(self._note, 2 * _PLACE, 0), 0)
        os.fdatasync(self._note)
        if _noted(self._note).state != newest_state(self._data):
            # A new or replaced file, whose transactions may have smaller numbers.
            os.ftruncate(self._note, 0)
            self._save()
            sync(folder)

    def _save_or_fail(self, committed_at: float) -> None:
        begun = perf_counter()
        try:
            self._save()
        except OSError:
            self.has_failed = True
            raise
        self.held_at = committed_at
        self._seconds.append(perf_counter() - begun)

    def _save(self) -> None:
        os.fdatasync(self._data)
        state = newest_state(self._data)
        # LMDB does not write pages at the end that were freed again.
        size = min(end_of(state), os.fstat(self._data).st_size).to_bytes(8)
        place = _PLACE * (transaction_of(state) & 1)
        os.pwrite(self._note, _summed(state) + _summed(size), place)
        os.fdatasync(self._note)


def _nothing() -> None:
    """The first task of the thread: a folder that was just opened has nothing to sync."""


def check_file(folder: Path) -> None:
    """Refuse a folder whose LMDB file is missing or truncated: LMDB would start a new file, or the process would die
    reading the missing part (SIGBUS). Refuse it also without a file of the redo log: what that had would be missing.

    :raises DataFolderError: in all these cases.
    """
    noted, states = _read(folder)
    file = folder / DATA_FILE
    size = file_size(folder)
    if noted.state and not size:
        raise DataFolderError(
            f"{file} is {'empty' if file.exists() else 'missing'}, but the folder has held messages: put it back, or "
            "restore a backup; or choose another folder"
        )
    lost = [name for name in LOG_FILES if not (folder / name).exists()]
    # A note about another file says nothing: a copy without a log was put in its place.
    if noted.state in states and lost:
        raise DataFolderError(
            f"{folder / lost[0]} is missing, and may have what was stored last: put it back; if it is lost, make an "
            "empty file of this name, and the folder is used as it was a second or so before"
        )
    whole = 0
    if noted.state in states and noted.size:
        whole = noted.size
    elif states:
        # No process that notes the size has opened it yet.
        whole = _least_size(file, states[newest_of(states)], size)
    if size < whole:
        raise DataFolderError(
            f"{file} was cut short: it has {size} of {whole} bytes; copy it again, or restore a backup"
        )


def _least_size(file: Path, state: bytes, size: int) -> int:
    """Return the least number of bytes that LMDB's file must have: it may lack its last pages if they are free."""
    whole = end_of(state)
    if size >= whole:
        return whole
    with file.open("rb") as data:
        first = size // page_size_of(state)
        return size if are_free(data.fileno(), state, first) else whole


def transaction_ahead(folder: Path) -> int | None:
    """Return the transaction whose state LMDB's file is in, if that state is not known to be on disk; else None.

    While a gateway runs, that is the case for some milliseconds after each checkpoint, or seconds on a slow disk.
    """
    ahead = _ahead(folder)
    return None if ahead is None else transaction_of(ahead.state)


def transaction_held(folder: Path) -> int:
    """Return the last transaction of LMDB's file that is known to be on disk; 0 when none is."""
    noted, _ = _read(folder)
    return transaction_of(noted.state) if noted.state else 0


def go_back(folder: Path) -> None:
    """Put LMDB's file back to the last state that is known to be on disk. No process may be reading a later one.

    :raises OSError: when it cannot be written.
    """
    ahead = _ahead(folder)
    if ahead is not None:
        put_back(folder, ahead.page)


def has_gone_back(folder: Path) -> bool:
    """Whether both meta pages have the same state, as `go_back` leaves them until the next commit."""
    _, states = _read(folder)
    return len(set(states)) == 1


def _refuse_pipes(folder: Path) -> None:
    """Refuse a folder in which something else has the name of a file, such as a named pipe: reading it would take until
    somebody writes to it."""
    for name in (DATA_FILE, NOTE_FILE, *LOG_FILES):
        with suppress(FileNotFoundError):
            if not stat.S_ISREG((folder / name).stat().st_mode):
                raise DataFolderError(
                    f"cannot open the data folder {folder}: {name} is no file; put the file back, or restore a backup"
                )


class _Ahead(NamedTuple):
    """A state that is not known to be on disk, and the meta page that names it."""

    page: int
    state: bytes


def _ahead(folder: Path) -> _Ahead | None:
    noted, states = _read(folder)
    if not states:
        return None
    newest = newest_of(states)
    # If the note matches neither state, there is none, or it is about another file: a copy was put in its place.
    is_ahead = noted.state == states[1 - newest] != states[newest]
    return _Ahead(newest, states[newest]) if is_ahead else None


class _Noted(NamedTuple):
    """A state that is on disk; empty when none is known. `size` is 0 when it was not noted."""

    state: bytes = b""
    size: int = 0


def _read(folder: Path) -> tuple[_Noted, list[bytes]]:
    """Return the note, and the states in the meta pages; empty when the file is missing."""
    _refuse_pipes(folder)
    noted, states = _Noted(), list[bytes]()
    with suppress(FileNotFoundError), (folder / NOTE_FILE).open("rb") as note:
        noted = _noted(note.fileno())
    with suppress(FileNotFoundError), (folder / DATA_FILE).open("rb") as data:
        states = read_states(data.fileno())
    return noted, states


def _noted(note: int) -> _Noted:
    """Return the later of the two noted states."""
    found = []
    for place in (0, _PLACE):
        row = os.pread(note, _END, place)
        state, size = row[4:_STATE_END], row[_SIZE_AT:]
        if len(state) == STATE_SIZE and _summed(state) == row[:_STATE_END]:
            is_sized = _summed(size) == row[_STATE_END:]
            found.append(_Noted(state, int.from_bytes(size) if is_sized else 0))
    return max(found, key=lambda noted: transaction_of(noted.state), default=_Noted())


def _summed(content: bytes) -> bytes:
    """Return content behind its CRC-32."""
    return crc32(content).to_bytes(4) + content
