"""Queues that are locked for one member of a group, as consumers in order lock them (RebalanceLockManager).

The owners are stored and survive a restart. While the gateway is away, members go on with their queues. The first
member that is back finds nobody else in the group, and asks for all queues. Upstream forgets the owners.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha1
from itertools import islice, takewhile
from typing import Final, NamedTuple

import msgspec

from gateway.notes import read_note, read_notes
from gateway.unstored import Unstored
from gateway.wire.bodies import MessageQueue
from storage import Store

LOCK_EXPIRY: Final = 60.0
"""Seconds that a queue stays locked after its owner last asked for it, or after a start; clients ask every 20 s."""

MAX_LOCKS: Final = 300_000
"""Most locked queues, some 400 bytes of memory each with usual names. A further one is not locked, as if another member
had it: clients ask for it again."""

MAX_EXPIRED: Final = 500
"""Expired locks that are forgotten in one commit, some 4 ms of work."""

_NOTE: Final = b"lock\0"
_KIND: Final = "lock of a queue"


class _Place(NamedTuple):
    """A queue, as one group sees it."""

    group: str
    queue: MessageQueue

    @property
    def note(self) -> bytes:
        """The name of the queue's note behind `_NOTE`, short however long the names of group and topic are."""
        return sha1(msgspec.json.encode(self), usedforsecurity=False).digest()


class QueueLocks:
    """The owner of each locked queue of each group.

    :param seconds: a clock that is never set.
    """

    def __init__(self, store: Store, seconds: Callable[[], float]) -> None:
        self._store = store
        self._seconds = seconds
        # Owner and expiry of each locked queue; the queue that expires next comes first. An expired lock stays here
        # until it is forgotten, but counts as none.
        self._locks: dict[_Place, tuple[str, float]] = {}
        # The same queues by group; of each group the one that expires last comes last.
        self._places: dict[str, dict[_Place, None]] = {}
        self._decode = msgspec.json.Decoder(tuple[_Place, str]).decode
        self._unstored = Unstored[_Place](store)
        read_notes(store, _NOTE, _KIND, self._take)

    def reload(self) -> None:
        """Read again what a refused batch has changed."""
        self._unstored.restore(self._reload)

    def _reload(self, place: _Place) -> None:
        self._drop(place)
        read_note(self._store, _NOTE, place.note, _KIND, self._take)

    def _take(self, _: bytes, value: bytes) -> None:
        """Take over a stored lock, as if its owner had asked for the queue just now."""
        place, owner = self._decode(value)
        self._set(place, owner, self._seconds() + LOCK_EXPIRY)

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue]
    ) -> list[MessageQueue]:
        """Lock queues for a member, and return those that it has. New owners join the store's batch."""
        expiry = self._seconds() + LOCK_EXPIRY
        locked = []
        for queue in queues:
            place = _Place(group, queue)
            owner = self._owner(place)
            if owner is None and len(self._locks) < MAX_LOCKS:
                self._store.put_note(_NOTE + place.note, msgspec.json.encode((place, client_id)))
                self._unstored.add(place)
            elif owner != client_id:
                continue
            self._set(place, client_id, expiry)
            locked.append(queue)
        return locked

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Unlock those of the queues that a member has. The change joins the store's batch."""
        for queue in queues:
            place = _Place(group, queue)
            if self._owner(place) == client_id:
                self._forget(place)

    def expire(self) -> bool:
        """Forget the locks whose owners have not asked for them lately, as a restart would renew them: at most
        `MAX_EXPIRED`. The change joins the store's batch. Called now and then. Return True when there may be more."""
        now = self._seconds()
        expired = takewhile(lambda place: self._locks[place][1] <= now, self._locks)
        places = list(islice(expired, MAX_EXPIRED))
        for place in places:
            self._forget(place)
        return len(places) == MAX_EXPIRED

    def has_locks(self, group: str) -> bool:
        """Whether any queue is locked for a member of the group: its consumers then take messages in order."""
        places = self._places.get(group)
        return places is not None and self._owner(next(reversed(places))) is not None

    def _owner(self, place: _Place) -> str | None:
        owner, expiry = self._locks.get(place, (None, 0.0))
        return owner if expiry > self._seconds() else None

    def _set(self, place: _Place, owner: str, expiry: float) -> None:
        """Note the owner of a queue, which then expires last."""
        self._drop(place)
        self._locks[place] = (owner, expiry)
        self._places.setdefault(place.group, {})[place] = None

    def _forget(self, place: _Place) -> None:
        self._store.delete_note(_NOTE + place.note)
        self._unstored.add(place)
        self._drop(place)

    def _drop(self, place: _Place) -> None:
        if self._locks.pop(place, None) is not None:
            places = self._places[place.group]
            del places[place]
            if not places:
                del self._places[place.group]
