"""A copy of the inbox that a clean stop writes, so that the next start need not search for its timers.

`recover` finds the same timers, but reads a leaf page of `timers` for each of them: that takes seconds if they are many
and not in memory. The copy is valid only while the transaction that wrote it is the file's last one; the next
checkpoint deletes it.

The row in `meta` has that transaction's number 8, and for each timer the size of its key 2 | key | value.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

import lmdb

from storage.environment import Environment, Tables
from storage.keys import INBOX_COPY, TIMER_VALUE, pack_u64
from storage.reader import Reader
from storage.shapes import is_timer

_SIZE = struct.Struct(">H")


def write_copy(
    environment: Environment, tables: Tables, rows: Iterable[tuple[bytes, bytes]]
) -> None:
    """Write a copy of these timers. Nothing may be written to the file after it.

    :raises lmdb.Error: when there is no room.
    :raises RestartNeededError: see `Environment.change`.
    """
    packed = b"".join(_SIZE.pack(len(key)) + key + value for key, value in rows)
    environment.make_room(len(packed))
    with environment.change() as txn:
        txn.put(INBOX_COPY, pack_u64(txn.id()) + packed, db=tables.meta)


def has_copy(txn: lmdb.Transaction, tables: Tables) -> bool:
    """Whether there is a copy, and nothing has been written since."""
    copy = txn.get(INBOX_COPY, db=tables.meta)
    return copy is not None and copy[:8] == pack_u64(txn.id())


def is_copy_of(txn: Reader, tables: Tables, rows: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether the existing copy can be read and has these timers."""
    try:
        return sorted(read_copy(txn, tables)) == sorted(rows)
    except (ValueError, struct.error):
        return False


def read_copy(txn: Reader, tables: Tables) -> Iterator[tuple[bytes, bytes]]:
    """Return the timers of the existing copy.

    :raises ValueError: when it cannot be read.
    :raises struct.error: likewise.
    """
    packed = txn.get(INBOX_COPY, db=tables.meta) or b""
    at = 8
    while at < len(packed):
        begin = at + _SIZE.size
        end = begin + _SIZE.unpack_from(packed, at)[0]
        at = end + TIMER_VALUE.size
        key, value = packed[begin:end], packed[end:at]
        if not is_timer(key, value):
            raise ValueError(f"{key!r} is no timer's key, or {value!r} no timer")
        yield key, value
