"""Which state of LMDB's file the disk holds.

A checkpoint waits for no disk: its pages, and the meta page that makes them the file's state, are written, and a thread
has the disk hold them afterwards. A power cut before that can leave the new meta page and only some of the pages that
it speaks of. The state before it is whole (`meta_pages`). So the file `durable` says which state the disk is known to
hold; a start that finds a later one goes back to it, and the redo logs have what came since.

    durable   two places of 512 bytes, used in turn: CRC-32 of the state 4 | state 112 | CRC-32 of the size 4 | size 8

The size is what LMDB's file has of the state. Notes of earlier versions end before it.
"""

from __future__ import annotations

import os
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
from storage.free_pages import are_free
from storage.meta_pages import (
    DATA_FILE,
    STATE_SIZE,
    end_of,
    file_size,
    newest_of,
    page_size_of,
    put_back,
    read_states,
    transaction_of,
)

NOTE_FILE: Final = "durable"

_PLACE: Final = 512
"""Bytes between the two places: what a disk writes whole or not at all."""

_STATE_END: Final = 4 + STATE_SIZE
_SIZE_AT: Final = _STATE_END + 4
_END: Final = _SIZE_AT + 8


class Durable:
    """Has the disk hold what LMDB has committed to an open data folder.

    :raises OSError: when the disk does not.
    """

    def __init__(self, folder: Path) -> None:
        self.has_failed = False
        """Whether the disk did not take what was committed: `wait` says why."""
        self.held_at = monotonic()
        """The disk holds what was committed until then, a time of `monotonic`."""
        self._thread = ThreadPoolExecutor(1, "durable")
        # The last ones only: not every program that makes checkpoints asks.
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
        """Whether the disk does not hold all yet."""
        return not self._last.done()

    def take_seconds(self) -> Iterator[float]:
        """How long each time took, since this was last called, that the disk came to hold what was committed."""
        while self._seconds:
            yield self._seconds.popleft()

    def begin(self) -> None:
        """Have the disk hold what was committed last. Nothing more may be until it does."""
        self._last = self._thread.submit(self._save_or_fail, monotonic())

    def wait(self) -> None:
        """Return when the disk holds what was committed.

        :raises RestartNeededError: when it does not. What became of the pages is not known, so the state before them is
            the last one that can be relied on.
        """
        try:
            self._last.result()
        except OSError as error:
            raise RestartNeededError(f"the disk did not take a checkpoint: {error}") from error

    def hold(self) -> None:
        """Have the disk hold what was committed last, and return when it does.

        :raises RestartNeededError: as from `wait`.
        """
        self.begin()
        self.wait()

    def close(self) -> None:
        """Wait for what has begun, and close the files."""
        self._opened.close()

    def _start(self) -> Future[None]:
        """Start the thread now: where the system has no more of them, a checkpoint could not be made."""
        try:
            return self._thread.submit(_nothing)
        except RuntimeError as error:
            raise OSError(EAGAIN, str(error)) from error

    def _take_over(self, folder: Path) -> None:
        """Have the disk hold a note of the file that is there."""
        # A process may have died between writing a note and its sync, or its sync have failed, and then a kernel may
        # take for written what is not. A full disk that is written to in other places only keeps what it has.
        with suppress(OSError):
            os.pwrite(self._note, os.pread(self._note, 2 * _PLACE, 0), 0)
        os.fdatasync(self._note)
        states = read_states(self._data)
        if _noted(self._note).state != states[newest_of(states)]:
            # A new file, or another one in its place, whose transactions may have smaller numbers.
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
        states = read_states(self._data)
        state = states[newest_of(states)]
        # LMDB writes none of the last pages that it has freed again.
        size = min(end_of(state), os.fstat(self._data).st_size).to_bytes(8)
        place = _PLACE * (transaction_of(state) & 1)
        os.pwrite(self._note, _summed(state) + _summed(size), place)
        os.fdatasync(self._note)


def _nothing() -> None:
    """What there is to save when a folder has just been opened."""


def check_file(folder: Path) -> None:
    """Refuse a folder whose file of LMDB is gone, or lacks its end: LMDB would begin a new one, or the process die of
    what is not there (SIGBUS).

    :raises DataFolderError: then.
    """
    noted, states = _read(folder)
    file = folder / DATA_FILE
    size = file_size(folder)
    if noted.state and not size:
        raise DataFolderError(
            f"{file} is {'empty' if file.exists() else 'missing'}, but the folder has held messages: put it back, or "
            "restore a backup; or choose another folder"
        )
    whole = 0
    if noted.state in states and noted.size:
        whole = noted.size
    elif states:
        # Nobody who would have noted its size has opened it yet.
        whole = _least_size(file, states[newest_of(states)], size)
    if size < whole:
        raise DataFolderError(
            f"{file} was cut short: it has {size} of {whole} bytes; copy it again, or restore a backup"
        )


def _least_size(file: Path, state: bytes, size: int) -> int:
    """Bytes that a file of LMDB has at least: it can end before its last page where that is free."""
    whole = end_of(state)
    if size >= whole:
        return whole
    with file.open("rb") as data:
        first = size // page_size_of(state)
        return size if are_free(data.fileno(), state, first) else whole


def transaction_ahead(folder: Path) -> int | None:
    """The transaction in whose state LMDB's file is, where the disk is not known to hold that; else None.

    While a gateway serves that is so for some milliseconds after each checkpoint.
    """
    ahead = _ahead(folder)
    return None if ahead is None else transaction_of(ahead.state)


def go_back(folder: Path) -> None:
    """Have LMDB's file be in the last state that the disk is known to hold. No process may read a later one.

    :raises OSError: when it cannot be written.
    """
    ahead = _ahead(folder)
    if ahead is not None:
        put_back(folder, ahead.page)


class _Ahead(NamedTuple):
    """A state that the disk is not known to hold, and the meta page that speaks of it."""

    page: int
    state: bytes


def _ahead(folder: Path) -> _Ahead | None:
    noted, states = _read(folder)
    if not noted.state or not states:
        return None
    newest = newest_of(states)
    # A note that knows neither of them is about another file: a copy was put in its place.
    is_ahead = noted.state == states[1 - newest] != states[newest]
    return _Ahead(newest, states[newest]) if is_ahead else None


class _Noted(NamedTuple):
    """A state that the disk holds; empty where none is known. `size` is 0 where that is not noted."""

    state: bytes = b""
    size: int = 0


def _read(folder: Path) -> tuple[_Noted, list[bytes]]:
    """What is noted, and what the meta pages say; nothing where there is no such file."""
    noted, states = _Noted(), list[bytes]()
    with suppress(FileNotFoundError), (folder / NOTE_FILE).open("rb") as note:
        noted = _noted(note.fileno())
    with suppress(FileNotFoundError), (folder / DATA_FILE).open("rb") as data:
        states = read_states(data.fileno())
    return noted, states


def _noted(note: int) -> _Noted:
    """The later of the two states that are noted."""
    found = []
    for place in (0, _PLACE):
        row = os.pread(note, _END, place)
        state, size = row[4:_STATE_END], row[_SIZE_AT:]
        if len(state) == STATE_SIZE and _summed(state) == row[:_STATE_END]:
            is_sized = _summed(size) == row[_STATE_END:]
            found.append(_Noted(state, int.from_bytes(size) if is_sized else 0))
    return max(found, key=lambda noted: transaction_of(noted.state), default=_Noted())


def _summed(content: bytes) -> bytes:
    """Content behind its CRC-32."""
    return crc32(content).to_bytes(4) + content
