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
from typing import Final

from storage.meta_pages import (
    DATABASE_SIZE,
    META_PAGES,
    NO_PAGE,
    free_root_of,
    last_page_of,
    main_root_of,
    page_size_of,
)

_PAGE: Final = Struct("=QHHHH")
_NODE: Final = Struct("=HHHH")
_OFFSET: Final = Struct("=H")
_NUMBER: Final = Struct("=Q")
_BRANCH: Final = 1
_LONG: Final = 4
_LONG_VALUE: Final = 1
_DATABASE: Final = 2


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
    yield from _tree(file, state, free_root_of(state))
    for page in _tree(file, state, main_root_of(state)):
        yield page
        for root in _roots(page):
            yield from _tree(file, state, root)


def _free_pages(file: int, state: bytes) -> Iterator[list[int]]:
    for page in _tree(file, state, free_root_of(state)):
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


def _tree(file: int, state: bytes, root: int | None) -> Iterator[bytes]:
    """Yield the pages of a database.

    :raises ValueError: when one is missing or is another page, or they go round in a circle.
    """
    size = page_size_of(state)
    below = [] if root is None else [root]
    left = os.fstat(file).st_size // size
    while below:
        number = below.pop()
        page = os.pread(file, size, number * size)
        if len(page) != size or _number(page) != number or not left:
            raise _wrong(number)
        left -= 1
        yield page
        if _is_branch(page):
            below += (low | middle << 16 | high << 32 for low, middle, high, _ in _nodes(page))


def _roots(page: bytes) -> Iterator[int]:
    """Yield the root pages of the databases in a page of the main one; an empty database has none."""
    if not _is_branch(page):
        for _, _, flags, value in _nodes(page):
            (root,) = _NUMBER.unpack_from(page, value + DATABASE_SIZE - _NUMBER.size)
            if flags & _DATABASE and root != NO_PAGE:
                yield root


def _wrong(number: int) -> ValueError:
    return ValueError(f"page {number} is not the one that belongs there")


def _number(page: bytes) -> int:
    number: int = _NUMBER.unpack_from(page)[0]
    return number


def _is_branch(page: bytes) -> bool:
    return bool(_PAGE.unpack_from(page)[2] & _BRANCH)


def _nodes(page: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield low, middle and high of each node of a page, and where its value begins."""
    end = _PAGE.unpack_from(page)[3]
    for at in range(_PAGE.size, end, _OFFSET.size):
        (node,) = _OFFSET.unpack_from(page, at)
        low, middle, high, key_size = _NODE.unpack_from(page, node)
        yield low, middle, high, node + _NODE.size + key_size


def _numbers(content: bytes, at: int) -> list[int]:
    (count,) = _NUMBER.unpack_from(content, at)
    return list(Struct(f"={count}Q").unpack_from(content, at + _NUMBER.size))
