"""The numbers of messages that hold for all of them: which is free, and from which on timers may be in no table."""

from __future__ import annotations

from storage.environment import Tables
from storage.keys import MARK, NEXT_SEQUENCE
from storage.reader import Reader
from storage.shapes import is_message, is_meta


def first_free_sequence(txn: Reader, tables: Tables, damaged: set[bytes] | None = None) -> int:
    """One behind the last message, or what retention noted when it removed that one too. 0 is never
    a message.

    :param damaged: gets the name of that note where it cannot be right, and tells of nothing.
    :raises ValueError: when the last row is none of a message.
    """
    cursor = txn.cursor(db=tables.messages)
    behind_last = 1
    if cursor.last():
        if not is_message(cursor.key(), cursor.value()):
            # Whatever comes would stand in front of it, or have a number that clients cannot read.
            raise ValueError(f"the last row of messages has the key {cursor.key()!r}")
        behind_last = int.from_bytes(cursor.key()) + 1
    noted = txn.get(NEXT_SEQUENCE, db=tables.meta)
    if noted is None:
        return behind_last
    if not is_meta(NEXT_SEQUENCE, noted):
        if damaged is not None:
            damaged.add(NEXT_SEQUENCE)
        return behind_last
    return max(behind_last, int.from_bytes(noted))


def first_in_memory(txn: Reader, tables: Tables, damaged: set[bytes]) -> bytes:
    """The first sequence, packed, whose timer may be missing from `timers`, as the mark has it; empty where that may be
    any, as there is no mark.

    :param damaged: gets the mark's name where it cannot be right. That counts as none: behind one that is too high
        nothing would ever fire that was accepted lately.
    """
    mark = txn.get(MARK, db=tables.meta)
    if mark is None:
        return b""
    try:
        is_right = int.from_bytes(mark) <= first_free_sequence(txn, tables)
    except ValueError:
        is_right = True
    if is_meta(MARK, mark) and is_right:
        return mark
    damaged.add(MARK)
    return b""
