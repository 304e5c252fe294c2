"""The places that the tables give to messages, for a check of all messages."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from enum import Enum
from typing import NamedTuple

from storage.environment import Tables
from storage.reader import Reader


class Standing(Enum):
    """Where a message is: it waits for its time, is in its queue, was aborted, or has expired and is to be removed."""

    PENDING = "pending"
    QUEUED = "queued"
    ABORTED = "aborted"
    EXPIRED = "expired"


class Place(NamedTuple):
    """The place that a table gives to a message. `time_ms` is when it is due, entered its queue, or was aborted. Of an
    aborted message the rest is unknown."""

    standing: Standing
    time_ms: int
    topic: bytes = b""
    queue: int = 0
    tag_hash: int = 0


class Places:
    """Places by sequence. In a sound folder a message has one at most; it takes 16 bytes, with or without a place, and
    each run of messages with consecutive sequences takes another 16, so that many millions fit into memory."""

    def __init__(self, txn: Reader, tables: Tables) -> None:
        # The first sequence of each run, and where its messages begin in the columns. One entry more says how many
        # messages there are.
        self._begins, self._positions = array("Q"), array("Q")
        count, behind = 0, -1
        for key in txn.cursor(db=tables.messages).iternext(values=False):
            sequence = int.from_bytes(key)
            if sequence != behind:
                self._begins.append(sequence)
                self._positions.append(count)
            count, behind = count + 1, sequence + 1
        self._positions.append(count)
        # Columns: for each message the number of its kind (0 without a place), its time and the hash of its tag.
        self._numbers = array("I", [0]) * count
        self._times = array("Q", [0]) * count
        self._tags = array("i", [0]) * count
        self._kinds: list[tuple[Standing, bytes, int]] = [(Standing.PENDING, b"", 0)]
        self._known: dict[tuple[Standing, bytes, int], int] = {}
        # Places of sequences that no message has, and all but the first place of a message.
        self._others: dict[int, dict[Standing, Place]] = {}

    def add(self, sequence: int, place: Place) -> bool:
        """Note a place. Return False when the message has one with the same standing already, which this replaces."""
        position = self._position(sequence)
        first = self._first(position)
        if position is not None and (first is None or first.standing is place.standing):
            kind = (place.standing, place.topic, place.queue)
            number = self._known.get(kind)
            if number is None:
                number = self._known[kind] = len(self._kinds)
                self._kinds.append(kind)
            self._numbers[position] = number
            self._times[position] = place.time_ms
            self._tags[position] = place.tag_hash
            return first is None
        others = self._others.setdefault(sequence, {})
        is_new = place.standing not in others
        others[place.standing] = place
        return is_new

    def of(self, sequence: int) -> dict[Standing, Place]:
        """Return the places of a message."""
        first = self._first(self._position(sequence))
        others = self._others.get(sequence, {})
        return {first.standing: first, **others} if first is not None else others

    def _position(self, sequence: int) -> int | None:
        """Return where a message is in the columns; None when there is no such message."""
        run = bisect_right(self._begins, sequence) - 1
        if run < 0:
            return None
        position = self._positions[run] + sequence - self._begins[run]
        return position if position < self._positions[run + 1] else None

    def _first(self, position: int | None) -> Place | None:
        if position is None or not self._numbers[position]:
            return None
        standing, topic, queue = self._kinds[self._numbers[position]]
        return Place(standing, self._times[position], topic, queue, self._tags[position])
