"""Makes the sums of what has not fired from the rows that they sum up: `Held` keeps them, and checks and repairs hold
them against these."""

from __future__ import annotations

import struct
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
    txn.drop(totals, delete=False)
    for topic, total in sum_topics(txn, timers=timers, waiting=waiting).items():
        txn.put(topic, TOTAL_VALUE.pack(*total), db=totals)


def sum_topics(
    txn: Reader, *, timers: lmdb._Database, waiting: lmdb._Database, lenient: bool = False
) -> dict[bytes, tuple[int, int]]:
    """What `totals` is to say: by topic, how many messages there are and how many bytes their records have.

    :param lenient: whether rows that cannot be read are passed over.
    :raises ValueError: else, when there is one.
    :raises struct.error: likewise.
    """
    sums: dict[bytes, tuple[int, int]] = {}
    # Keys have the topic behind the due time in `timers`, before it in `waiting`.
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
