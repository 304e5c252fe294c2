"""Incremental backups, side by side in one folder: each writes only what has changed since the previous one.

LMDB never changes a page that the last checkpoint needs: the next checkpoint writes other pages. So two copies of a
data file differ in about as many pages as were written between them. The second copy stores only these pages.

    NNNN.pages    of each page that differs from number NNNN - 1: page number 8 | the page
    NNNN.hashes   of every page of the data file: BLAKE2b of 16 bytes
    NNNN.json     the backup itself: it counts once this file exists, and the other two are on disk

Number 0000 has all pages. A restore assembles the data file from the backups up to a number. The file is right when
every page has the hash noted in the last of them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from hashlib import blake2b, file_digest, sha256
from io import BytesIO
from pathlib import Path
from typing import Final

import lmdb
import msgspec

from storage.copies import alone_in, data_file, new_folder, reading
from storage.disk import LOST_AND_FOUND, OF_OWNER, make_folder, sync
from storage.errors import DataFolderError, StorageError
from storage.keys import IDENTITY
from storage.meta_pages import DATA_FILE, last_page_of, state_of, transaction_of

FORMAT: Final = 1
"""The format of the three files; later formats are refused."""

_HASH_SIZE: Final = 16
_NUMBER_SIZE: Final = 8

_OLDER: Final = "try an older one, with --number"
_WAYS_OUT: Final = (
    "begin a new backup in another folder; to restore, name an older one with --number"
)
"""What to do about a damaged backup: the second also when another one was to be made."""


@dataclass(frozen=True)
class Increment:
    """One backup of a chain. `taken_ms` is when it began, epoch ms. `changed` is how many pages it stores itself.
    `before` is the digest of the hashes of the previous backup, on which it builds. `identity` is the data folder's
    (`IDENTITY` in `keys`), in hexadecimal digits; None if it has none yet."""

    number: int
    taken_ms: int
    page_size: int
    pages: int
    changed: int
    digest: str
    before: str | None
    identity: str | None = None
    format: int = FORMAT

    @property
    def size(self) -> int:
        """The bytes that the backup stores."""
        return self.changed * (_NUMBER_SIZE + self.page_size) + self.pages * _HASH_SIZE


def is_chain(folder: Path) -> bool:
    """Whether a folder has such backups, complete or not."""
    return bool(_numbers(folder))


def read_chain(folder: Path, last: int | None = None) -> list[Increment]:
    """Return the backups of a folder, the oldest first.

    :param last: leave out those after the one of this number, which does not build on them.
    :raises DataFolderError: when they do not build on each other.
    """
    chain: list[Increment] = []
    for number in _numbers(folder):
        path = _path(folder, number, "json")
        try:
            found = msgspec.json.decode(path.read_bytes(), type=Increment)
        except OSError as error:
            raise DataFolderError(
                f"{path} cannot be read: {error.strerror}; {_WAYS_OUT}"
            ) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DataFolderError(f"{path} is damaged ({error}): {_WAYS_OUT}") from error
        if found.format != FORMAT:
            raise DataFolderError(f"{folder} was written by a later version of Tidegate")
        before = chain[-1].digest if chain else None
        if number != len(chain) or found.number != number or found.before != before:
            raise DataFolderError(
                f"{folder}: backup {number:04} does not build on the one before it: {_WAYS_OUT}"
            )
        chain.append(found)
        if number == last:
            break
    return chain


def _numbers(folder: Path) -> list[int]:
    return sorted(int(file.stem) for file in folder.glob("*.json") if file.stem.isdecimal())


def back_up_changes(data: Path, folder: Path) -> Increment:
    """Add a backup to a folder, which is created if it is missing. A gateway may serve meanwhile.

    The whole data file is read, and the pages that changed since the last backup are written.

    :raises DataFolderError: when there is nothing to copy, or the folder contains anything else than such backups.
    :raises StorageError: when the backup could not be written. The earlier backups are then unchanged.
    """
    with reading(data, older=True) as environment, _locked(folder):
        chain = read_chain(folder)
        number = len(chain)
        page_size = environment.stat()["psize"]
        identity = _identity(environment)
        before = None
        if chain:
            if identity and chain[-1].identity not in (None, identity):
                raise DataFolderError(
                    f"{folder} has backups of another data folder than {data}: choose another folder"
                )
            if chain[-1].page_size != page_size:
                raise DataFolderError(
                    f"{folder} has backups of a machine with another page size: choose another folder"
                )
            before = _checked_hashes(folder, chain[-1])
            for one in chain:
                _check_pages(folder, one)
        taken_ms = time.time_ns() // 1_000_000
        try:
            pages = _pages(data, environment, page_size)
            count, changed, digest = _keep_changed(folder, number, pages, before)
            follows = chain[-1].digest if chain else None
            made = Increment(number, taken_ms, page_size, count, changed, digest, follows, identity)
            _write_last(folder, made)
        except BaseException as error:
            # An incomplete backup must not count.
            files = [_path(folder, number, kind) for kind in ("json", "pages", "hashes")]
            for file in (*files, _unfinished(folder, number)):
                # After an error, a file system is often read-only.
                with suppress(OSError):
                    file.unlink(missing_ok=True)
            if not isinstance(error, OSError | lmdb.Error):
                raise
            # The disk of either folder may be full or failing.
            reason = getattr(error, "strerror", None) or error
            raise StorageError(f"{data} could not be copied to {folder}: {reason}") from error
        return made


def restore_changes(folder: Path, data: Path, number: int | None = None) -> int:
    """Create a data folder from a backup and the backups that it builds on.

    :param number: the number of the backup; the last one by default.
    :returns: the size of the data file, in bytes.
    :raises DataFolderError: when there is no such backup, or a page has changed since it was written.
    :raises StorageError: when the data folder could not be written.
    """
    chain = read_chain(folder, number)
    if not chain:
        raise DataFolderError(f"{folder} has no backups")
    if number is not None and not 0 <= number < len(chain):
        raise DataFolderError(f"{folder} has the backups 0 to {len(chain) - 1}, not {number}")
    wanted = chain[: number + 1] if number is not None else chain
    last = wanted[-1]
    hashes = _checked_hashes(folder, last)
    with new_folder(data, OF_OWNER) as unfinished:
        with (unfinished / DATA_FILE).open("w+b") as file, hashes.open("rb") as noted:
            file.truncate(last.pages * last.page_size)
            for one in wanted:
                for page_number, page in _kept(folder, one):
                    if page_number < last.pages:
                        file.seek(page_number * last.page_size)
                        file.write(page)
            file.seek(0)
            for page_number in range(last.pages):
                if _hash(file.read(last.page_size)) != noted.read(_HASH_SIZE):
                    raise DataFolderError(
                        f"{folder}: page {page_number} of backup {last.number:04} is damaged: {_OLDER}"
                    )
        return last.pages * last.page_size


def _identity(environment: lmdb.Environment) -> str | None:
    meta = environment.open_db(b"meta", create=False)
    with environment.begin() as txn:
        found = txn.get(IDENTITY, db=meta)
    return found.hex() if found is not None else None


def _hash(page: bytes) -> bytes:
    return blake2b(page, digest_size=_HASH_SIZE).digest()


def _path(folder: Path, number: int, kind: str) -> Path:
    return folder / f"{number:04}.{kind}"


def _unfinished(folder: Path, number: int) -> Path:
    """Return the file that becomes the `json` of a backup."""
    return folder / f".{number:04}.json"


def _checked_hashes(folder: Path, one: Increment) -> Path:
    """Return the file with the hashes of a backup, once they are known to be whole."""
    path = _path(folder, one.number, "hashes")
    try:
        with path.open("rb") as file:
            digest, size = file_digest(file, sha256).hexdigest(), file.tell()
    except OSError as error:
        raise DataFolderError(f"{path} cannot be read: {error.strerror}; {_WAYS_OUT}") from error
    if size != one.pages * _HASH_SIZE or digest != one.digest:
        raise DataFolderError(f"{path} is damaged: {_WAYS_OUT}")
    return path


def _check_pages(folder: Path, one: Increment) -> None:
    """Check that the pages of a backup are there: later backups could not be restored without them."""
    path = _path(folder, one.number, "pages")
    try:
        size = path.stat().st_size
    except OSError as error:
        raise DataFolderError(
            f"{path} cannot be read: {error.strerror}; begin a new backup in another folder"
        ) from error
    if size != one.changed * (_NUMBER_SIZE + one.page_size):
        raise DataFolderError(f"{path} is damaged: begin a new backup in another folder")


def _kept(folder: Path, one: Increment) -> Iterator[tuple[int, bytes]]:
    """Return the pages that a backup stores itself, with their numbers."""
    path = _path(folder, one.number, "pages")
    size = _NUMBER_SIZE + one.page_size
    try:
        with path.open("rb") as file:
            for _ in range(one.changed):
                row = file.read(size)
                if len(row) != size:
                    raise DataFolderError(f"{path} is too short: {_OLDER}")
                yield int.from_bytes(row[:_NUMBER_SIZE]), row[_NUMBER_SIZE:]
    except OSError as error:
        raise DataFolderError(f"{path} cannot be read: {error.strerror}; {_OLDER}") from error


def _pages(data: Path, environment: lmdb.Environment, page_size: int) -> Iterator[bytes]:
    """Return every page of the data file as of the last checkpoint, free pages included.

    LMDB's own copy function waits for the writers' lock, which a gateway holds all the time.
    """
    with environment.begin() as txn, data_file(data).open("rb") as file:
        # The two meta pages describe the last two transactions, and one of them is this view's transaction. The open
        # view protects its pages from reuse, but not its meta page, so that must be read at once.
        for page in (file.read(page_size), file.read(page_size)):
            state = state_of(page)
            if transaction_of(state) == txn.id():
                break
        else:
            raise StorageError("the data file is written too fast to be copied: try again")
        yield (0).to_bytes(_NUMBER_SIZE, sys.byteorder) + page[_NUMBER_SIZE:]
        yield (1).to_bytes(_NUMBER_SIZE, sys.byteorder) + page[_NUMBER_SIZE:]
        for _ in range(2, last_page_of(state) + 1):
            # The file can end before its last page if that page is free.
            yield file.read(page_size).ljust(page_size, b"\0")


def _keep_changed(
    folder: Path, number: int, pages: Iterable[bytes], before: Path | None
) -> tuple[int, int, str]:
    """Write the hashes of a backup's pages, and the pages that differ from the previous backup.

    :param before: the file with the hashes of the previous backup, if there is one.
    :returns: how many pages there are, how many of them differ, and the digest of the hashes.
    """
    count = changed = 0
    digest = sha256()
    with (
        _path(folder, number, "pages").open("wb") as kept,
        _path(folder, number, "hashes").open("wb") as hashes,
        before.open("rb") if before is not None else BytesIO() as earlier,
    ):
        for count, page in enumerate(pages, 1):
            own = _hash(page)
            hashes.write(own)
            digest.update(own)
            if earlier.read(_HASH_SIZE) != own:
                kept.write((count - 1).to_bytes(_NUMBER_SIZE) + page)
                changed += 1
        for file in (kept, hashes):
            file.flush()
            os.fsync(file.fileno())
    return count, changed, digest.hexdigest()


def _write_last(folder: Path, made: Increment) -> None:
    """Make a backup count, once the rest of it is on disk."""
    sync(folder)
    unfinished = _unfinished(folder, made.number)
    with unfinished.open("w") as file:
        json.dump(asdict(made), file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(_path(folder, made.number, "json"))
    sync(folder)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other backups out of the folder."""
    try:
        make_folder(folder)
        if not is_chain(folder) and not all(map(_may_be_there, folder.iterdir())):
            raise DataFolderError(
                f"{folder} has other things in it: choose a folder for backups alone"
            )
    except OSError as error:
        raise DataFolderError(f"cannot write to {folder}: {error.strerror}") from error
    with alone_in(folder):
        yield


def _may_be_there(file: Path) -> bool:
    """Whether the folder of a first backup may contain a file."""
    return file.suffix in _OURS or file.name == LOST_AND_FOUND


_OURS: Final = (".pages", ".hashes", ".json")
"""The files that a killed first backup leaves."""
