"""What can go wrong in the storage room."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import lmdb

Error = TypeVar("Error")

_DAMAGE = (
    lmdb.InvalidError,
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.BadTxnError,
    lmdb.BadDbiError,
    lmdb.IncompatibleError,
)
"""What LMDB says of a file that it cannot read."""


class StorageError(Exception):
    """A batch, or opening the database, failed; the text is one line a person can act on."""


class StorageFullError(StorageError):
    """There is no room for the batch; nothing of it was stored."""


class DamagedError(StorageError):
    """A row that was needed cannot be read. Whoever can do without goes on; the text names what is damaged."""


class RestartNeededError(StorageError):
    """LMDB has given up, or the disk did not take what it wrote: nothing can be stored until the folder is opened anew,
    which finds everything that was stored."""


class DataFolderError(StorageError):
    """The data folder cannot be used: in use, not writable, or of another format."""


class FolderInUseError(DataFolderError):
    """A process serves from the data folder, or repairs it."""


def cannot_read(folder: Path, error: Exception) -> DataFolderError:
    """What is said of a data folder that has a row which cannot be read."""
    return DataFolderError(f"{folder} is damaged ({error}): see 'tidegate fsck --data {folder}'")


def cannot_use(verb: str, folder: Path, error: Exception) -> DataFolderError:
    """What is said of a data folder that cannot be opened or read, as the verb has it."""
    # LMDB begins some texts with the folder.
    reason = str(error).removeprefix(f"{folder}: ")
    return DataFolderError(f"cannot {verb} the data folder {folder}: {reason}{way_out(error)}")


def as_told(error: Error) -> Error | StorageError:
    """What is to be said of an error that came of reading what is stored: of LMDB's own a `StorageError`, any other
    as it is."""
    if isinstance(error, lmdb.Error):
        return StorageError(f"LMDB cannot read what is stored: {error}{way_out(error)}")
    return error


def way_out(error: Exception) -> str:
    """What is said behind an error of LMDB's, where it means that the file is damaged."""
    return "; data.mdb is damaged: restore a backup" if isinstance(error, _DAMAGE) else ""
