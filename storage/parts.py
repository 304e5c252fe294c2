"""Records that are too large to share a page with others are cut into parts.

LMDB gives a value of more than half a page pages of its own: whole ones, side by side in the file. A record of 4.2 KB
would take 8 KB there, and one of some MB would find no room between the small rows of a file that is in use for long,
so the file would grow. The parts of a record are rows like all others. They are appended, and each is as large as what
is left of its page, so pages are full.

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
"""The value in `messages` of a record that was cut: `_MARK`, and the bytes of its parts."""

_MARK: Final = b"\xff"
"""No record begins with it: packed ones begin with 0x28, and others with the first byte of their length, which is less
than 4 GB."""

_PAGE_HEADER: Final = 16
_ROW_HEADER: Final = 8
_ROW_POINTER: Final = 2
"""Bytes of LMDB's in a page, in front of each row, and for its place in the page (PAGEHDRSZ, NODESIZE, indx_t)."""

_LEAST_PART: Final = 64
"""Bytes of a part that are worth a row of their own."""

LARGE: Final = 2_000
"""Bytes up to which a record is never cut, whatever the size of LMDB's pages: 4 KiB is the smallest. Two rows of about
so many fill one of those."""

_MOST_READ_AHEAD: Final = 64 << 20
"""Bytes of one record that are loaded ahead at most. A damaged row may claim 4 GB."""


Touch = Callable[..., None]
"""See `ReadAhead.touch`."""


class Cutter:
    """Cuts records, so that their parts fill pages.

    It counts what it has put into the last page. Where that is wrong, as after a start, some page is less full.

    :param page_size: of LMDB's pages, in bytes.
    """

    def __init__(self, page_size: int) -> None:
        self._page = page_size - _PAGE_HEADER
        # LMDB's me_nodemax: with their pointers, two such rows fill a page.
        self._most_row = (self._page // 2 & ~1) - _ROW_POINTER
        self.most_whole = self._most_row - _ROW_HEADER - U64.size
        """The most bytes of a record that needs no pages of its own."""
        self._left = 0

    def cut(self, number: bytes, stored: bytes) -> tuple[bytes, list[tuple[bytes, bytes]]]:
        """Return the value of a record's row in `messages`, and its rows in `parts`.

        :param number: the message's sequence, packed.
        :param stored: the record as `records.pack` returns it.
        """
        rows: list[tuple[bytes, bytes]] = []
        begin, size = 0, len(stored)
        while begin < size:
            room = min(self._left - _ROW_POINTER, self._most_row) - _ROW_HEADER - PART_KEY.size
            if room < min(_LEAST_PART, size - begin):
                self._left = self._page
                continue
            part = stored[begin : begin + room]
            rows.append((number + len(rows).to_bytes(4), part))
            begin += room
            # A row begins at an even place.
            row = _ROW_HEADER + PART_KEY.size + len(part)
            self._left -= row + row % 2 + _ROW_POINTER
        return _CUT.pack(_MARK[0], size), rows


def is_cut(value: bytes) -> bool:
    """Whether a value in `messages` stands for the parts of a record."""
    return value.startswith(_MARK)


def join(txn: Reader, tables: Tables, number: bytes, value: bytes) -> bytes | None:
    """Return a record as it is stored, its parts put together; None when a part of it is missing or damaged.

    :param value: of its row in `messages`.
    """
    if not is_cut(value):
        return value
    parts = b"".join([part for _, part in rows_with_prefix(txn, tables.parts, number)])
    return parts if value == _CUT.pack(_MARK[0], len(parts)) else None


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
    :param large: those whose records may have been cut: they have more than `LARGE` bytes, or their size is not known.
    :param most: bytes of cut records after which the others are left out.
    """
    touch(txn, Rows(tables.messages, numbers))
    parts: list[bytes] = []
    for number in large:
        value = txn.get(number, db=tables.messages)
        if value is not None and is_cut(value) and len(value) == _CUT.size:
            size = min(_CUT.unpack(value)[1], _MOST_READ_AHEAD)
            parts += (number + part.to_bytes(4) for part in range(size // LARGE + 1))
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
