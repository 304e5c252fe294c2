"""Counts what has not fired: messages and bytes by topic, and the rows of `timers` by span of time.

Only the topics' sums are in memory. On disk they count `timers` and `waiting`; the timers in the inbox are added when
the store is opened. So opening a store reads one row for each topic, however much is pending.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import lmdb

from storage.environment import Tables
from storage.keys import (
    HELD_SPAN_MS,
    HELD_SPANS_OF_AN_HOUR,
    TIMER_VALUE,
    TOTAL_VALUE,
    U64,
    held_key,
    hour_key,
    pack_u64,
    split_timer_key,
    timer_topic,
)
from storage.logged import LoggedTransaction
from storage.read_ahead import ReadAhead, Rows
from storage.reader import Reader
from storage.shapes import is_name
from storage.sums import possible, sum_topics


class Held:
    """The tables `held`, `hours` and `totals` (the last also in memory), with the changes of the open batch.

    :param inbox: keys and values of the timers in the inbox.
    :param damaged: receives the keys of rows of `totals` that belong to no topic, or cannot be read. The sums of
        unreadable rows are counted anew, which takes a second for each million messages.
    """

    def __init__(
        self,
        txn: Reader,
        tables: Tables,
        inbox: Iterable[tuple[bytes, bytes]],
        damaged: set[bytes],
    ) -> None:
        self._tables = tables
        self._messages: dict[bytes, int] = {}
        self._sizes: dict[bytes, int] = {}
        unread: list[bytes] = []
        for topic, value in txn.cursor(db=tables.totals):
            if is_name(topic) and len(value) == TOTAL_VALUE.size:
                self._messages[topic], self._sizes[topic] = TOTAL_VALUE.unpack(value)
                continue
            damaged.add(topic)
            if is_name(topic):
                unread.append(topic)
        sums = (
            sum_topics(txn, timers=tables.timers, waiting=tables.waiting, lenient=True)
            if unread
            else {}
        )
        # The first change of such a row corrects it. Until then these are its right values.
        self._recounted = {topic: sums.get(topic, (0, 0)) for topic in unread}
        for topic, total in self._recounted.items():
            self._messages[topic], self._sizes[topic] = total
        for key, value in inbox:
            topic = timer_topic(key)
            self._messages[topic] = self._messages.get(topic, 0) + 1
            self._sizes[topic] = self._sizes.get(topic, 0) + TIMER_VALUE.unpack(value)[2]
        # Changes of messages and of bytes.
        self._changes: dict[bytes, list[int]] = {}
        self._spans: dict[tuple[bytes, int], list[int]] = {}
        self._waiting: dict[bytes, list[int]] = {}

    # -- as of the last commit

    @property
    def messages(self) -> Mapping[bytes, int]:
        """The number of pending messages of each topic that has any."""
        return self._messages

    @property
    def sizes(self) -> Mapping[bytes, int]:
        """The bytes of their records, by topic."""
        return self._sizes

    # -- with the changes of the batch

    def messages_of(self, topic: bytes) -> int:
        """Return how many messages of a topic are pending."""
        change = self._changes.get(topic)
        return self._messages.get(topic, 0) + (change[0] if change is not None else 0)

    def sizes_of(self, topic: bytes) -> int:
        """Return how many bytes the records of a topic's pending messages have."""
        change = self._changes.get(topic)
        return self._sizes.get(topic, 0) + (change[1] if change is not None else 0)

    # -- changes, undone by `abandon`

    def count(self, topic: bytes, change: int, size: int) -> None:
        """Add to a topic's pending messages, `size` bytes each, wherever they wait."""
        before = self._changes.get(topic)
        if before is None:
            self._changes[topic] = [change, change * size]
        else:
            before[0] += change
            before[1] += change * size

    def count_timer(self, topic: bytes, due_ms: int, change: int, size: int) -> None:
        """Add to a topic's messages in `timers`."""
        span = (topic, due_ms // HELD_SPAN_MS)
        before = self._spans.get(span)
        if before is None:
            self._spans[span] = [change, change * size]
        else:
            before[0] += change
            before[1] += change * size

    def count_waiting(self, topic: bytes, change: int, size: int) -> None:
        """Add to a topic's messages in `waiting`."""
        before = self._waiting.setdefault(topic, [0, 0])
        before[0] += change
        before[1] += change * size

    def write(self, txn: LoggedTransaction, ahead: ReadAhead) -> None:
        """Write the changes to the batch that is about to be committed."""
        if not self._spans and not self._waiting:
            return
        totals = {topic: list(change) for topic, change in self._waiting.items()}
        spans: dict[bytes, int] = {}
        hours: dict[tuple[int, bytes], int] = {}
        for (topic, span), (rows, size) in self._spans.items():
            total = totals.setdefault(topic, [0, 0])
            total[0] += rows
            total[1] += size
            if rows:
                spans[held_key(topic, span)] = rows
                hour = (span // HELD_SPANS_OF_AN_HOUR, topic)
                hours[hour] = hours.get(hour, 0) + rows
        ahead.touch(txn, Rows(self._tables.held, list(spans)))
        for key, rows in spans.items():
            _add(txn, self._tables.held, key, rows)
        for (number, topic), rows in hours.items():
            if rows:
                _add(txn, self._tables.hours, hour_key(number, topic), rows)
        for topic, change in totals.items():
            self._add_total(txn, topic, *change)

    def commit(self) -> None:
        """Note that the batch is stored."""
        for topic, (change, size) in self._changes.items():
            messages = self._messages.get(topic, 0) + change
            if messages > 0:
                self._messages[topic] = messages
                self._sizes[topic] = max(0, self._sizes.get(topic, 0) + size)
            else:
                self._messages.pop(topic, None)
                self._sizes.pop(topic, None)
        self.abandon()

    def abandon(self) -> None:
        """Drop the changes of the batch."""
        self._changes = {}
        self._spans = {}
        self._waiting = {}

    def _add_total(self, txn: LoggedTransaction, topic: bytes, messages: int, size: int) -> None:
        if not messages and not size:
            return
        old = txn.get(topic, db=self._tables.totals)
        if old is not None and len(old) != TOTAL_VALUE.size:
            before, size_before = self._recounted[topic]
        else:
            before, size_before = TOTAL_VALUE.unpack(old) if old is not None else (0, 0)
        if before + messages > 0:
            value = TOTAL_VALUE.pack(possible(before + messages), possible(size_before + size))
            txn.put(topic, value, db=self._tables.totals)
        else:
            txn.delete(topic, db=self._tables.totals)


def count_spans(timers: Iterable[bytes]) -> Counter[bytes]:
    """Return the number of these keys of `timers` in each span, by the key in `held`."""
    counts: Counter[bytes] = Counter()
    for key in timers:
        due_ms, topic, _, _ = split_timer_key(key)
        counts[held_key(topic, due_ms // HELD_SPAN_MS)] += 1
    return counts


def _add(txn: LoggedTransaction, table: lmdb._Database, key: bytes, change: int) -> None:
    """Change a count; a count of 0 has no row."""
    old = txn.get(key, db=table)
    count = possible(change + int.from_bytes(old[-U64.size :] if old is not None else b""))
    if count:
        txn.put(key, pack_u64(count), db=table)
    else:
        txn.delete(key, db=table)
