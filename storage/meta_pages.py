"""LMDB's meta pages: pages 0 and 1 of its file. Each describes a state of the file; the later one counts.

    page   header 16 | magic 4 | version 4 | address 8 | map size 8 | state 112     MDB_meta of LMDB 0.9
    state  database of free pages 48 | main database 48 | last page 8 | transaction 8
    database  page size, in the database of free pages 4 | flags, depth, counts of pages and rows, root 44

A transaction writes the meta page with its number modulo 2, and no page that the previous state needs. So the previous
state stays whole until the next transaction.
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
META_PAGES: Final = 2
"""Pages at the beginning of the file that LMDB reserves."""

DATABASE_SIZE: Final = 48
NO_PAGE: Final = (1 << 64) - 1
"""The root of an empty database."""
_HEADER_SIZE: Final = 16


def file_size(folder: Path) -> int:
    """Return the size of a data folder's LMDB file in bytes; 0 when there is none."""
    try:
        return (folder / DATA_FILE).stat().st_size
    except FileNotFoundError:
        return 0


def read_states(file: int) -> list[bytes]:
    """Return the states in both meta pages of an open file, page 0 first; an empty list when the file is too short."""
    begin = os.pread(file, _STATE_AT + _PAGE_SIZE.size, 0)
    if len(begin) <= _STATE_AT:
        return []
    (page_size,) = _PAGE_SIZE.unpack_from(begin, _STATE_AT)
    states = [os.pread(file, STATE_SIZE, page * page_size + _STATE_AT) for page in (0, 1)]
    return states if len(states[1]) == STATE_SIZE else []


def newest_of(states: list[bytes]) -> int:
    """Return the number of the meta page that counts."""
    return int(transaction_of(states[1]) > transaction_of(states[0]))


def newest_state(file: int) -> bytes:
    """Return the state that counts, of an open file with two meta pages."""
    states = read_states(file)
    return states[newest_of(states)]


def state_of(page: bytes) -> bytes:
    """Return the state in a meta page."""
    return page[_STATE_AT : _STATE_AT + STATE_SIZE]


def last_page_of(state: bytes) -> int:
    """Return the last page of a state."""
    number: int = _LAST_PAGE_AND_TRANSACTION.unpack_from(state, STATE_SIZE - 16)[0]
    return number


def page_size_of(state: bytes) -> int:
    """Return the size of a page in bytes."""
    size: int = _PAGE_SIZE.unpack_from(state)[0]
    return size


def end_of(state: bytes) -> int:
    """Return the size of the file in bytes, up to the end of a state's last page."""
    return (last_page_of(state) + 1) * page_size_of(state)


def transaction_of(state: bytes) -> int:
    """Return the number of the transaction that made a state."""
    number: int = _LAST_PAGE_AND_TRANSACTION.unpack_from(state, STATE_SIZE - 16)[1]
    return number


def put_back(folder: Path, newest: int) -> None:
    """Overwrite the newest meta page with the older one, and sync it. LMDB must not have the file open."""
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
