"""Reads pages of LMDB's file without LMDB: LMDB maps the file, and a process that touches a page beyond the file's end
dies (SIGBUS).

    page    its number 8 | 2 | flags 2 | end of the offsets 2 | begin of the nodes 2 | offsets of the nodes, 2 each
            (of a long value: its number 8 | 2 | flags 2 | pages 4 | the value)
    node    low 4 | high 2 | size of the key 2 | key | value
            in a branch, low and high are the number of the page below; in a leaf, low is the size of the value, and
            high is 1 if the node has, instead of the value, the number of the value's first page, and 2 if the value is
            that of a database (`meta_pages`)
    value   how many pages 8 | their numbers, 8 each        in the database of free pages
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from struct import Struct, error, unpack_from
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
_NODE: Final = Struct("=IHH")
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

    Each page in use has its own number and is where searches look for its keys, and each other page is in the list of
    free pages.

    LMDB frees a page that it replaces by the number in it, and writes to the pages of the list. So if one is wrong, the
    next transactions overwrite what is stored.

    :param file: LMDB's file, open.
    """
    pages = last_page_of(state) + 1
    free = 0
    try:
        named = bytearray(pages)
        named[:META_PAGES] = b"\1" * META_PAGES
        for page in _all_pages(file, state):
            if named[page.place.page]:
                raise _wrong(page.place.page)
            named[page.place.page] = True
            for first, count in _long_values(file, state, page):
                if any(named[first : first + count]):
                    raise _wrong(first)
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
        key.decode(): _tree_in(page, value)
        for page, (key, _, high, value) in _readable_nodes(file, state, main, gaps)
        if high == _DATABASE and value + DATABASE_SIZE <= len(page)
    }
    if gaps or len(found) != main.rows:
        raise ValueError("the list of its tables cannot be read")
    return found


def readable_rows(
    file: int, state: bytes, tree: Tree, gaps: list[Region]
) -> Iterator[tuple[bytes, bytes]]:
    """Return the rows of a database, in the order of their keys, as far as they can be read.

    Of a page only rows count whose keys belong there: it may be a page of another database, or what it was before a
    write that was lost. But where no row is lost, it is what the branches say that is wrong.

    :param gaps: receives where rows are lost.
    """
    for page, (key, size, high, at) in _readable_nodes(file, state, tree, gaps):
        number, value = _number(page), page[at : at + size]
        if high == _LONG_VALUE:
            number, value = _read_long(file, state, page, at, size)
        if high <= _LONG_VALUE and len(value) == size:
            yield key, value
        else:
            gaps.append(Region(number, key, key + b"\0"))


_Node = tuple[bytes, int, int, int]
"""A node of a page: its key, low, high, and where its value begins."""


class _Page(NamedTuple):
    """A page, the keys that belong there, and its rows, of which a branch has none."""

    content: bytes
    place: Region
    rows: list[_Node]


def _pages(
    file: int, state: bytes, tree: Tree, gaps: list[Region] | None = None
) -> Iterator[_Page]:
    """Yield the pages of a database, in the order of their keys.

    :param gaps: receives where a page, or a node of one, cannot be read. Without it, that is an error.
    :raises ValueError: when one is missing, is another page or one of another level, or has a node that it cannot have.
    :raises OSError: when the disk cannot read one.
    """
    if tree.root != NO_PAGE:
        place = Region(tree.root, b"", _BEHIND_ALL)
        yield from _pages_below(file, state, place, tree.levels, gaps)


def _pages_below(
    file: int, state: bytes, place: Region, levels: int, gaps: list[Region] | None
) -> Iterator[_Page]:
    """Yield the page at a place, and the pages below it."""
    try:
        page = _read_page(file, state, place.page, _LEAF if levels == 1 else _BRANCH)
    except (ValueError, OverflowError, OSError, error):
        if gaps is None:
            raise
        gaps.append(place)
        return
    nodes, offsets = _nodes(page), _offsets(page)
    if gaps is None:
        if len(nodes) < len(offsets) or min(offsets, default=0) < _PAGE.unpack_from(page)[4]:
            raise _wrong(place.page)
    elif len(nodes) < len(offsets):
        gaps.append(place)
    yield _Page(page, place, nodes if levels == 1 else [])
    if levels <= 1:
        return
    # The first key of a branch stands for all smaller ones.
    keys = [place.first, *(key for key, _, _, _ in nodes[1:]), place.end]
    for (_, low, high, _), first, behind in zip(nodes, keys, keys[1:], strict=False):
        is_inside = place.first <= first < behind <= place.end
        # A wrong key must not hide the rows of a right page.
        bounds = (first, behind) if is_inside else place[1:]
        below = Region(low | high << 32, *bounds)
        yield from _pages_below(file, state, below, levels - 1, gaps)


def _readable_nodes(
    file: int, state: bytes, tree: Tree, gaps: list[Region]
) -> Iterator[tuple[bytes, _Node]]:
    """Yield the nodes of all leaves that can be read, each with its page, in the order of their keys."""
    last = b""
    is_whole = _is_whole(file, state, tree)
    for page, place, rows in _pages(file, state, tree, gaps):
        kept = 0
        for node in rows:
            key = node[0]
            if key > last and (is_whole or place.first <= key < place.end):
                last = key
                kept += 1
                yield page, node
        if kept < len(rows):
            gaps.append(place)


def _is_whole(file: int, state: bytes, tree: Tree) -> bool:
    """Whether all rows of a database can be read, with their keys in order."""
    gaps: list[Region] = []
    last, count = b"", 0
    for page in _pages(file, state, tree, gaps):
        for key, _, _, _ in page.rows:
            if gaps or key <= last:
                return False
            last = key
        count += len(page.rows)
    return not gaps and count == tree.rows


def _searched_pages(file: int, state: bytes, tree: Tree) -> Iterator[_Page]:
    """Yield the pages of a database whose keys have the order of their bytes, unlike those of the list of free pages.

    :raises ValueError: as from `_pages`, when searches for the keys of a page do not lead to it, and when there are not
        as many rows as noted.
    """
    last, count = b"", 0
    for page in _pages(file, state, tree):
        if page.rows:
            first = page.rows[0][0]
            # Where the keys are not in order, one of them may be wrong rather than what the branches say.
            if b"" < last < first and not last < page.place.first <= first:
                raise ValueError(f"page {page.place.page} is not where its rows are looked for")
            last = page.rows[-1][0]
            count += len(page.rows)
        yield page
    if count != tree.rows:
        raise ValueError(f"the table at page {tree.root} has {count:,} of {tree.rows:,} rows")


def _read_page(file: int, state: bytes, number: int, kind: int) -> bytes:
    """Return a page.

    :raises ValueError: when it is another one, or of another kind.
    """
    size = page_size_of(state)
    page = os.pread(file, size, number * size)
    if len(page) == size:
        own, _, own_kind, end, _ = _PAGE.unpack_from(page)
        if (own, own_kind) == (number, kind) and _PAGE.size <= end <= size:
            return page
    raise _wrong(number)


def _read_long(file: int, state: bytes, page: bytes, at: int, size: int) -> tuple[int, bytes]:
    """Return a long value behind the number of its first page; fewer bytes than it has when it cannot be read."""
    number = _number(page)
    try:
        (number,) = _NUMBER.unpack_from(page, at)
        _check_long(file, state, number, size)
        return number, os.pread(file, size, number * page_size_of(state) + _PAGE.size)
    except (ValueError, OverflowError, OSError, error):
        return number, b""


def _offsets(page: bytes) -> tuple[int, ...]:
    """Return where the nodes of a page begin."""
    end: int = _PAGE.unpack_from(page)[3]
    return unpack_from(f"={(end - _PAGE.size) // 2}H", page, _PAGE.size)


def _nodes(page: bytes) -> list[_Node]:
    """Return the nodes of a page that do not reach beyond its end, and whose keys are not too long."""
    found = []
    for node in _offsets(page):
        key = node + _NODE.size
        if key <= len(page):
            low, high, key_size = _NODE.unpack_from(page, node)
            value = key + key_size
            if value <= len(page) and key_size <= MAX_KEY:
                found.append((page[key:value], low, high, value))
    return found


def _tree_in(content: bytes, at: int) -> Tree:
    _, _, levels, *pages, rows, root = _TREE.unpack_from(content, at)
    if levels > _MOST_LEVELS:
        raise ValueError(f"one of its trees has {levels} levels")
    return Tree(levels, sum(pages), rows, root)


def _all_pages(file: int, state: bytes) -> Iterator[_Page]:
    yield from _pages(file, state, _tree_in(state, 0))
    for page in _searched_pages(file, state, _tree_in(state, DATABASE_SIZE)):
        yield page._replace(rows=[])
        for _, _, high, value in page.rows:
            if high != _DATABASE:
                raise _wrong(page.place.page)
            yield from _searched_pages(file, state, _tree_in(page.content, value))


def _free_pages(file: int, state: bytes) -> Iterator[list[int]]:
    for page, _, rows in _pages(file, state, _tree_in(state, 0)):
        for _, size, high, value in rows:
            if high == _LONG_VALUE:
                (first,) = _NUMBER.unpack_from(page, value)
                at = first * page_size_of(state) + _PAGE.size
                yield _numbers(os.pread(file, size, at), 0)
            else:
                yield _numbers(page, value)


def _long_values(file: int, state: bytes, page: _Page) -> Iterator[tuple[int, int]]:
    """Yield the first page of each long value of a page's rows, and of how many pages it is.

    :raises ValueError: when that page is another one, or the page cannot have these rows: they fill its end, side by
        side, each with an even number of bytes.
    """
    content, place, rows = page
    left = len(content) - _PAGE.unpack_from(content)[4] if rows else 0
    for key, size, high, value in rows:
        if high == _LONG_VALUE:
            (first,) = _NUMBER.unpack_from(content, value)
            yield first, _check_long(file, state, first, size)
        elif high:
            raise _wrong(place.page)
        own = len(key) + (_NUMBER.size if high else size)
        left -= _NODE.size + own + own % 2
    if left:
        raise _wrong(place.page)


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


def _wrong(number: int) -> ValueError:
    return ValueError(f"page {number} is not the one that belongs there")


def _number(page: bytes) -> int:
    number: int = _NUMBER.unpack_from(page)[0]
    return number


def _numbers(content: bytes, at: int) -> list[int]:
    (count,) = _NUMBER.unpack_from(content, at)
    return list(Struct(f"={count}Q").unpack_from(content, at + _NUMBER.size))
