"""The errors of the storage package."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final, TypeVar

import lmdb

Error = TypeVar("Error")

DAMAGE: Final = (
    lmdb.InvalidError,
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.BadTxnError,
    lmdb.BadDbiError,
    lmdb.IncompatibleError,
)
"""The errors that LMDB raises for a file that it cannot read."""

_WAY_OUT: Final = (
    "; data.mdb is damaged: restore a backup, unless 'tidegate fsck --repair' can repair it"
)


class StorageError(Exception):
    """A batch, or opening the database, failed. The text is one line that a person can act on."""


class StorageFullError(StorageError):
    """There is no room for the batch; nothing of it was stored."""


class DamagedError(StorageError):
    """A row that is needed cannot be read. A caller that can do without it goes on. The text names what is damaged."""


class RestartNeededError(StorageError):
    """LMDB has given up, or the disk failed to write a checkpoint. Nothing can be stored until the folder is opened
    again, which finds everything that was stored."""


class DataFolderError(StorageError):
    """The data folder cannot be used: it is in use, not writable, or of another format."""


class FolderInUseError(DataFolderError):
    """Another process serves from the data folder, or repairs it."""


class FolderBeingCopiedError(FolderInUseError):
    """Another process reads a state of the data folder that a start would overwrite."""


def check_command(folder: Path) -> str:
    """Return the command that checks a data folder, to be pasted into a shell."""
    return f"tidegate fsck --data {shlex.quote(str(folder))}"


def cannot_read(folder: Path, error: Exception) -> DataFolderError:
    """Return the error for a data folder with a row that cannot be read."""
    return DataFolderError(f"{folder} is damaged ({error}): see '{check_command(folder)}'")


def cannot_use(verb: str, folder: Path, error: Exception) -> DataFolderError:
    """Return the error for a data folder that cannot be used; `verb` says for what ("open", "read")."""
    # LMDB begins some texts with the folder.
    reason = str(error).removeprefix(f"{folder}: ")
    return DataFolderError(f"cannot {verb} the data folder {folder}: {reason}{way_out(error)}")


def as_told(error: Error) -> Error | StorageError:
    """Return the error to report when reading the store failed: a `StorageError` for an error of LMDB's own, any other
    error unchanged."""
    if isinstance(error, lmdb.Error):
        return StorageError(f"LMDB cannot read what is stored: {error}{way_out(error)}")
    return error


def way_out(error: Exception) -> str:
    """Return advice to append to an error of LMDB's: what to do if the file is damaged, or has no room in memory."""
    if isinstance(error, lmdb.MemoryError):
        return "; LMDB maps its whole file: let the process have more address space (ulimit -v, LimitAS of systemd)"
    return _WAY_OUT if isinstance(error, DAMAGE) else ""
