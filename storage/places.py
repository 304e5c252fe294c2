"""The places that a table gives to messages, for a check of all messages."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from storage.environment import Tables
from storage.reader import Reader


class Place(NamedTuple):
    """The place that a table gives to a message. `due_ms` is None if the table does not have it, and `entered_ms` is
    None if the message is not in its queue."""

    topic: bytes
    queue: int
    due_ms: int | None
    tag_hash: int
    entered_ms: int | None = None


class Places:
    """Places by sequence. Each message takes 12 bytes, with or without a place, so that many millions fit into
    memory."""

    def __init__(self, txn: Reader, tables: Tables) -> None:
        messages = txn.cursor(db=tables.messages)
        self._first = int.from_bytes(messages.key()) if messages.first() else 0
        behind_last = int.from_bytes(messages.key()) + 1 if messages.last() else 0
        count = min(behind_last - self._first, 2 * txn.stat(tables.messages)["entries"])
        # For each message, the number of its kind (0 without a place) and its time.
        self._numbers = array("I", bytes(4 * count))
        self._times = array("Q", bytes(8 * count))
        self._kinds: list[tuple[bytes, int, int, bool]] = [(b"", 0, 0, False)]
        self._known: dict[tuple[bytes, int, int, bool], int] = {}
        # Places of sequences that no message has, or that are far apart.
        self._others: dict[int, Place] = {}

    def __contains__(self, sequence: int) -> bool:
        at = sequence - self._first
        if 0 <= at < len(self._numbers):
            return self._numbers[at] != 0
        return sequence in self._others

    def __setitem__(self, sequence: int, place: Place) -> None:
        at = sequence - self._first
        time = place.due_ms if place.due_ms is not None else place.entered_ms
        if time is None or not 0 <= at < len(self._numbers):
            self._others[sequence] = place
            return
        kind = (place.topic, place.queue, place.tag_hash, place.due_ms is not None)
        number = self._known.get(kind)
        if number is None:
            number = self._known[kind] = len(self._kinds)
            self._kinds.append(kind)
        self._numbers[at] = number
        self._times[at] = time

    def get(self, sequence: int) -> Place | None:
        """Return a message's place; None when it has none."""
        at = sequence - self._first
        if not 0 <= at < len(self._numbers):
            return self._others.get(sequence)
        if not self._numbers[at]:
            return None
        topic, queue, tag_hash, is_due = self._kinds[self._numbers[at]]
        if is_due:
            return Place(topic, queue, self._times[at], tag_hash)
        return Place(topic, queue, None, tag_hash, self._times[at])
