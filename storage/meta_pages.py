"""LMDB's meta pages: pages 0 and 1 of its file. Each says what a state of the file is; the later one counts.

    page   header 16 | magic 4 | version 4 | address 8 | map size 8 | state 112     MDB_meta of LMDB 0.9
    state  database of free pages 48 | main database 48 | last page 8 | transaction 8
    database  page size, in that of free pages 4 | flags, depth, counts of pages and rows, root 44

A transaction writes the page with its number modulo 2, and none that the state before it needs, so that one is whole
until the next transaction.
"""

from __future__ import annotations

import os
from pathlib import Path
from struct import Struct
from typing import Final

DATA_FILE: Final = "data.mdb"
"""LMDB's file in a data folder."""

STATE_SIZE: Final = 112

_STATE_AT: Final = 40
_PAGE_SIZE: Final = Struct("=I")
_LAST_PAGE_AND_TRANSACTION: Final = Struct("=QQ")
_ROOT: Final = Struct("=Q")
_FREE_ROOT_AT: Final = 40
_NO_PAGE: Final = (1 << 64) - 1
_HEADER_SIZE: Final = 16


def file_size(folder: Path) -> int:
    """Bytes of a data folder's file; 0 where there is none."""
    try:
        return (folder / DATA_FILE).stat().st_size
    except FileNotFoundError:
        return 0


def read_states(file: int) -> list[bytes]:
    """The states that both meta pages of an open file speak of, page 0 first; none where the file is too short."""
    begin = os.pread(file, _STATE_AT + _PAGE_SIZE.size, 0)
    if len(begin) <= _STATE_AT:
        return []
    (page_size,) = _PAGE_SIZE.unpack_from(begin, _STATE_AT)
    states = [os.pread(file, STATE_SIZE, page * page_size + _STATE_AT) for page in (0, 1)]
    return states if len(states[1]) == STATE_SIZE else []


def newest_of(states: list[bytes]) -> int:
    """The number of the page that counts."""
    return int(transaction_of(states[1]) > transaction_of(states[0]))


def state_of(page: bytes) -> bytes:
    """The state that a meta page speaks of."""
    return page[_STATE_AT : _STATE_AT + STATE_SIZE]


def last_page_of(state: bytes) -> int:
    """The last page that belongs to a state."""
    number: int = _LAST_PAGE_AND_TRANSACTION.unpack_from(state, STATE_SIZE - 16)[0]
    return number


def page_size_of(state: bytes) -> int:
    """Bytes of a page."""
    size: int = _PAGE_SIZE.unpack_from(state)[0]
    return size


def free_root_of(state: bytes) -> int | None:
    """The page with which the database of free pages begins; None where there are none."""
    number: int = _ROOT.unpack_from(state, _FREE_ROOT_AT)[0]
    return None if number == _NO_PAGE else number


def end_of(state: bytes) -> int:
    """Bytes of a file up to the end of that page."""
    return (last_page_of(state) + 1) * page_size_of(state)


def transaction_of(state: bytes) -> int:
    """The number of the transaction that made a state."""
    number: int = _LAST_PAGE_AND_TRANSACTION.unpack_from(state, STATE_SIZE - 16)[1]
    return number


def put_back(folder: Path, newest: int) -> None:
    """Write the older meta page over the newest, and have the disk hold it. LMDB must not have the file open."""
    file = os.open(folder / DATA_FILE, os.O_RDWR | os.O_CLOEXEC)
    try:
        page_size = _PAGE_SIZE.unpack(os.pread(file, _PAGE_SIZE.size, _STATE_AT))[0]
        # All but the header, which has the page's own number.
        size = _STATE_AT + STATE_SIZE - _HEADER_SIZE
        content = os.pread(file, size, (1 - newest) * page_size + _HEADER_SIZE)
        os.pwrite(file, content, newest * page_size + _HEADER_SIZE)
        os.fsync(file)
    finally:
        os.close(file)
