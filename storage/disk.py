"""The disk: having it hold what was written, and what it has free."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

LOST_AND_FOUND: Final = "lost+found"
"""The folder with which a new file system begins (ext4): a folder that has nothing else is empty."""

OF_OWNER: Final = 0o700
"""Mode of a data folder that is made: it has messages, and keys of users, that are for its owner alone."""


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
