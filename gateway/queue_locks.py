"""Queues that are locked for one member of a group, as consumers in order lock them (RebalanceLockManager).

The owners are stored and survive a restart. While the gateway is away, members go on with their queues. The first
member that is back finds nobody else in the group, and asks for all queues. Upstream forgets the owners.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from hashlib import sha1
from itertools import takewhile
from typing import Final, NamedTuple

import msgspec

from gateway.notes import read_notes
from gateway.wire.bodies import MessageQueue
from storage import Store

LOCK_EXPIRY: Final = 60.0
"""Seconds that a queue stays locked after its owner last asked for it, or after a start; clients ask every 20 s."""

_NOTE: Final = b"lock\0"


class _Place(NamedTuple):
    """A queue, as one group sees it."""

    group: str
    queue: MessageQueue

    @property
    def note(self) -> bytes:
        """The name of the queue's note, short however long the names of group and topic are."""
        return _NOTE + sha1(msgspec.json.encode(self), usedforsecurity=False).digest()


class QueueLocks:
    """The owner of each locked queue of each group.

    :param seconds: a clock that is never set.
    """

    def __init__(self, store: Store, seconds: Callable[[], float]) -> None:
        self._store = store
        self._seconds = seconds
        # Owner and expiry of each locked queue; the queue that expires next comes first.
        self._locks: dict[_Place, tuple[str, float]] = {}
        self._counts: Counter[str] = Counter()  # locked queues by group
        self._decode = msgspec.json.Decoder(tuple[_Place, str]).decode
        self.reload()

    def reload(self) -> None:
        """Read the stored locks again, as if each queue had been asked for just now."""
        self._locks.clear()
        self._counts.clear()
        expiry = self._seconds() + LOCK_EXPIRY

        def take(_: bytes, value: bytes) -> None:
            place, owner = self._decode(value)
            self._locks[place] = (owner, expiry)
            self._counts[place.group] += 1

        read_notes(self._store, _NOTE, "lock of a queue", take)

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue]
    ) -> list[MessageQueue]:
        """Lock queues for a member, and return those that it has. New owners join the store's batch."""
        self.expire()
        expiry = self._seconds() + LOCK_EXPIRY
        locked = []
        for queue in queues:
            place = _Place(group, queue)
            owner = self._owner(place)
            if owner is None:
                self._store.put_note(place.note, msgspec.json.encode((place, client_id)))
                self._counts[group] += 1
            elif owner != client_id:
                continue
            self._locks.pop(place, None)
            self._locks[place] = (client_id, expiry)
            locked.append(queue)
        return locked

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Unlock those of the queues that a member has. The change joins the store's batch."""
        for queue in queues:
            place = _Place(group, queue)
            if self._owner(place) == client_id:
                self._forget(place)

    def expire(self) -> None:
        """Forget the locks whose owners have not asked for them lately; a restart would renew them. The change joins
        the store's batch. Called now and then."""
        now = self._seconds()
        expired = list(takewhile(lambda lock: lock[1][1] <= now, self._locks.items()))
        for place, _ in expired:
            self._forget(place)

    def has_locks(self, group: str) -> bool:
        """Whether any queue is locked for a member of the group: its consumers then take messages in order. Forget
        expired locks first, which joins the store's batch."""
        self.expire()
        return group in self._counts

    def _owner(self, place: _Place) -> str | None:
        lock = self._locks.get(place)
        return lock[0] if lock is not None else None

    def _forget(self, place: _Place) -> None:
        self._store.delete_note(place.note)
        del self._locks[place]
        self._counts[place.group] -= 1
        if not self._counts[place.group]:
            del self._counts[place.group]
