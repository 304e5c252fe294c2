"""Makes the sums of what has not fired from the rows that they sum up: `Held` keeps them from then on."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import lmdb

from storage.keys import HELD_SPANS_OF_AN_HOUR, TIMER_VALUE, TOTAL_VALUE, hour_key, pack_u64
from storage.reader import Reader


def sum_up(
    txn: lmdb.Transaction,
    *,
    timers: lmdb._Database,
    waiting: lmdb._Database,
    held: lmdb._Database,
    hours: lmdb._Database,
    totals: lmdb._Database,
) -> None:
    """Write `hours` and `totals` anew; some 10 s for ten million messages."""
    txn.drop(hours, delete=False)
    for (hour, topic), rows in groupby(
        txn.cursor(db=held),
        lambda row: (int.from_bytes(row[0][-8:]) // HELD_SPANS_OF_AN_HOUR, row[0][:-9]),
    ):
        count = sum(int.from_bytes(value) for _, value in rows)
        txn.put(hour_key(hour, topic), pack_u64(count), db=hours)
    sums: dict[bytes, tuple[int, int]] = {}
    for topic, size in _sizes(txn, timers, waiting):
        messages, total = sums.get(topic, (0, 0))
        sums[topic] = (messages + 1, total + size)
    txn.drop(totals, delete=False)
    for topic, total_of in sums.items():
        txn.put(topic, TOTAL_VALUE.pack(*total_of), db=totals)


def _sizes(
    txn: Reader, timers: lmdb._Database, waiting: lmdb._Database
) -> Iterator[tuple[bytes, int]]:
    """Topic and record's size of each message; keys have the topic behind the due time in `timers`, before it in
    `waiting`."""
    for table, begin in ((timers, 8), (waiting, 0)):
        for key, value in txn.cursor(db=table):
            yield key[begin : key.index(0, begin)], TIMER_VALUE.unpack(value)[2]
