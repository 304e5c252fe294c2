"""The redo log: what batches have changed since the last checkpoint, in front of LMDB.

A batch is one record, appended and synced: a few pages side by side where LMDB would write, and sync twice, every page
of every table that the batch touches, with all pages above it. The file is written from its beginning again after each
checkpoint, so it never grows beyond what two of them are apart.

    record   length of the rows 4 | CRC-32 of stamp and rows 4 | stamp 8 | rows
    rows     MessagePack: {table: [[key, value or nil where the row goes], ...], ...}

The stamp is the one that the last checkpoint left in `meta` (`STAMP`): records of another one are left from before, and
LMDB has what they say. The log ends at the first record that is not whole or has another stamp.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from errno import EIO, ENOSPC
from pathlib import Path
from struct import Struct
from typing import Final
from zlib import crc32

import msgspec

from storage.disk import sync as sync_path

LOG_FILE: Final = "redo.log"

STAMP: Final = b"redo log"
"""Name in `meta`: the stamp of the records that are to be done again. It is random, so that no
record of another time or folder has it."""

MAX_LOG: Final = 24 << 20
"""Bytes that the file grows to at most. What does not fit makes a checkpoint."""

GAP: Final = (
    f"a record of {LOG_FILE} could not be read: batches that were stored after it, up to some seconds before the last "
    "stop, are gone; docs/disaster-recovery.md"
)
"""What an operator is told of `RedoLog.has_gap`."""

_GROWTH: Final = 1 << 18
"""Bytes that the file grows by at least. Growing costs the file system's journal a write; writing over what is there
costs none."""

_HEADER: Final = Struct(">II8s")

Row = tuple[bytes, bytes | None]
"""A key, and its value, or None where the row goes."""

_decoder: Final = msgspec.msgpack.Decoder(dict[str, list[Row]])
_encoder: Final = msgspec.msgpack.Encoder()


class RedoLog:
    """The log of a data folder, open for writing.

    :param sync: whether `append` returns only when the disk holds what it wrote.
    :raises OSError: when the file cannot be opened.
    """

    def __init__(self, folder: Path, *, sync: bool) -> None:
        self._file = os.open(folder / LOG_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._sync = sync
        self._stamp = b""
        self._room = os.fstat(self._file).st_size
        if not self._room:
            # A file that is on the disk counts for nothing while its name is not.
            sync_path(folder)
        self.size = 0
        """Bytes of records that are to be done again."""
        self.has_gap = False
        """Whether a record of the last process could not be read that others follow: a power cut without `sync`, or a
        damaged file. Those others are not read either; a checkpoint is needed before anything is appended."""

    def records(self, stamp: bytes) -> Iterator[dict[str, list[Row]]]:
        """The rows of each record with a stamp; what is appended after the last of them follows it.

        :raises OSError: when they cannot be read, or are no longer what this process wrote.
        """
        is_known = stamp == self._stamp
        # Behind its own records there may be one that was refused and could not be taken back.
        log = os.pread(self._file, self.size if is_known else self._room, 0)
        end = 0
        for record_end, rows in _records(log, stamp):
            end = record_end
            yield rows
        if not is_known:
            self._stamp = stamp
            self.size = end
            self.has_gap = log.find(stamp, end + _HEADER.size) >= 0
        elif end != self.size:
            raise OSError(EIO, f"{LOG_FILE} is not what was written to it")

    def restart(self, stamp: bytes) -> None:
        """Begin anew: LMDB has everything, and this stamp."""
        self._stamp = stamp
        self.size = 0

    def append(self, rows: Mapping[str, list[Row]]) -> bool:
        """Write a record.

        :returns: False when there is no room for it: nothing is written.
        :raises OSError: when it cannot be written. It will not be done again.
        """
        packed = _encoder.encode(rows)
        head = _HEADER.pack(len(packed), crc32(packed, crc32(self._stamp)), self._stamp)
        end = self.size + len(head) + len(packed)
        if end > self._room and not self._grow(end):
            return False
        try:
            self._write(head + packed, self.size)
            if self._sync:
                os.fdatasync(self._file)
        except OSError:
            with suppress(OSError):
                os.pwrite(self._file, bytes(_HEADER.size), self.size)
            raise
        self.size = end
        return True

    def sync(self) -> None:
        """Have the disk hold all records. Another thread may call it."""
        os.fdatasync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _grow(self, needed: int) -> bool:
        if needed > MAX_LOG:
            return False
        size = min(MAX_LOG, max(needed, 2 * self._room, _GROWTH))
        # Zeros, not a hole: the first writing into a hole changes the file's map of blocks.
        self._write(bytes(size - self._room), self._room)
        os.fsync(self._file)
        self._room = size
        return True

    def _write(self, content: bytes, at: int) -> None:
        if os.pwrite(self._file, content, at) < len(content):
            raise OSError(ENOSPC, os.strerror(ENOSPC))


def new_stamp() -> bytes:
    """A stamp that no record has."""
    return os.urandom(8)


def has_records(folder: Path, stamp: bytes) -> bool:
    """Whether the log of a folder, which another process may be writing to, has records with a stamp, whole or not."""
    try:
        log = (folder / LOG_FILE).read_bytes()
    except FileNotFoundError:
        return False
    return stamp in log


def _records(log: bytes, stamp: bytes) -> Iterator[tuple[int, dict[str, list[Row]]]]:
    """The rows of each record with a stamp, and where it ends."""
    at = 0
    while at + _HEADER.size <= len(log):
        length, check, own = _HEADER.unpack_from(log, at)
        packed = log[at + _HEADER.size : at + _HEADER.size + length]
        if own != stamp or len(packed) < length or crc32(packed, crc32(stamp)) != check:
            return
        at += _HEADER.size + length
        yield at, _decoder.decode(packed)
