"""How many bytes the messages have that have not fired, by topic.

Nothing on disk counts them: they are summed up when somebody first asks, and kept from then on.
"""

from __future__ import annotations

from collections.abc import Mapping

import lmdb

from storage.environment import Tables
from storage.inbox import Inbox
from storage.keys import TIMER_VALUE, split_timer_key


class HeldBytes:
    """The sizes of the records, with the changes of the open batch."""

    def __init__(self) -> None:
        self._totals: dict[bytes, int] | None = None
        self._changes: dict[bytes, int] = {}

    @property
    def is_counted(self) -> bool:
        """Whether they have been summed up."""
        return self._totals is not None

    @property
    def totals(self) -> Mapping[bytes, int]:
        """The bytes by topic as of the last commit; empty until they are counted."""
        return self._totals or {}

    def of(self, topic: bytes) -> int:
        """A topic's bytes, once they are counted."""
        assert self._totals is not None
        return self._totals.get(topic, 0) + self._changes.get(topic, 0)

    def add(self, topic: bytes, change: int) -> None:
        """A message began to wait, or, with a negative number, waits no longer."""
        self._changes[topic] = self._changes.get(topic, 0) + change

    def count(self, txn: lmdb.Transaction, tables: Tables, inbox: Inbox) -> None:
        """Sum up all that waits as of the last commit: some seconds for a million messages."""
        totals: dict[bytes, int] = {}
        for table in (tables.timers, tables.waiting):
            # Keys of `waiting` begin with the topic, those of `timers` with the due time.
            begin = 8 if table is tables.timers else 0
            for key, value in txn.cursor(db=table):
                topic = key[begin : key.index(0, begin)]
                totals[topic] = totals.get(topic, 0) + TIMER_VALUE.unpack(value)[2]
        for key, value in inbox.between(b"", b"\xff", None):
            topic = split_timer_key(key)[1]
            totals[topic] = totals.get(topic, 0) + TIMER_VALUE.unpack(value)[2]
        self._totals = totals

    def commit(self) -> None:
        """The batch is stored."""
        if self._totals is not None:
            for topic, change in self._changes.items():
                count = self._totals.get(topic, 0) + change
                if count:
                    self._totals[topic] = count
                else:
                    self._totals.pop(topic, None)
        self._changes.clear()

    def abandon(self) -> None:
        """Forget the changes of the batch."""
        self._changes.clear()
