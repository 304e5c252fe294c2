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

_MOST_LEVELS: Final = 32
"""The most levels of a tree (CURSOR_STACK)."""

_BEHIND_ALL: Final = b"\xff" * (MAX_KEY + 1)
"""It is behind all keys."""


class Tree(NamedTuple):
    """What a file notes of one of its databases."""

    levels: int
    pages: int
    rows: int
    root: int


class Region(NamedTuple):
    """A page, and the keys that belong on it and on the pages below it: from `first` on, before `end`."""

    page: int
    first: bytes
    end: bytes


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
    except (ValueError, IndexError, OverflowError, MemoryError, OSError, error) as reason:
        return f"the structure of data.mdb is damaged: {reason}"
    if used + free == pages:
        return None
    return (
        "the structure of data.mdb is damaged: "
        f"{free:,} pages are listed as free, and {used:,} of {pages:,} are in use"
    )


def find_trees(file: int, state: bytes) -> dict[str, Tree]:
    """Return the databases of the main one, by their names.

    :raises ValueError: when the main one cannot be read as a whole.
    """
    gaps: list[Region] = []
    main = _tree_in(state, DATABASE_SIZE)
    found = {
        node.key.decode(): _tree_in(page, node.value)
        for page, node in _readable_nodes(file, state, main, gaps)
        if node.high == _DATABASE and node.value + DATABASE_SIZE <= len(page)
    }
    if gaps or len(found) != main.rows or any(one.levels > _MOST_LEVELS for one in found.values()):
        raise ValueError("the list of its tables cannot be read")
    return found


def readable_rows(
    file: int, state: bytes, tree: Tree, gaps: list[Region]
) -> Iterator[tuple[bytes, bytes]]:
    """Return the rows of a database, in the order of their keys, as far as they can be read.

    Of a page only rows count whose keys belong there: it may be a page of another database, or what it was before a
    write that was lost.

    :param gaps: receives where rows are lost.
    """
    for page, node in _readable_nodes(file, state, tree, gaps):
        number, value = _number(page), page[node.value : node.value + node.size]
        if node.high:
            number, value = _read_long(file, state, page, node)
        if len(value) == node.size:
            yield node.key, value
        else:
            gaps.append(Region(number, node.key, node.key + b"\0"))


class _Node(NamedTuple):
    """A node of a page: its key, and where its value begins."""

    key: bytes
    low: int
    middle: int
    high: int
    value: int

    @property
    def size(self) -> int:
        """Bytes of its value, in a leaf."""
        return self.low | self.middle << 16

    @property
    def below(self) -> int:
        """The number of the page below, in a branch."""
        return self.low | self.middle << 16 | self.high << 32


def _readable_nodes(
    file: int, state: bytes, tree: Tree, gaps: list[Region]
) -> Iterator[tuple[bytes, _Node]]:
    """Yield the nodes of all leaves that can be read, each with its page, in the order of their keys."""
    if tree.root == NO_PAGE:
        return
    last = b""
    whole = Region(tree.root, b"", _BEHIND_ALL)
    for page, place in _readable_leaves(file, state, whole, tree.levels, gaps):
        kept = 0
        for node in _whole_nodes(page):
            if place.first <= node.key < place.end and node.key > last:
                last = node.key
                kept += 1
                yield page, node
        if kept < _count(page):
            gaps.append(place)


def _readable_leaves(
    file: int, state: bytes, place: Region, levels: int, gaps: list[Region]
) -> Iterator[tuple[bytes, Region]]:
    """Yield the leaves at and below a page, each with the keys that belong there."""
    page = _read_page(file, state, place.page, _LEAF if levels == 1 else _BRANCH)
    if page is None:
        gaps.append(place)
    elif levels == 1:
        yield page, place
    else:
        nodes = _whole_nodes(page)
        if len(nodes) < _count(page):
            gaps.append(place)
        # The first key of a branch stands for all smaller ones.
        keys = [place.first, *(node.key for node in nodes[1:]), place.end]
        for node, first, behind in zip(nodes, keys, keys[1:], strict=False):
            is_inside = place.first <= first < behind <= place.end
            # A wrong key must not hide the rows of a right page.
            bounds = (first, behind) if is_inside else place[1:]
            yield from _readable_leaves(file, state, Region(node.below, *bounds), levels - 1, gaps)


def _read_page(file: int, state: bytes, number: int, kind: int) -> bytes | None:
    """Return a page; None when it cannot be read, or is another one or of another kind."""
    size = page_size_of(state)
    try:
        page = os.pread(file, size, number * size)
        own, _, own_kind, end, _ = _PAGE.unpack_from(page)
    except (OSError, OverflowError, error):
        return None
    is_own = (own, own_kind) == (number, kind)
    return page if is_own and _PAGE.size <= end <= len(page) == size else None


def _read_long(file: int, state: bytes, page: bytes, node: _Node) -> tuple[int, bytes]:
    """Return a long value behind the number of its first page; fewer bytes than it has when it cannot be read."""
    number = _number(page)
    try:
        (number,) = _NUMBER.unpack_from(page, node.value)
        _check_long(file, state, number, node.size)
        return number, os.pread(file, node.size, number * page_size_of(state) + _PAGE.size)
    except (ValueError, OverflowError, OSError, error):
        return number, b""


def _count(page: bytes) -> int:
    """Return how many nodes a page has."""
    end: int = _PAGE.unpack_from(page)[3]
    return (end - _PAGE.size) // _OFFSET.size


def _whole_nodes(page: bytes) -> list[_Node]:
    """Return the nodes of a page that do not reach beyond its end, and whose keys are not too long."""
    found = []
    for at in range(_PAGE.size, _PAGE.unpack_from(page)[3], _OFFSET.size):
        (node,) = _OFFSET.unpack_from(page, at)
        if node + _NODE.size <= len(page):
            low, middle, high, key_size = _NODE.unpack_from(page, node)
            value = node + _NODE.size + key_size
            if value <= len(page) and key_size <= MAX_KEY:
                found.append(_Node(page[node + _NODE.size : value], low, middle, high, value))
    return found


def _tree_in(content: bytes, at: int) -> Tree:
    _, _, levels, *pages, rows, root = _TREE.unpack_from(content, at)
    return Tree(levels, sum(pages), rows, root)


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
    for low, middle, flags, value in _nodes(page):
        if flags & _LONG_VALUE:
            (first,) = _NUMBER.unpack_from(page, value)
            yield first, _check_long(file, state, first, low | middle << 16)


def _check_long(file: int, state: bytes, first: int, size: int) -> int:
    """Return how many pages a long value of this size has.

    :raises ValueError: when its first page is another one.
    """
    page_size, pages = page_size_of(state), last_page_of(state) + 1
    begin = os.pread(file, _PAGE.size, first * page_size)
    number, _, kind, low_count, high_count = _PAGE.unpack(begin)
    count: int = low_count | high_count << 16
    # Where a value was replaced by a shorter one, it may have more pages than it needs.
    least = -(-(_PAGE.size + size) // page_size)
    if number != first or not kind & _LONG or not least <= count <= pages - first:
        raise _wrong(first)
    return count


def _tree(file: int, state: bytes, tree: Tree) -> Iterator[bytes]:
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


def _trees_in(page: bytes) -> Iterator[Tree]:
    """Yield the databases in a page of the main one."""
    if not _is_branch(page):
        for _, _, flags, value in _nodes(page):
            if flags & _DATABASE:
                yield _tree_in(page, value)


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
