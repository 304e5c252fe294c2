"""Helpers for the disk: syncing files and folders, making folders, and the free space."""

from __future__ import annotations

import os
from errno import ENOENT
from pathlib import Path
from typing import Final

LOST_AND_FOUND: Final = "lost+found"
"""The folder in a new file system (ext4). A folder that contains nothing else counts as empty."""

OF_OWNER: Final = 0o700
"""The mode of a new data folder: it has messages and users' keys, which only its owner may read."""


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make a missing folder with its parents, and sync their names to disk.

    :param mode: of the folder itself, reduced by the umask.
    :raises OSError: when one cannot be made.
    """
    if not path.exists():
        check_link(path)
        make_folder(path.parent)
        path.mkdir(mode, exist_ok=True)
        sync(path.parent)


def check_link(path: Path) -> None:
    """Refuse a link to something that does not exist, such as a folder on a disk that is not mounted.

    :raises FileNotFoundError: when the path is one. Its `strerror` says where the link leads.
    """
    if path.is_symlink() and not path.exists():
        reason = f"it is a link to {path.readlink()}, which does not exist"
        raise FileNotFoundError(ENOENT, reason, str(path))


def sync(path: Path) -> None:
    """Sync a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def free_bytes(path: Path | int) -> int:
    """Return the bytes that the disk of a file or folder has free for this user. An open file is given by its
    descriptor."""
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize
