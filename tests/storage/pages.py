"""Pages of a data folder's file: where they are, what is on them, and wrong ones in their place."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from storage.meta_pages import DATA_FILE, newest_state
from storage.pages import Tree, _pages, find_trees

ZEROS = bytes(mmap.PAGESIZE)


def tree_of(data: Path, table: str) -> Tree:
    """Return where a table is in the file."""
    with (data / DATA_FILE).open("rb") as file:
        return find_trees(file.fileno(), newest_state(file.fileno()))[table]


def leaves_of(data: Path, table: str) -> list[int]:
    """Return the leaf pages of a table, in the order of their rows."""
    with (data / DATA_FILE).open("rb") as file:
        state = newest_state(file.fileno())
        found = _pages(file.fileno(), state, tree_of(data, table), [])
        return [page.place.page for page in found if page.rows]


def content_of(data: Path, page: int) -> bytes:
    """Return the bytes of a page."""
    with (data / DATA_FILE).open("rb") as file:
        return os.pread(file.fileno(), mmap.PAGESIZE, page * mmap.PAGESIZE)


def overwrite(data: Path, page: int, content: bytes = ZEROS) -> None:
    """Replace the bytes of a page."""
    with (data / DATA_FILE).open("r+b") as file:
        os.pwrite(file.fileno(), content, page * mmap.PAGESIZE)
