"""Sorted keys, for reading a few of many keys that are added and removed in any order."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator

_FEW = 30
"""New keys that are inserted one by one; for more, the whole list is sorted."""


class OrderedKeys:
    """A sorted list that is updated when it is read.

    :param keys: all keys.
    :param is_alive: whether a key still exists. Removed keys need not be reported.
    """

    def __init__(self, keys: Iterable[bytes], is_alive: Callable[[bytes], bool]) -> None:
        self._sorted = sorted(keys)
        self._new: list[bytes] = []
        self._is_alive = is_alive

    def __len__(self) -> int:
        """The most keys that there can be: some may have been removed."""
        return len(self._sorted) + len(self._new)

    def add(self, key: bytes) -> None:
        """Add a key."""
        self._new.append(key)

    def between(self, start: bytes, end: bytes) -> Iterator[bytes]:
        """Return the keys from `start` on and before `end`, in order. Consume them before keys are added."""
        self._update()
        keys = self._sorted
        for at in range(bisect_left(keys, start), bisect_left(keys, end)):
            if self._is_alive(keys[at]):
                yield keys[at]

    def _update(self) -> None:
        keys = self._sorted
        if len(self._new) <= _FEW:
            for key in self._new:
                insort(keys, key)
        else:
            keys += self._new
            keys.sort()
        self._new = []
        self._trim()

    def _trim(self) -> None:
        """Drop removed keys at both ends: the first have fired, the last have moved into the table."""
        keys, is_alive = self._sorted, self._is_alive
        while keys and not is_alive(keys[-1]):
            keys.pop()
        first = 0
        while first < len(keys) and not is_alive(keys[first]):
            first += 1
        del keys[:first]
