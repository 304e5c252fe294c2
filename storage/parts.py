"""Records that do not fit into the page that is being filled are cut into parts.

LMDB puts a row that has no room in a page into the next one, and gives a value of more than half a page pages of its
own: whole ones, side by side in the file. A record of 1.4 KB would take 2 KB there, one of 4.2 KB would take 8 KB, and
one of some MB would find no room between the small rows of a file that is in use for long, so the file would grow. So
what has no room becomes rows of `parts`. Both tables are only appended to, and what is cut off is as large as what is
left of a page, so pages are full. The end of a record that is larger than a page becomes parts of exactly a page each:
LMDB gives such a part a page of its own, and any free one will do.

A message of a transaction is not cut: the commit replaces its half message, and nothing is appended.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from math import inf
from typing import Final

from storage.environment import Tables
from storage.keys import PART_KEY, U64
from storage.logged import LoggedTransaction
from storage.read_ahead import Rows
from storage.reader import Reader, rows_with_prefix

_CUT: Final = struct.Struct(">BI")
"""What a value in `messages` begins with if the record was cut: `_MARK`, and how many bytes it has, packed. Its
beginning follows, and the rest is in parts. In format 9 all of it is."""

_MARK: Final = b"\xff"
"""No record begins with it: packed ones begin with 0x28, and others with the first byte of their length, which is less
than 4 GB."""

_PAGE_HEADER: Final = 16
_ROW_HEADER: Final = 8
_ROW_POINTER: Final = 2
"""Bytes of LMDB's in a page, in front of each row, and for its place in the page (PAGEHDRSZ, NODESIZE, indx_t)."""

_PAGE_NUMBER: Final = 8
"""Bytes in a row for a value that has pages of its own."""

_MESSAGE_ROW: Final = _ROW_HEADER + U64.size + _ROW_POINTER
_PART_ROW: Final = _ROW_HEADER + PART_KEY.size + _ROW_POINTER
"""Bytes of a row besides its value."""

_LEAST_PART: Final = 64
"""Bytes of a part that are worth a row of their own."""

_LEAST_CUT: Final = _MESSAGE_ROW + _CUT.size + _LEAST_PART
"""Bytes left in a page for which a record is cut."""

LARGE: Final = 2_000
"""Bytes of a record above which most of it is in parts."""

_FIRST_PARTS: Final = 3
"""Parts of a record that may have less than a page, at most."""

_MOST_READ_AHEAD: Final = 64 << 20
"""Bytes of one record that are loaded ahead at most. A damaged row may claim 4 GB."""


Touch = Callable[..., bool]
"""See `ReadAhead.touch`."""


class Cutter:
    """Cuts records, so that the rows of `messages` and `parts` fill pages.

    It counts what it has put into the last page of each. Where that is wrong, as after a start, some page is less full;
    soon the pages that it counts and those of the file begin with the same row again.

    :param page_size: of LMDB's pages, in bytes.
    """

    def __init__(self, page_size: int) -> None:
        self._page = page_size - _PAGE_HEADER
        # LMDB's me_nodemax: with their pointers, two such rows fill a page.
        most_row = (self._page // 2 & ~1) - _ROW_POINTER
        self.most_whole = most_row - _ROW_HEADER - U64.size
        """The most bytes of a record that needs no pages of its own."""
        self._most_part = most_row - _ROW_HEADER - PART_KEY.size
        self._left = 0
        self._left_of_parts = 0

    def cut(self, number: bytes, stored: bytes, parts: list[tuple[bytes, bytes]]) -> bytes:
        """Return the value of a record's row in `messages`, and add its rows in `parts`, if it has any, to the list.

        :param number: the message's sequence, packed.
        :param stored: the record as `records.pack` returns it.
        """
        size = len(stored)
        # A row begins at an even place.
        row = size + size % 2 + _MESSAGE_ROW
        if size <= self.most_whole:
            if row <= self._left:
                self._left -= row
                return stored
            if self._left < _LEAST_CUT:
                self._left = self._page - row
                return stored
        elif self._left < _LEAST_CUT:
            self._left = self._page
        begin = min(self._left - _MESSAGE_ROW, self.most_whole) - _CUT.size
        # The end of it fills whole pages.
        begin = min(begin, size % self._page)
        value = begin + _CUT.size
        self._left -= value + value % 2 + _MESSAGE_ROW
        self._add_parts(number, stored[begin:], parts)
        return _CUT.pack(_MARK[0], size) + stored[:begin]

    def count(self, stored: bytes) -> None:
        """Count a record that is put into `messages` uncut."""
        size = len(stored)
        row = _MESSAGE_ROW + (size + size % 2 if size <= self.most_whole else _PAGE_NUMBER)
        if row > self._left:
            self._left = self._page
        self._left -= row

    def _add_parts(self, number: bytes, rest: bytes, parts: list[tuple[bytes, bytes]]) -> None:
        begin, count = 0, 0
        in_rows = len(rest) % self._page
        while begin < len(rest):
            if begin < in_rows:
                size = min(self._left_of_parts - _PART_ROW, self._most_part, in_rows - begin)
                row = _PART_ROW + size + size % 2
            else:
                size, row = self._page, _PART_ROW + _PAGE_NUMBER
            if row > self._left_of_parts or size < min(_LEAST_PART, in_rows - begin):
                self._left_of_parts = self._page
                continue
            parts.append((number + count.to_bytes(4), rest[begin : begin + size]))
            self._left_of_parts -= row
            begin += size
            count += 1


def is_cut(value: bytes) -> bool:
    """Whether a value in `messages` stands for the parts of a record."""
    return value.startswith(_MARK)


def join(txn: Reader, tables: Tables, number: bytes, value: bytes) -> bytes | None:
    """Return a record as it is stored, its parts put together; None when a part of it is missing or damaged.

    :param value: of its row in `messages`.
    """
    if not is_cut(value):
        return value
    parts = [part for _, part in rows_with_prefix(txn, tables.parts, number)]
    stored = b"".join((value[_CUT.size :], *parts))
    return stored if value.startswith(_CUT.pack(_MARK[0], len(stored))) else None


def lone_parts(
    txn: Reader, tables: Tables, keys: Iterable[bytes]
) -> Iterator[tuple[bytes, list[bytes]]]:
    """Return the packed sequences of messages that have parts although they are gone, or were not cut, each with the
    keys of these.

    :param keys: of `parts`, in order.
    """
    for number, group in groupby(keys, lambda key: key[: U64.size]):
        value = txn.get(number, db=tables.messages)
        if value is None or not is_cut(value):
            yield number, list(group)


def touch_records(
    touch: Touch,
    txn: Reader,
    tables: Tables,
    numbers: Sequence[bytes],
    large: Iterable[bytes],
    most: float = inf,
) -> None:
    """Load records into memory as far as possible, before they are read one by one.

    :param touch: see `ReadAhead.touch`.
    :param numbers: the sequences of the messages, packed.
    :param large: those whose parts may have to be read although `messages` is in memory: they have more than `LARGE`
        bytes, or their size is not known. The last part of a smaller one is left to chance then.
    :param most: bytes of cut records after which the others are left out.
    """
    if touch(txn, Rows(tables.messages, numbers)):
        large = numbers
    parts: list[bytes] = []
    for number in large:
        value = txn.get(number, db=tables.messages)
        if value is not None and is_cut(value) and len(value) >= _CUT.size:
            size = min(_CUT.unpack_from(value)[1], _MOST_READ_AHEAD)
            rest = size - len(value) + _CUT.size
            # In folders of before whole pages were cut off, all parts have half a page.
            count = min(rest // LARGE + 1, rest // (2 * LARGE) + _FIRST_PARTS)
            parts += (number + part.to_bytes(4) for part in range(count))
            most -= size
            if most <= 0:
                break
    if parts:
        touch(txn, Rows(tables.parts, parts))


def delete_record(txn: LoggedTransaction, tables: Tables, number: bytes) -> None:
    """Delete a message's record, with all parts of it."""
    value = txn.pop(number, db=tables.messages)
    if value is not None and is_cut(value):
        cursor = txn.cursor(db=tables.parts)
        cursor.set_range(number)
        while cursor.key().startswith(number):
            txn.delete_at(cursor, db=tables.parts)
