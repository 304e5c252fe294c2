"""Reads the free pages of LMDB's file without LMDB: LMDB maps the file, and a process that touches a page beyond the
file's end dies (SIGBUS).

    page    its number 8 | 2 | flags 2 | end of the offsets 2 | begin of the nodes 2 | offsets of the nodes, 2 each
            (of a long value: its number 8 | 2 | flags 2 | pages 4 | the value)
    node    low 2 | middle 2 | high 2 | size of the key 2 | key | value
            in a branch, low, middle and high are the number of the page below; in a leaf, low and middle are the size
            of the value, and high is 1 if the node has, instead of the value, the number of the value's first page
    value   how many pages 8 | their numbers, 8 each        in the database of free pages
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from struct import Struct, error
from typing import Final

from storage.meta_pages import (
    free_root_of,
    free_tree_pages_of,
    last_page_of,
    page_size_of,
)

_PAGE: Final = Struct("=QHHHH")
_NODE: Final = Struct("=HHHH")
_OFFSET: Final = Struct("=H")
_NUMBER: Final = Struct("=Q")
_BRANCH: Final = 1
_LONG_VALUE: Final = 1


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


def wrong_list(file: int, state: bytes, used: int) -> str | None:
    """Return what is wrong with a state's list of free pages, as a sentence; None if nothing is. Each page is either in
    use or in that list once.

    LMDB writes to the pages of the list. If it is wrong, the next transactions overwrite what is stored.

    :param file: LMDB's file, open.
    :param used: how many pages are in use, but for those of the list itself.
    """
    pages = last_page_of(state) + 1
    used += free_tree_pages_of(state)
    count = 0
    try:
        for free in _free_pages(file, state):
            if free and max(free) >= pages:
                raise ValueError(f"it names page {max(free)}")
            count += len(free)
    except (ValueError, OverflowError, error) as reason:
        return f"LMDB's list of free pages cannot be read: {reason}"
    if used + count == pages:
        return None
    return f"LMDB's list of free pages is wrong: it has {count:,}, and {used:,} of {pages:,} are in use"


def _free_pages(file: int, state: bytes) -> Iterator[list[int]]:
    size = page_size_of(state)
    root = free_root_of(state)
    below = [] if root is None else [root]
    seen = set[int]()
    while below:
        number = below.pop()
        page = os.pread(file, size, number * size)
        if number in seen or len(page) != size:
            raise ValueError(f"page {number} of the list of free pages is damaged")
        seen.add(number)
        _, _, flags, end, _ = _PAGE.unpack_from(page)
        for at in range(_PAGE.size, end, _OFFSET.size):
            (node,) = _OFFSET.unpack_from(page, at)
            low, middle, high, key_size = _NODE.unpack_from(page, node)
            value = node + _NODE.size + key_size
            if flags & _BRANCH:
                below.append(low | middle << 16 | high << 32)
            elif high & _LONG_VALUE:
                (first,) = _NUMBER.unpack_from(page, value)
                content = os.pread(file, low | middle << 16, first * size + _PAGE.size)
                yield _numbers(content, 0)
            else:
                yield _numbers(page, value)


def _numbers(content: bytes, at: int) -> list[int]:
    (count,) = _NUMBER.unpack_from(content, at)
    return list(Struct(f"={count}Q").unpack_from(content, at + _NUMBER.size))
