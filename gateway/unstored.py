"""Names of what was changed in memory and is not stored yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from storage import Store

Name = TypeVar("Name")


class Unstored(Generic[Name]):
    """The names of what was changed since the store's last commit. When a commit is refused, only these are read again,
    and not the hundred thousand others that there may be."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._names: set[Name] = set()
        self._commits = store.commits

    def add(self, name: Name) -> None:
        """Note that the entry of this name was changed in the store's batch."""
        if self._commits != self._store.commits:
            self._commits = self._store.commits
            self._names.clear()
        self._names.add(name)

    def restore(self, read: Callable[[Name], None]) -> None:
        """Have each entry that a refused batch has changed read again, by its name."""
        if self._commits == self._store.commits:
            for name in self._names:
                read(name)
        self._names.clear()
