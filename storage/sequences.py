"""Computes the next free sequence, and the sequence from which on timers may be missing from `timers`."""

from __future__ import annotations

from storage.environment import Tables
from storage.keys import MARK, NEXT_SEQUENCE, U64
from storage.reader import Reader
from storage.shapes import is_message, is_meta, is_part


def first_free_sequence(txn: Reader, tables: Tables, damaged: set[bytes] | None = None) -> int:
    """Return the sequence after the last message, or the one that retention noted when it removed that message. No
    message has the sequence 0.

    :param damaged: receives the name of retention's note if the note cannot be right. It is then ignored.
    :raises ValueError: when the last row of `messages` or `parts` has no key of its table.
    """
    behind_last = 1
    for name, table, is_row in (
        ("messages", tables.messages, is_message),
        ("parts", tables.parts, is_part),
    ):
        cursor = txn.cursor(db=table)
        if cursor.last():
            if not is_row(cursor.key(), cursor.value()):
                # New rows would come before it, or get a number that clients cannot read.
                raise ValueError(f"the last row of {name} has the key {cursor.key()!r}")
            behind_last = max(behind_last, int.from_bytes(cursor.key()[: U64.size]) + 1)
    noted = txn.get(NEXT_SEQUENCE, db=tables.meta)
    if noted is None:
        return behind_last
    if not is_meta(NEXT_SEQUENCE, noted):
        if damaged is not None:
            damaged.add(NEXT_SEQUENCE)
        return behind_last
    return max(behind_last, int.from_bytes(noted))


def first_in_memory(txn: Reader, tables: Tables, damaged: set[bytes]) -> bytes:
    """Return the first packed sequence whose timer may be missing from `timers`, according to the mark. Empty means
    that any may be missing, as there is no mark.

    :param damaged: receives the mark's name if it cannot be right. Then it counts as missing: with a mark that is too
        high, messages accepted lately would never fire.
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
