"""Makes the sums of what has not fired from the rows that they sum up: `Held` keeps them, upgrades begin them, and
checks and repairs hold them against these."""

from __future__ import annotations

import struct

import lmdb

from storage.keys import TIMER_VALUE
from storage.reader import Reader


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
