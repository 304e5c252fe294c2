"""The redo log: what batches have changed since the last checkpoint, in front of LMDB.

A batch is one record, which is appended and synced: a few consecutive pages. LMDB instead would write, and sync twice,
every page of every table that the batch touches, with all pages above it. There are two files, and each checkpoint
switches to the beginning of the other one. The old file is needed until the checkpoint is on disk.

    record   length of the rows 4 | CRC-32 of stamp and rows 4 | stamp 8 | rows
    rows     MessagePack: {table: [[key, value or nil if the row is deleted], ...], ...}

The stamp is the one that the last checkpoint left in `meta` (`STAMP` in `keys`). Records with another stamp are old,
and LMDB has their changes. The log ends at the first record that is not whole or has another stamp. The first record
after a checkpoint also says what it follows, under a key that is no table's name: the previous stamp, and where the
records of that stamp ended.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, suppress
from errno import EIO, ENOSPC
from pathlib import Path
from struct import Struct
from time import monotonic
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from storage.disk import sync as sync_path

LOG_FILES: Final = ("redo.log", "redo-2.log")

MAX_LOG: Final = 24 << 20
"""The most bytes of a file. A record that does not fit makes a checkpoint."""

GAP: Final = (
    "a record of the redo log could not be read: batches that were stored after it, up to some seconds before the last "
    "stop, are lost; see docs/disaster-recovery.md"
)
"""The warning for the operator about `RedoLog.has_gap`."""

TORN: Final = (
    "the last record of the redo log is incomplete and was skipped: a process died while it wrote it, and no client "
    "had its answer, unless the disk has damaged it since; see docs/disaster-recovery.md"
)
"""The warning for the operator about `RedoLog.is_torn`."""

_FIRST_GROWTH: Final = 1 << 18
_MOST_GROWTH: Final = 1 << 21
"""Bytes that a file grows by. It doubles until the steps reach `_MOST_GROWTH`, and then grows by that much each time.
Growth costs the file system's journal a write; overwriting existing bytes costs none."""

_GROWN_AT_ONCE: Final = 1 << 12
"""Bytes that growth writes at once. The page cache keeps as one folio what is written at once, up to 2 MiB. A sync may
write whole folios, however little of them has changed (seen on one machine, with Linux 6.18: 1 MiB for 16 sends), and
the kernel counts them as written in any case."""

_FOLLOWS: Final = ""
"""Used instead of a table's name, for one row: the stamp that a record follows, and the size of that log."""

_HEADER: Final = Struct(">II8s")

_STAMP_BYTES: Final = 8

_FIRST_BYTES: Final = _HEADER.size + 16
"""Bytes of a record that says what it follows: its header, and the stamp that it follows. A disk writes them
together."""

Row = tuple[bytes, bytes | None]
"""A key and its value, or None if the row is deleted."""

_decoder: Final = msgspec.msgpack.Decoder(dict[str, list[Row]])
_encoder: Final = msgspec.msgpack.Encoder()


class RedoLog:
    """The log of a data folder, open for writing.

    :param sync: whether `append` returns only when the disk has what it wrote.
    :raises OSError: when its files cannot be opened.
    """

    def __init__(self, folder: Path, *, sync: bool) -> None:
        self.syncs = sync
        self.written_at = self.held_at = 0.0
        """When `append` last wrote a record without a sync, and the time up to which `sync` has put such records on
        disk. Both are times of `monotonic`."""
        self.failures = 0
        """How many records could not be written."""
        self.failure: OSError | None = None
        """Why the last of these could not be; None if there is none."""
        self.fails = False
        """Whether the last record could not be written."""
        self._stamp = b""
        self._current = 0
        self._follows: dict[str, list[Row]] = {}
        self.size = 0
        """Bytes of records since the last checkpoint, which a restart must apply."""
        self.has_gap = False
        """Whether the log of the last process has a record that cannot be read, with others behind it. That happens
        after a power cut without `sync`, or in a damaged file. It is also True if the file ends within a record, so
        that others may have been cut off, and if `meta` has lost the stamp, so that any record may be missing. The
        later records are not read either."""
        self.is_torn = False
        """Whether the record read last has this log's stamp but is not whole, with no other record behind it."""
        with ExitStack() as opened:
            self._files = tuple(_File(folder / name, opened) for name in LOG_FILES)
            if not all(file.room for file in self._files):
                # A file's content on disk is useless as long as its name is not on disk.
                sync_path(folder)
            self._opened = opened.pop_all()

    def records(self, stamp: bytes) -> Iterator[dict[str, list[Row]]]:
        """Return the rows of each record with a stamp, and of the records after a checkpoint that was lost. The next
        append goes behind the last of them.

        :raises OSError: when they cannot be read, or are no longer what this process wrote.
        """
        if len(stamp) != _STAMP_BYTES:
            # The stamp is damaged, and nobody can tell which records must be applied.
            self.has_gap = any(any(file.read(_HEADER.size)) for file in self._files)
            return
        if stamp == self._stamp:
            yield from self._own_records()
            return
        logs = [file.read(file.room) for file in self._files]
        links = [_link(log) for log in logs]
        current, last = _find(logs, links, stamp), stamp
        end = yield from _records(logs[current], last)
        link = links[1 - current]
        if link is None or link.before != stamp:
            has_gap = _has_lost_first(logs[1 - current], stamp)
        elif link.size_before != end:
            has_gap = True
        else:
            current, last = 1 - current, link.stamp
            end = yield from _records(logs[current], last)
            has_gap = False
        if end:
            # A process may have died between writing a record and its sync. From now on the record is relied on.
            self.sync()
        # If both files are needed, more records follow those of this stamp: the next call must read both again.
        self._stamp = stamp if last == stamp else b""
        self._current = current
        self.size = end
        self.has_gap = (
            has_gap
            or logs[current].find(last, end + _HEADER.size) >= 0
            or _is_cut(logs[current], last, end)
        )
        self.is_torn = logs[current].startswith(last, end + _HEADER.size - _STAMP_BYTES)

    @property
    def trouble(self) -> str | None:
        """A warning for the operator about what was read, in one line."""
        return GAP if self.has_gap else TORN if self.is_torn else None

    @property
    def needs_checkpoint(self) -> bool:
        """Whether a checkpoint must be made, and be on disk, before the next append: the log that was read has a gap,
        both files have records that must be applied, or `meta` has no stamp by which records would be found again."""
        return self.has_gap or not self._stamp

    def restart(self, stamp: bytes) -> None:
        """Begin anew in the other file, as LMDB has all records and this stamp. The other file must no longer be
        needed: the previous checkpoint must be on disk."""
        self._follows = {_FOLLOWS: [(self._stamp, self.size.to_bytes(4))]}
        self._stamp = stamp
        self._current = 1 - self._current
        self.size = 0

    def append(self, rows: Mapping[str, list[Row]]) -> bool:
        """Write a record.

        :returns: False when there is no room for it, and nothing is written.
        :raises OSError: when it cannot be written. A restart will not apply it.
        """
        packed = _encoder.encode(rows if self.size else {**self._follows, **rows})
        head = _HEADER.pack(len(packed), crc32(packed, crc32(self._stamp)), self._stamp)
        end = self.size + len(head) + len(packed)
        file = self._files[self._current]
        if not file.has_room(end):
            return False
        try:
            file.write(head + packed, self.size)
            if self.syncs:
                file.sync()
            else:
                self.written_at = monotonic()
        except OSError:
            with suppress(OSError):
                file.write(bytes(_HEADER.size), self.size)
                file.sync()
            raise
        self.size = end
        return True

    def sync(self) -> None:
        """Sync all records to disk. Another thread may call it."""
        # Records written after a checkpoint count only together with all records written before it.
        begun, current = monotonic(), self._current
        self._files[1 - current].sync()
        self._files[current].sync()
        self.held_at = begun

    def close(self) -> None:
        """Close the files."""
        self._opened.close()

    def _own_records(self) -> Iterator[dict[str, list[Row]]]:
        """Return the records that this process has written or read. Behind them there may be one that was refused and
        could not be erased."""
        log = self._files[self._current].read(self.size)
        end = yield from _records(log, self._stamp)
        if end != self.size:
            raise OSError(EIO, "the redo log is not what was written to it")


class _File:
    """One of the two files.

    :param opened: closes the file.
    """

    def __init__(self, path: Path, opened: ExitStack) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        opened.callback(os.close, self._file)
        self.room = os.fstat(self._file).st_size
        """Bytes that can be written without growing."""

    def read(self, size: int) -> bytes:
        """Return the first `size` bytes."""
        return os.pread(self._file, size, 0)

    def has_room(self, end: int) -> bool:
        """Whether a record may end at `end`. The file grows if it must."""
        if end <= self.room:
            return True
        if end > MAX_LOG:
            return False
        size = min(MAX_LOG, max(end, self.room + min(max(self.room, _FIRST_GROWTH), _MOST_GROWTH)))
        # Zeros, not a hole: the first write into a hole changes the file's block map.
        for at in range(self.room, size, _GROWN_AT_ONCE):
            self.write(bytes(min(_GROWN_AT_ONCE, size - at)), at)
        os.fsync(self._file)
        self.room = size
        return True

    def write(self, content: bytes, at: int) -> None:
        """Write all of the content."""
        if os.pwrite(self._file, content, at) < len(content):
            raise OSError(ENOSPC, os.strerror(ENOSPC))

    def sync(self) -> None:
        """Sync what was written to disk."""
        os.fdatasync(self._file)


def new_stamp() -> bytes:
    """Return a stamp that no record has."""
    return os.urandom(_STAMP_BYTES)


def has_records(folder: Path, stamp: bytes) -> bool:
    """Whether the log of a folder has records with a stamp, whole or not. Another process may be writing to it."""
    for name in LOG_FILES:
        with suppress(FileNotFoundError):
            if stamp in (folder / name).read_bytes():
                return True
    return False


class _Link(NamedTuple):
    """What the first record of a file says: its stamp, and the stamp and size of the records that it follows."""

    stamp: bytes
    before: bytes
    size_before: int


def _link(log: bytes) -> _Link | None:
    """Read the link of a file; None when its first record is not whole, or follows nothing."""
    if len(log) < _HEADER.size:
        return None
    stamp = _HEADER.unpack_from(log)[2]
    for _, rows in _whole_records(log, stamp):
        for before, size in rows.get(_FOLLOWS, ()):
            return _Link(stamp, before, int.from_bytes(size or b""))
        break
    return None


def _has_lost_first(log: bytes, before: bytes) -> bool:
    """Whether a file's first record, which cannot be read, followed the records with stamp `before`. Its first bytes
    show that, and later records with its stamp show that it was once whole. A refused record no longer has a stamp."""
    stamp = log[_HEADER.size - len(before) : _HEADER.size]
    follows = before in log[_HEADER.size : _FIRST_BYTES]
    return follows and any(stamp) and log.find(stamp, _HEADER.size) >= 0


def _is_cut(log: bytes, stamp: bytes, at: int) -> bool:
    """Whether a file ends within its record at an offset: it was cut short since, as files grow before they are written
    to. In a file of a size to which it grows, not the file but the record's length is damaged."""
    if at + _HEADER.size > len(log) or len(log) % _FIRST_GROWTH == 0:
        return False
    length, _, own = _HEADER.unpack_from(log, at)
    return bool(own == stamp and length > len(log) - at - _HEADER.size)


def _find(logs: list[bytes], links: list[_Link | None], stamp: bytes) -> int:
    """Return the number of the file with the records of a stamp, of which the first may be damaged. When there are
    none, either number is right."""
    for number, log in enumerate(logs):
        if log[_HEADER.size - len(stamp) : _HEADER.size] == stamp:
            return number
    for number, link in enumerate(links):
        if link is not None and link.before == stamp:
            return 1 - number
    return int(stamp in logs[1])


def _records(log: bytes, stamp: bytes) -> Generator[dict[str, list[Row]], None, int]:
    """Yield the rows of each record with a stamp. Return where the last of them ends."""
    end = 0
    for record_end, rows in _whole_records(log, stamp):
        end = record_end
        rows.pop(_FOLLOWS, None)
        yield rows
    return end


def _whole_records(log: bytes, stamp: bytes) -> Iterator[tuple[int, dict[str, list[Row]]]]:
    at = 0
    while at + _HEADER.size <= len(log):
        length, check, own = _HEADER.unpack_from(log, at)
        packed = log[at + _HEADER.size : at + _HEADER.size + length]
        if own != stamp or len(packed) < length or crc32(packed, crc32(stamp)) != check:
            return
        at += _HEADER.size + length
        yield at, _decoder.decode(packed)
