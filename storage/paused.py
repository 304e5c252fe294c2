"""Topics whose messages are not to fire for now, and those of their messages that are due meanwhile.

What is due in a paused topic moves out of `timers` into `waiting`, once, so that what fires next always stands at
the front of `timers`, however much waits. It is still pending there. A topic that was resumed stays here until
nothing of it waits any more: what becomes due meanwhile takes its place behind, so the order of due times holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from typing import NamedTuple

from storage.environment import Tables
from storage.keys import PAUSE_VALUE, timer_key_of, waiting_key
from storage.logged import LoggedTransaction
from storage.reader import Reader, rows_with_prefix
from storage.shapes import is_name, is_pause


class Pause(NamedTuple):
    """A topic's pause: since when, in epoch ms; how many of its messages are due and wait; and whether it was
    resumed and they are being let go."""

    since_ms: int
    waiting: int
    resumed: bool


class PausedTopics:
    """The tables `paused`, which is in memory as well, and `waiting`; with the changes of the open batch.

    :param damaged: takes the keys of rows that cannot be read. A topic with such a row stays paused: an operator may
        resume it, nobody could call back what fired.
    """

    def __init__(self, txn: Reader, tables: Tables, damaged: set[bytes]) -> None:
        self._tables = tables
        self._pauses: dict[bytes, Pause] = {}
        for topic, value in txn.cursor(db=tables.paused):
            if is_pause(topic, value):
                self._pauses[topic] = Pause(*PAUSE_VALUE.unpack(value))
                continue
            damaged.add(topic)
            if is_name(topic):
                waiting = sum(1 for _ in rows_with_prefix(txn, tables.waiting, topic + b"\0"))
                self._pauses[topic] = Pause(0, waiting, resumed=False)
        self._before: dict[bytes, Pause | None] = {}

    def __contains__(self, topic: bytes) -> bool:
        return topic in self._pauses

    def get(self, topic: bytes) -> Pause | None:
        """A topic's pause."""
        return self._pauses.get(topic)

    def items(self) -> list[tuple[bytes, Pause]]:
        """All topics that are here, in the order of their names."""
        return sorted(self._pauses.items())

    def resumed(self) -> list[bytes]:
        """The topics whose messages are being let go."""
        return [topic for topic, pause in self._pauses.items() if pause.resumed]

    def put(self, topic: bytes, pause: Pause) -> None:
        """Note a topic's pause."""
        self._before.setdefault(topic, self._pauses.get(topic))
        self._pauses[topic] = pause

    def remove(self, topic: bytes) -> None:
        """Let a topic fire as any other."""
        self._before.setdefault(topic, self._pauses.get(topic))
        del self._pauses[topic]

    def put_aside(self, txn: LoggedTransaction, topic: bytes, timer: bytes, value: bytes) -> None:
        """Have a message of a paused topic wait that is due.

        :param timer: its key in `timers`.
        """
        txn.put(waiting_key(timer), value, db=self._tables.waiting)
        self.count(topic, 1)

    def take(self, txn: LoggedTransaction, topic: bytes, timer: bytes) -> bool:
        """Remove a message from those that wait; False where it is not among them."""
        if not txn.delete(waiting_key(timer), db=self._tables.waiting):
            return False
        # One that could not be read when its topic was let go is still here.
        if topic in self._pauses:
            self.count(topic, -1)
        return True

    def count(self, topic: bytes, change: int) -> None:
        """Note that so many more of a topic's messages wait."""
        pause = self._pauses[topic]
        self.put(topic, pause._replace(waiting=pause.waiting + change))

    def write(self, txn: LoggedTransaction) -> None:
        """Join the batch that is about to be committed."""
        for topic in self._before:
            pause = self._pauses.get(topic)
            if pause is None:
                txn.delete(topic, db=self._tables.paused)
            else:
                txn.put(topic, PAUSE_VALUE.pack(*pause), db=self._tables.paused)

    def commit(self) -> None:
        """The batch is stored."""
        self._before.clear()

    def abandon(self) -> None:
        """Take back the changes of the batch."""
        for topic, pause in self._before.items():
            if pause is None:
                self._pauses.pop(topic, None)
            else:
                self._pauses[topic] = pause
        self._before.clear()


def has_timer(txn: Reader, tables: Tables, timer: bytes) -> bool:
    """Whether a message that has not fired is in `timers`, or in `waiting` because its topic is paused. One that was
    accepted lately is in neither, but in the inbox.

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
) -> Iterator[tuple[bytes, bytes]]:
    """What waits in one topic or in all, keys and values as in `timers` and in their order, from `start` on and
    before `end`."""
    if topic is not None:
        return _waiting_of(txn, tables, topic, start, end)
    topics = list(_topics(txn, tables))
    return merge(*(_waiting_of(txn, tables, name, start, end) for name in topics))


def misplaced(txn: Reader, tables: Tables) -> Iterator[bytes]:
    """The damaged keys of `waiting` that `waiting_timers` passes by, as they are nothing but a name."""
    return (
        name
        for name in _topics(txn, tables)
        if name and txn.get(name, db=tables.waiting) is not None
    )


def _topics(txn: Reader, tables: Tables) -> Iterator[bytes]:
    """The topics of which something waits, leaping from one to the next."""
    cursor = txn.cursor(db=tables.waiting)
    alive = cursor.first()
    while alive:
        key = cursor.key()
        topic = key.partition(b"\0")[0]
        yield topic
        alive = cursor.set_range(topic + b"\1")


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
