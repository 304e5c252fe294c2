"""The disk: having it hold what was written or made, and what it has free."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

LOST_AND_FOUND: Final = "lost+found"
"""The folder with which a new file system begins (ext4): a folder that has nothing else is empty."""

OF_OWNER: Final = 0o700
"""Mode of a data folder that is made: it has messages, and keys of users, that are for its owner alone."""


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder where it is missing, and those above it, and have the disk hold their names.

    :param mode: of the folder itself, but for what the umask takes away.
    """
    if not path.exists():
        make_folder(path.parent)
        path.mkdir(mode, exist_ok=True)
        sync(path.parent)


def sync(path: Path) -> None:
    """Have the disk hold a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def free_bytes(path: Path | int) -> int:
    """What the disk of a file or folder has free for this user; one that is open is named by its descriptor."""
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize
