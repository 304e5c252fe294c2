"""What was changed in memory and is not stored yet, by name."""

from __future__ import annotations

from collections.abc import Callable

from storage import Store


class Unstored:
    """The names of what was changed since the store's last commit: where that is refused these alone are read again,
    and not the hundred thousand others that there may be."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._names: set[str] = set()
        self._commits = store.commits

    def add(self, name: str) -> None:
        """What has this name was changed in the store's batch."""
        if self._commits != self._store.commits:
            self._commits = self._store.commits
            self._names.clear()
        self._names.add(name)

    def restore(self, read: Callable[[str], None]) -> None:
        """The batch was refused: have what was changed in it read again, by its name."""
        if self._commits == self._store.commits:
            for name in self._names:
                read(name)
        self._names.clear()
