"""Free pages as LMDB's file lists them, compared with LMDB's own count."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct
from typing import NamedTuple

import lmdb
import pytest

from storage.meta_pages import (
    DATA_FILE,
    last_page_of,
    newest_state,
    page_size_of,
)
from storage.pages import _free_pages, _nodes, _tree_in, are_free, find_trees, find_wrong_page

DATABASE = Struct("=IHHQQQQQ")
"""MDB_db: page size, flags, depth, branch pages, leaf pages, pages of long values, rows, root."""

META_PAGES = 2

FIRST_NODE_AT = 16
"""Where in a page the position of its first node stands, in bytes."""


class FreeDatabase(NamedTuple):
    """What a state says about its database of free pages."""

    depth: int
    branches: int
    leaves: int
    of_long_values: int


def free_database(state: bytes) -> FreeDatabase:
    return FreeDatabase(*DATABASE.unpack_from(state)[2:6])


@contextmanager
def newest(folder: Path) -> Iterator[tuple[int, bytes]]:
    """Open a folder's file, and yield it with its newest state."""
    with (folder / DATA_FILE).open("rb") as file:
        yield file.fileno(), newest_state(file.fileno())


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with many free pages. One transaction freed 9,000, which are listed in a long value of more than 64 KiB.
    Hundreds of transactions freed some each, which are listed in rows on many pages. An open view keeps them all from
    reuse."""
    folder = tmp_path_factory.mktemp("free")
    rows = [b"%d" % number for number in range(4_500)]
    with lmdb.open(str(folder), map_size=1 << 28, sync=False, max_dbs=1) as environment:
        table = environment.open_db(b"table")
        with environment.begin(table, write=True) as txn:
            for row in rows:
                txn.put(row, b"x" * 5_000)
        with environment.begin():
            with environment.begin(table, write=True) as txn:
                for row in rows:
                    txn.delete(row)
            for number in range(400):
                with environment.begin(table, write=True) as txn:
                    txn.put(b"now", b"%d" % number * 2_000)
    return folder


def test_lists_of_every_shape_are_read_whole(data: Path) -> None:
    with newest(data) as (file, state):
        own = free_database(state)
        # Otherwise this test proves nothing.
        assert own.depth > 1
        assert own.of_long_values > 1
        free = [page for pages in _free_pages(file, state) for page in pages]
        last = last_page_of(state)
    with lmdb.open(str(data), map_size=1 << 28, readonly=True, max_dbs=1) as environment:
        table = environment.open_db(b"table", create=False)
        with environment.begin() as txn:
            main, rows = environment.stat(), txn.stat(table)
    used = META_PAGES + own.branches + own.leaves + own.of_long_values
    for one in (main, rows):
        used += one["branch_pages"] + one["leaf_pages"] + one["overflow_pages"]
    assert len(set(free)) == len(free) == last + 1 - used
    assert META_PAGES <= min(free) <= max(free) <= last
    with newest(data) as (file, state):
        assert find_wrong_page(file, state) is None


def test_a_file_may_end_where_all_behind_is_free_and_nowhere_else(
    data: Path, tmp_path: Path
) -> None:
    """This also holds where some of the lists are in the part that is cut off."""
    folder = tmp_path / "data"
    shutil.copytree(data, folder)
    with newest(folder) as (file, state):
        free = {page for pages in _free_pages(file, state) for page in pages}
        pages = last_page_of(state) + 1
        last_used = max(set(range(pages)) - free)
        places = {last_used, last_used + 1, pages, pages + 1, *range(META_PAGES, pages, 97)}
        for first in sorted(places, reverse=True):
            os.truncate(folder / DATA_FILE, first * page_size_of(state))
            assert are_free(file, state, first) == (first > last_used)


def test_lists_that_go_round_in_a_circle_are_none(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    shutil.copytree(data, folder)
    with newest(folder) as (file, state):
        size, root = page_size_of(state), _tree_in(state, 0).root
        page = bytearray(os.pread(file, size, root * size))
        node = int.from_bytes(page[FIRST_NODE_AT : FIRST_NODE_AT + 2], sys.byteorder)
        page[node : node + 4] = root.to_bytes(4, sys.byteorder)
        with (folder / DATA_FILE).open("r+b") as changed:
            changed.seek(root * size)
            changed.write(page)
        for levels in (_tree_in(state, 0).levels, 0xFFFF):
            told = state[:6] + levels.to_bytes(2, sys.byteorder) + state[8:]
            assert not are_free(file, told, last_page_of(state) + 1)


@pytest.mark.parametrize("damaged_at", [40, 96], ids=["root", "last page"])
def test_a_damaged_state_is_read_in_no_time(data: Path, damaged_at: int) -> None:
    """The state names pages that no file has, and more than fit into memory when counted."""
    with newest(data) as (file, state):
        damaged = bytearray(state)
        damaged[damaged_at : damaged_at + 8] = (1 << 60).to_bytes(8, sys.byteorder)
        assert not are_free(file, bytes(damaged), last_page_of(state))


@pytest.fixture(scope="module")
def two_levels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, int]:
    """A file with a table of two levels, with its root and its first leaf."""
    folder = tmp_path_factory.mktemp("levels")
    with lmdb.open(str(folder), max_dbs=1) as environment:
        table = environment.open_db(b"table")
        with environment.begin(table, write=True) as txn:
            for number in range(500):
                txn.put(b"%03d" % number, b"x" * 20)
    with newest(folder) as (file, state):
        tree = find_trees(file, state)["table"]
        assert tree.levels == 2
        page = os.pread(file, page_size_of(state), tree.root * page_size_of(state))
        return folder, tree.root, _nodes(page)[0][1]


def flagged(page: bytes, flags: int) -> bytes:
    return page[:10] + flags.to_bytes(2, sys.byteorder) + page[12:]


def with_node(page: bytes, at: int, content: bytes) -> bytes:
    """Change the first node of a page, at an offset in it."""
    at += int.from_bytes(page[FIRST_NODE_AT : FIRST_NODE_AT + 2], sys.byteorder)
    return page[:at] + content + page[at + len(content) :]


@pytest.mark.parametrize(
    ("of_root", "damage"),
    [
        (True, lambda page: flagged(page, 2)),
        (False, lambda page: flagged(page, 1)),
        (False, lambda page: flagged(page, 4)),
        (False, lambda page: page[:14] + b"\xff\x0f" + page[FIRST_NODE_AT:]),
        (False, lambda page: with_node(page, 0, b"\0\x7f")),
        (False, lambda page: with_node(page, 0, b"\x12\0")),
        (False, lambda page: with_node(page, 4, b"\4\0")),
        (False, lambda page: with_node(page, 6, b"\0\2")),
        (False, lambda page: page[:12] + b"\x10\0" + page[14:]),
        (False, lambda page: page[:12] + b"\4\0" + page[14:]),
    ],
    ids=[
        *("a leaf", "a branch", "neither", "before all", "long value", "short value", "odd"),
        *("long key", "no rows", "less than none"),
    ],
)
def test_a_page_that_lmdb_could_die_of_is_wrong(
    two_levels: tuple[Path, int, int],
    tmp_path: Path,
    of_root: bool,
    damage: Callable[[bytes], bytes],
) -> None:
    """Its number is right, but not its level, or where it says that rows are: it may be what it was before."""
    whole, root, leaf = two_levels
    folder = tmp_path / "data"
    shutil.copytree(whole, folder)
    page = root if of_root else leaf
    with newest(folder) as (file, state):
        assert find_wrong_page(file, state) is None
        content = damage(os.pread(file, page_size_of(state), page * page_size_of(state)))
        with (folder / DATA_FILE).open("r+b") as changed:
            os.pwrite(changed.fileno(), content, page * page_size_of(state))
        told = find_wrong_page(file, state)
    assert told == (
        f"the structure of data.mdb is damaged: page {page} is not the one that belongs there"
    )
