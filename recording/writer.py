"""Writes capture files without making anybody wait.

`CaptureWriter.record` only appends to a list; a thread writes the list to disk several times a second. If the disk is
slower than the traffic, or full, records are dropped. Their number is written in the file where they would have been.
So memory is bounded, and recorded connections are never slowed down.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import struct
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, Self

from recording.format import MAGIC, OPEN_SUFFIX, RECORD_HEAD, SUFFIX, Kind

_WRITE_EVERY_S: Final = 0.05
_MOST_WAITING: Final = 64 * 1024 * 1024
"""Bytes that wait to be written; beyond that, records are dropped."""
_TRY_AGAIN_S: Final = 5.0
"""Seconds until the disk is tried again after a failure."""

_pack_head = RECORD_HEAD.pack
_pack_count = struct.Struct(">Q").pack
_now_ns = time.time_ns


class Rotation(NamedTuple):
    """When the next file begins, and how many files are kept."""

    file_bytes: int = 256 * 1024 * 1024
    seconds: float = 3600.0
    keep: int = 0
    """The number of files to keep, of this and earlier runs, including those being written; the oldest are deleted. 0
    keeps all."""


class Counts(NamedTuple):
    """What a recorder has done so far."""

    frames: int
    lost: int
    """Records that could not be written."""
    bytes: int
    """Bytes written to all files."""
    files: int
    connections: int
    """Connections that are open now."""
    trouble: str | None
    """Why nothing is being written, as one line; None when all is well."""


class _Waiting:
    """Records that are not written yet, and the connections that they open and close."""

    __slots__ = ("changes", "parts", "records", "size", "told")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.changes: list[tuple[int, bytes | None]] = []
        self.size = 0
        self.records = 0
        self.told = 0
        """Lost records that the LOST records here count."""


class CaptureWriter:
    """Writes records into a folder. Used with `with`, it starts and stops, and leaves complete files.

    Only one thread may record. A file that a killed recorder left gets its final name.

    :param least_free: bytes to leave free on the folder's disk; with less, nothing is written.
    """

    def __init__(
        self, folder: Path, rotation: Rotation | None = None, *, least_free: int = 0
    ) -> None:
        self.folder = folder
        self._rotation = rotation or Rotation()
        self._least_free = least_free
        self._run = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(3)}"
        self._number = 0
        self._waiting = _Waiting()
        self._connections: dict[int, bytes] = {}
        """The connections that are open after the last written record, with their servers' names."""
        self._open_now = 0
        self._frames = 0
        self._lost = 0
        self._lost_untold = 0
        self._lost_connection = 0
        self._bytes = 0
        self._trouble: str | None = None
        self._file: _File | None = None
        self._retry_at = 0.0
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run_thread, name="capture", daemon=True)

    def start(self) -> None:
        """Create the folder and the first file. Raises OSError when that fails."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for left in self.folder.glob(f"*{OPEN_SUFFIX}"):
            _adopt(left)
        self._file = self._next_file()
        self._thread.start()

    def stop(self) -> None:
        """Write what was recorded, and end the file."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._end_file()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def counts(self) -> Counts:
        """What was done so far."""
        return Counts(
            self._frames,
            self._lost,
            self._bytes,
            self._number,
            self._open_now,
            self._trouble,
        )

    def opened(self, connection: int, server: str) -> None:
        """Record that a connection to the server of that name was opened. Connection numbers start at 1 and are not
        reused."""
        name = server.encode("ascii", "replace")
        with self._lock:
            self._open_now += 1
            self._waiting.changes.append((connection, name))
            self._append(connection, Kind.OPENED, name)

    def closed(self, connection: int) -> None:
        """Record that a connection was closed."""
        with self._lock:
            self._open_now -= 1
            self._waiting.changes.append((connection, None))
            self._append(connection, Kind.CLOSED)

    def record(self, connection: int, kind: Kind, *frame: bytes) -> None:
        """Record a frame, given as pieces of its bytes. Never waits for the disk."""
        with self._lock:
            self._frames += 1
            self._append(connection, kind, *frame)

    def _append(self, connection: int, kind: Kind, *data: bytes) -> None:
        size = sum(map(len, data))
        waiting = self._waiting
        if waiting.size + size > _MOST_WAITING:
            self._note_lost(1, connection)
            return
        if self._lost_untold:
            self._tell_lost()
        waiting.parts.append(_pack_head(_now_ns(), connection, kind, size))
        waiting.parts += data
        waiting.size += size + RECORD_HEAD.size
        waiting.records += 1

    def _note_lost(self, records: int, connection: int) -> None:
        if records:
            self._lost += records
            self._lost_untold += records
            self._lost_connection = connection

    def _tell_lost(self) -> None:
        count = _pack_count(self._lost_untold)
        self._waiting.parts.append(
            _pack_head(_now_ns(), self._lost_connection, Kind.LOST, len(count)) + count
        )
        self._waiting.told += self._lost_untold
        self._lost_untold = 0

    # --- the writing thread ---

    def _run_thread(self) -> None:
        while not self._stopping.wait(_WRITE_EVERY_S):
            self._write_waiting()
        with self._lock:
            if self._lost_untold:
                self._tell_lost()
        self._write_waiting()

    def _take_waiting(self) -> _Waiting:
        with self._lock:
            waiting, self._waiting = self._waiting, _Waiting()
        return waiting

    def _write_waiting(self) -> None:
        if self._trouble is not None and time.monotonic() < self._retry_at:
            self._leave_out(self._take_waiting())
            return
        waiting = self._take_waiting()
        trouble = self._make_room(waiting)
        if trouble is None and waiting.parts:
            assert self._file is not None
            try:
                self._bytes += self._file.append(b"".join(waiting.parts), waiting.records)
            except OSError as error:
                trouble = f"cannot write {self._file.path}: {error.strerror}"
        self._trouble = trouble
        if trouble is not None:
            self._retry_at = time.monotonic() + _TRY_AGAIN_S
            self._leave_out(waiting)
            self._end_file()
        else:
            self._follow(waiting)

    def _make_room(self, waiting: _Waiting) -> str | None:
        """End a full file, or one that somebody deleted, and begin a new one when there is something to write. Return
        what is wrong when that fails, or the disk has too little room."""
        try:
            if self._least_free:
                disk = os.statvfs(self.folder)
                if disk.f_bavail * disk.f_frsize < self._least_free:
                    return (
                        f"the disk of {self.folder} has less than {self._least_free:,} bytes free"
                    )
            file = self._file
            if file is not None and (file.is_full(self._rotation) or file.is_gone):
                self._end_file()
            if self._file is None and waiting.parts:
                self._file = self._next_file(waiting.parts[0])
        except OSError as error:
            return f"cannot write to {self.folder}: {error.strerror}"
        return None

    def _leave_out(self, waiting: _Waiting) -> None:
        self._follow(waiting)
        with self._lock:
            self._lost_untold += waiting.told
            connection = RECORD_HEAD.unpack_from(waiting.parts[0])[1] if waiting.parts else 0
            self._note_lost(waiting.records, connection)

    def _follow(self, waiting: _Waiting) -> None:
        for connection, name in waiting.changes:
            if name is None:
                self._connections.pop(connection, None)
            else:
                self._connections[connection] = name

    def _next_file(self, first: bytes | None = None) -> _File:
        """Create a file that begins with the open connections, at the time of its first record."""
        number = self._number + 1
        file = _File(self.folder / f"{self._run}-{number:05}{OPEN_SUFFIX}")
        now = RECORD_HEAD.unpack_from(first)[0] if first else _now_ns()
        heads = [
            _pack_head(now, number, Kind.OPENED, len(name)) + name
            for number, name in self._connections.items()
        ]
        try:
            self._bytes += file.append(MAGIC + b"".join(heads), 0)
            self._remove_oldest()
        except OSError:
            file.remove()
            raise
        self._number = number
        return file

    def _remove_oldest(self) -> None:
        if self._rotation.keep:
            # By age: if several recorders share a folder, the names only give the order in which the recorders started.
            done = sorted(self.folder.glob(f"*{SUFFIX}"), key=_age)
            files = len(done) + sum(1 for _ in self.folder.glob(f"*{OPEN_SUFFIX}"))
            for path in done[: max(0, files - self._rotation.keep)]:
                path.unlink(missing_ok=True)

    def _end_file(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        try:
            # Renaming it fails if somebody deleted it.
            with suppress(FileNotFoundError):
                file.end()
        except OSError:
            # Nobody knows how much of it the disk has, and it keeps the name of one that is not complete.
            with self._lock:
                self._lost += file.records


class _File:
    """A capture file that is being written. Its lock shows that to other recorders."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._size = 0
        self.records = 0
        self._began = time.monotonic()

    def append(self, data: bytes, records: int) -> int:
        """Write whole records. On failure, none of them is in the file."""
        done = 0
        try:
            with memoryview(data) as view:
                while done < len(data):
                    done += os.write(self._descriptor, view[done:])
        except OSError:
            os.ftruncate(self._descriptor, self._size)
            raise
        self._size += done
        self.records += records
        return done

    def is_full(self, rotation: Rotation) -> bool:
        """Whether the next file should begin."""
        if self.records == 0:
            return False
        is_old = time.monotonic() - self._began >= rotation.seconds
        return is_old or self._size >= rotation.file_bytes

    @property
    def is_gone(self) -> bool:
        """Whether nobody will find what is written, as somebody deleted the file. Raises OSError."""
        return not self.path.exists()

    def remove(self) -> None:
        """Delete the file, as if it had not been begun."""
        os.close(self._descriptor)
        self.path.unlink(missing_ok=True)

    def end(self) -> None:
        """Sync the file, and give it its final name."""
        try:
            os.fsync(self._descriptor)
            self.path.rename(self.path.with_suffix(SUFFIX))
        finally:
            os.close(self._descriptor)


def _age(file: Path) -> tuple[int, str]:
    """A sort key that orders files by when they were last written."""
    try:
        return file.stat().st_mtime_ns, file.name
    except FileNotFoundError:  # another recorder has removed it
        return 0, file.name


def _adopt(left: Path) -> None:
    """Give a file that a killed recorder left its final name. Its last record may be cut off. One without records is
    deleted: a recorder that is killed soon after each start would replace all recordings by such files."""
    # Not if another recorder is writing it, or has just renamed it.
    with suppress(FileNotFoundError, BlockingIOError):
        descriptor = os.open(left, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_size > len(MAGIC):
                left.rename(left.with_suffix(SUFFIX))
            else:
                left.unlink()
        finally:
            os.close(descriptor)
