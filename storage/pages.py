"""Reads pages of LMDB's file without LMDB: LMDB maps the file, and a process that touches a page beyond the file's end
dies (SIGBUS).

    page    its number 8 | 2 | flags 2 | end of the offsets 2 | begin of the nodes 2 | offsets of the nodes, 2 each
            (of a long value: its number 8 | 2 | flags 2 | pages 4 | the value)
    node    low 2 | middle 2 | high 2 | size of the key 2 | key | value
            in a branch, low, middle and high are the number of the page below; in a leaf, low and middle are the size
            of the value, and high is 1 if the node has, instead of the value, the number of the value's first page, and
            2 if the value is that of a database (`meta_pages`)
    value   how many pages 8 | their numbers, 8 each        in the database of free pages
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from struct import Struct, error
from typing import Final, NamedTuple

from storage.keys import MAX_KEY
from storage.meta_pages import (
    DATABASE_SIZE,
    META_PAGES,
    NO_PAGE,
    last_page_of,
    page_size_of,
)

_PAGE: Final = Struct("=QHHHH")
_NODE: Final = Struct("=HHHH")
_OFFSET: Final = Struct("=H")
_NUMBER: Final = Struct("=Q")
_TREE: Final = Struct("=IHHQQQQQ")
_BRANCH: Final = 1
_LEAF: Final = 2
_LONG: Final = 4
_LONG_VALUE: Final = 1
_DATABASE: Final = 2


class _Tree(NamedTuple):
    """A database: how many levels its pages have, and its root page."""

    levels: int
    root: int


def are_free(file: int, state: bytes, first: int) -> bool:
    """Whether all pages of a state from the number `first` on are free, so that the file may end before them.

    :param file: LMDB's file, open.
    """
    end = last_page_of(state) + 1
    found = set[int]()
    try:
        for free in _free_pages(file, state):
            found.update(number for number in free if first <= number < end)
    except (ValueError, OverflowError, error):
        # A page that lists free pages is missing itself.
        return False
    # The range is not enumerated: a damaged state can name more pages than fit into memory.
    return len(found) == max(end - first, 0)


def find_wrong_page(file: int, state: bytes) -> str | None:
    """Return what is wrong with a state's pages, as a sentence; None if nothing is.

    Each page in use has its own number, and each other page is in the list of free pages.

    LMDB frees a page that it replaces by the number in it, and writes to the pages of the list. So if one is wrong, the
    next transactions overwrite what is stored.

    :param file: LMDB's file, open.
    """
    pages = last_page_of(state) + 1
    free = 0
    try:
        named = bytearray(pages)
        named[:META_PAGES] = b"\1" * META_PAGES
        for page in _all_trees(file, state):
            named[_number(page)] = True
            for first, count in _long_values(file, state, page):
                named[first : first + count] = b"\1" * count
        used = sum(named)
        for numbers in _free_pages(file, state):
            for number in numbers:
                if number >= pages or named[number]:
                    raise ValueError(f"page {number} is listed as free")
                named[number] = True
            free += len(numbers)
    except (ValueError, IndexError, OverflowError, MemoryError, error) as reason:
        return f"the structure of data.mdb is damaged: {reason}"
    if used + free == pages:
        return None
    return (
        "the structure of data.mdb is damaged: "
        f"{free:,} pages are listed as free, and {used:,} of {pages:,} are in use"
    )


def _all_trees(file: int, state: bytes) -> Iterator[bytes]:
    yield from _tree(file, state, _tree_in(state, 0))
    for page in _tree(file, state, _tree_in(state, DATABASE_SIZE)):
        yield page
        for tree in _trees_in(page):
            yield from _tree(file, state, tree)


def _free_pages(file: int, state: bytes) -> Iterator[list[int]]:
    for page in _tree(file, state, _tree_in(state, 0)):
        if _is_branch(page):
            continue
        for low, middle, flags, value in _nodes(page):
            if flags & _LONG_VALUE:
                (first,) = _NUMBER.unpack_from(page, value)
                at = first * page_size_of(state) + _PAGE.size
                yield _numbers(os.pread(file, low | middle << 16, at), 0)
            else:
                yield _numbers(page, value)


def _long_values(file: int, state: bytes, page: bytes) -> Iterator[tuple[int, int]]:
    """Yield the first page of each long value that a page of a tree has, and of how many pages it is.

    :raises ValueError: when that page is another one.
    """
    if _is_branch(page):
        return
    page_size, pages = page_size_of(state), last_page_of(state) + 1
    for low, middle, flags, value in _nodes(page):
        if flags & _LONG_VALUE:
            (first,) = _NUMBER.unpack_from(page, value)
            begin = os.pread(file, _PAGE.size, first * page_size)
            number, _, kind, low_count, high_count = _PAGE.unpack(begin)
            count = low_count | high_count << 16
            # Where a value was replaced by a shorter one, it may have more pages than it needs.
            least = -(-(_PAGE.size + (low | middle << 16)) // page_size)
            if number != first or not kind & _LONG or not least <= count <= pages - first:
                raise _wrong(first)
            yield first, count


def _tree(file: int, state: bytes, tree: _Tree) -> Iterator[bytes]:
    """Yield the pages of a database.

    :raises ValueError: when one is missing, is another page or one of another level, or they go round in a circle.
    """
    size = page_size_of(state)
    below = [] if tree.root == NO_PAGE else [(tree.root, tree.levels)]
    left = os.fstat(file).st_size // size
    while below:
        number, level = below.pop()
        page = os.pread(file, size, number * size)
        if len(page) != size or _number(page) != number or not left:
            raise _wrong(number)
        if _PAGE.unpack_from(page)[2] != (_LEAF if level == 1 else _BRANCH):
            raise _wrong(number)
        left -= 1
        yield page
        if level > 1:
            nodes = _nodes(page)
            below += (
                (low | middle << 16 | high << 32, level - 1) for low, middle, high, _ in nodes
            )


def _trees_in(page: bytes) -> Iterator[_Tree]:
    """Yield the databases in a page of the main one."""
    if not _is_branch(page):
        for _, _, flags, value in _nodes(page):
            if flags & _DATABASE:
                yield _tree_in(page, value)


def _tree_in(content: bytes, at: int) -> _Tree:
    _, _, levels, *_, root = _TREE.unpack_from(content, at)
    return _Tree(levels, root)


def _wrong(number: int) -> ValueError:
    return ValueError(f"page {number} is not the one that belongs there")


def _number(page: bytes) -> int:
    number: int = _NUMBER.unpack_from(page)[0]
    return number


def _is_branch(page: bytes) -> bool:
    return bool(_PAGE.unpack_from(page)[2] & _BRANCH)


def _nodes(page: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield low, middle and high of each node of a page, and where its value begins.

    :raises ValueError: when one reaches beyond the page, or is none that a page can have.
    """
    number, _, kind, end, begin = _PAGE.unpack_from(page)
    for at in range(_PAGE.size, end, _OFFSET.size):
        (node,) = _OFFSET.unpack_from(page, at)
        low, middle, high, key_size = _NODE.unpack_from(page, node)
        value = last = node + _NODE.size + key_size
        if kind == _LEAF and high != _LONG_VALUE:
            last += low | middle << 16
        is_odd = kind == _LEAF and high > _DATABASE
        if node < begin or last > len(page) or key_size > MAX_KEY or is_odd:
            raise _wrong(number)
        yield low, middle, high, value


def _numbers(content: bytes, at: int) -> list[int]:
    (count,) = _NUMBER.unpack_from(content, at)
    return list(Struct(f"={count}Q").unpack_from(content, at + _NUMBER.size))
