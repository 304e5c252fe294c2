"""Sums up pending messages from the rows of their timers. `Held` maintains these sums, upgrades create them, and checks
and repairs compare them. A sum whose row is damaged is left to a repair: its messages fire all the same."""

from __future__ import annotations

import struct
from typing import Final

import lmdb

from storage.keys import TIMER_VALUE
from storage.reader import Reader

_MOST: Final = (1 << 63) - 1


def possible(count: int) -> int:
    """Return the nearest count that a row can hold: one that follows from a damaged row may be none."""
    return max(0, min(count, _MOST))


def sum_topics(
    txn: Reader, *, timers: lmdb._Database, waiting: lmdb._Database, lenient: bool = False
) -> dict[bytes, tuple[int, int]]:
    """Return what `totals` must contain: for each topic, how many messages it has and how many bytes their records
    have.

    :param lenient: skip rows that cannot be read.
    :raises ValueError: when a row cannot be read and `lenient` is false.
    :raises struct.error: likewise.
    """
    sums: dict[bytes, tuple[int, int]] = {}
    # In `timers` the topic stands behind the due time in the key, in `waiting` before it.
    for table, begin in ((timers, 8), (waiting, 0)):
        for key, value in txn.cursor(db=table):
            try:
                topic, own_size = key[begin : key.index(0, begin)], TIMER_VALUE.unpack(value)[2]
            except (ValueError, struct.error):
                if lenient:
                    continue
                raise
            messages, size = sums.get(topic, (0, 0))
            sums[topic] = (messages + 1, size + own_size)
    return sums
