"""Having the disk hold what was written."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Have the disk hold a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
