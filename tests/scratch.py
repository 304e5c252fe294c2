"""Folders for a test, in memory if possible.

Tests open and close stores thousands of times, with some twenty syncs each. None of them outlives the machine, so none
needs to wait for a disk. Live tests are on the disk all the same: a sync takes time there, in which things may happen.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_MEMORY_DISK: Final = "/dev/shm"
_ROOM_BYTES: Final = 2 << 30
"""How much must be free there. In a container it is often next to nothing."""


def scratch_place() -> str | None:
    """Return where to put folders of tests; None for the system's default, which TMPDIR sets."""
    has_memory_disk = (
        "TMPDIR" not in os.environ
        and os.access(_MEMORY_DISK, os.W_OK)
        and shutil.disk_usage(_MEMORY_DISK).free >= _ROOM_BYTES
    )
    return _MEMORY_DISK if has_memory_disk else None


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="tidegate-test-", dir=scratch_place()) as folder:
        yield Path(folder)
