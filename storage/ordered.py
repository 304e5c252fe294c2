"""Keys in their order, for those who read a few of many that come and go in any order."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator

_FEW = 30
"""New keys that are put into their places one by one; more are sorted with all."""


class OrderedKeys:
    """A sorted list that is brought up to date when somebody reads it.

    :param keys: all there are.
    :param is_alive: whether a key is still one of them; who removes one need not tell.
    """

    def __init__(self, keys: Iterable[bytes], is_alive: Callable[[bytes], bool]) -> None:
        self._sorted = sorted(keys)
        self._new: list[bytes] = []
        self._is_alive = is_alive

    def __len__(self) -> int:
        """How many there are at most."""
        return len(self._sorted) + len(self._new)

    def add(self, key: bytes) -> None:
        """One has come."""
        self._new.append(key)

    def between(self, start: bytes, end: bytes) -> Iterator[bytes]:
        """The keys from `start` on and before `end`, in their order; read them before others come."""
        self._update()
        keys = self._sorted
        for at in range(bisect_left(keys, start), bisect_left(keys, end)):
            if self._is_alive(keys[at]):
                yield keys[at]

    def last(self) -> bytes:
        """The last key; empty where there is none."""
        self._update()
        return self._sorted[-1] if self._sorted else b""

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
        """Drop what is no longer there at both ends: the first have fired, the last moved on."""
        keys, is_alive = self._sorted, self._is_alive
        while keys and not is_alive(keys[-1]):
            keys.pop()
        first = 0
        while first < len(keys) and not is_alive(keys[first]):
            first += 1
        del keys[:first]
