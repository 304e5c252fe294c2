"""Paused topics, and their messages that have become due meanwhile.

A message that becomes due in a paused topic moves once from `timers` to `waiting`. So the next message to fire is
always at the front of `timers`, however many wait. A waiting message is still pending. After a resume, a topic stays in
`paused` until none of its messages waits. Messages that become due meanwhile queue behind the others, which keeps the
order of due times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import merge
from typing import NamedTuple

from storage.environment import Tables
from storage.keys import PAUSE_VALUE, timer_key_of, waiting_key
from storage.logged import LoggedTransaction
from storage.reader import Reader, names_in, rows_with_prefix
from storage.shapes import is_name, is_pause, is_waiting
from storage.sums import possible


class Pause(NamedTuple):
    """A topic's pause: since when, in epoch ms; how many due messages wait; and whether the topic was resumed and they
    are being fired."""

    since_ms: int
    waiting: int
    resumed: bool


class PausedTopics:
    """The tables `paused` (also kept in memory) and `waiting`, with the changes of the open batch.

    :param damaged: receives the keys of rows that cannot be read. A topic with such a row stays paused: an operator may
        resume it, but nobody could undo the firing of its messages.
    """

    def __init__(self, txn: Reader, tables: Tables, damaged: set[bytes]) -> None:
        self._tables = tables
        self._pauses: dict[bytes, Pause] = {}
        self._resumed: set[bytes] = set()
        for topic, value in txn.cursor(db=tables.paused):
            if is_pause(topic, value):
                self._keep(topic, Pause(*PAUSE_VALUE.unpack(value)))
                continue
            damaged.add(topic)
            if is_name(topic):
                waiting = sum(1 for _ in rows_with_prefix(txn, tables.waiting, topic + b"\0"))
                self._keep(topic, Pause(0, waiting, resumed=False))
        self._before: dict[bytes, Pause | None] = {}

    def __contains__(self, topic: bytes) -> bool:
        return topic in self._pauses

    def get(self, topic: bytes) -> Pause | None:
        """Return a topic's pause."""
        return self._pauses.get(topic)

    def items(self) -> list[tuple[bytes, Pause]]:
        """Return all topics in `paused` with their pauses, in the order of their names."""
        return sorted(self._pauses.items())

    def topics(self) -> list[bytes]:
        """Return all topics in `paused`, in no order."""
        return list(self._pauses)

    @property
    def has_resumed(self) -> bool:
        """Whether messages of resumed topics are being fired."""
        return bool(self._resumed)

    def resumed(self) -> list[bytes]:
        """Return the topics that were resumed and whose messages are being fired, those with the fewest first."""
        return sorted(self._resumed, key=lambda topic: (self._pauses[topic].waiting, topic))

    def put(self, topic: bytes, pause: Pause) -> None:
        """Note a topic's pause."""
        self._before.setdefault(topic, self._pauses.get(topic))
        self._keep(topic, pause)

    def remove(self, topic: bytes) -> None:
        """Remove a topic's pause, so that it fires like any other."""
        self._before.setdefault(topic, self._pauses.get(topic))
        self._keep(topic, None)

    def put_aside(self, txn: LoggedTransaction, topic: bytes, timer: bytes, value: bytes) -> None:
        """Put a due message of a paused topic into `waiting`.

        :param timer: its key in `timers`.
        """
        txn.put(waiting_key(timer), value, db=self._tables.waiting)
        self.count(topic, 1)

    def take(self, txn: LoggedTransaction, topic: bytes, timer: bytes) -> bool:
        """Remove a message from `waiting`. Return False when it is not there."""
        if not txn.delete(waiting_key(timer), db=self._tables.waiting):
            return False
        # A message that could not be read when its topic's pause ended is still in `waiting`.
        if topic in self._pauses:
            self.count(topic, -1)
        return True

    def count(self, topic: bytes, change: int) -> None:
        """Add to the number of a topic's waiting messages."""
        pause = self._pauses[topic]
        self.put(topic, pause._replace(waiting=possible(pause.waiting + change)))

    def write(self, txn: LoggedTransaction) -> None:
        """Write the changes to the batch that is about to be committed."""
        for topic in self._before:
            pause = self._pauses.get(topic)
            if pause is None:
                txn.delete(topic, db=self._tables.paused)
            else:
                txn.put(topic, PAUSE_VALUE.pack(*pause), db=self._tables.paused)

    def commit(self) -> None:
        """Note that the batch is stored."""
        self._before.clear()

    def abandon(self) -> None:
        """Undo the changes of the batch."""
        for topic, pause in self._before.items():
            self._keep(topic, pause)
        self._before.clear()

    def _keep(self, topic: bytes, pause: Pause | None) -> None:
        """Keep a topic's pause in memory; None when it has none."""
        if pause is None:
            self._pauses.pop(topic, None)
        else:
            self._pauses[topic] = pause
        if pause is not None and pause.resumed:
            self._resumed.add(topic)
        else:
            self._resumed.discard(topic)


def has_timer(txn: Reader, tables: Tables, timer: bytes) -> bool:
    """Whether a pending message is in `timers`, or in `waiting` because its topic is paused. A message accepted lately
    is in neither, but in the inbox.

    :param timer: its key in `timers`.
    """
    return (
        txn.get(timer, db=tables.timers) is not None
        or txn.get(waiting_key(timer), db=tables.waiting) is not None
    )


def waiting_timers(
    txn: Reader,
    tables: Tables,
    topic: bytes | None = None,
    start: bytes = b"",
    end: bytes = b"\xff",
    readable: Callable[[bytes], bool] | None = None,
) -> Iterator[tuple[bytes, bytes]]:
    """Return the waiting messages of one topic or of all: keys and values as in `timers` and in the same order, from
    `start` on and before `end`.

    :param readable: when given and `topic` is None, only messages of topics that it accepts.
    """
    if topic is not None:
        return _waiting_of(txn, tables, topic, start, end)
    topics = [
        name
        for name in names_in(txn, tables.waiting)
        if readable is None or (is_name(name) and readable(name))
    ]
    return merge(*(_waiting_of(txn, tables, name, start, end) for name in topics))


def last_waiting(txn: Reader, tables: Tables) -> Iterator[bytes]:
    """Return the last waiting message of each topic that can be read, its key as in `timers`."""
    for topic in names_in(txn, tables.waiting):
        cursor = txn.cursor(db=tables.waiting)
        alive = cursor.prev() if cursor.set_range(topic + b"\1") else cursor.last()
        while alive and cursor.key().startswith(topic + b"\0"):
            if is_waiting(cursor.key(), cursor.value()):
                yield timer_key_of(cursor.key())
                break
            alive = cursor.prev()


def misplaced(txn: Reader, tables: Tables) -> Iterator[bytes]:
    """Return the damaged keys of `waiting` that `waiting_timers` skips: they consist of a name only."""
    return (
        name
        for name in names_in(txn, tables.waiting)
        if name and txn.get(name, db=tables.waiting) is not None
    )


def _waiting_of(
    txn: Reader, tables: Tables, topic: bytes, start: bytes, end: bytes
) -> Iterator[tuple[bytes, bytes]]:
    name = topic + b"\0"
    cursor = txn.cursor(db=tables.waiting)
    if not cursor.set_range(name + start[:8]):
        return
    for key, value in cursor:
        if not key.startswith(name):
            return
        timer = timer_key_of(key)
        if timer >= end:
            return
        if timer >= start:
            yield timer, value
