"""Pops in order: which messages a group popped last from each queue, and which of these are not acknowledged.

While one of those messages is invisible, the group gets nothing of the queue. When all of them are visible again, the
queue goes on at the first that was not acknowledged (ConsumerOrderInfoManager). A pop is stored with the batch that it
is part of; upstream stores it every five seconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import msgspec

from gateway.notes import read_note, read_notes
from gateway.unstored import Unstored
from storage import Store

ORDERED_QUEUE = 999
"""The reviveQid of messages popped in order, which sets their handles apart (KeyBuilder)."""

_NOTE, _KIND = b"pop order\0", "popped messages in order of"


class Place(NamedTuple):
    """A queue, as one group sees it."""

    group: str
    topic: str
    queue: int


class OrderedPop(msgspec.Struct, array_like=True):
    """Messages that a group popped from a queue together. `popped_ms` is epoch ms, `invisible_ms` a length in ms."""

    popped_ms: int
    invisible_ms: int
    offsets: list[int]
    """Ascending; never empty."""
    attempt: str | None = None
    """The id that a client sends again when it repeats a request: it then gets the same messages."""
    acked: list[int] = []
    put_off: dict[int, int] = {}
    """Until when messages with a changed invisible time are invisible, epoch ms by offset."""
    delivered: dict[int, int] = {}
    """How often messages had been delivered before, by offset; messages that are new are left out."""

    @property
    def next_offset(self) -> int:
        """The offset at which the group goes on: the first message that is not acknowledged."""
        return next((one for one in self.offsets if one not in self.acked), self.offsets[-1] + 1)

    def visible_ms(self, now_ms: int) -> int:
        """Return when all messages that are not acknowledged are visible again; `now_ms` or less when they are."""
        until = self.popped_ms + self.invisible_ms
        return max(
            (self.put_off.get(one, until) for one in self.offsets if one not in self.acked),
            default=now_ms,
        )

    def blocks(self, attempt: str | None, now_ms: int) -> bool:
        """Whether a pop of the queue has to wait."""
        if self.attempt is not None and self.attempt == attempt:
            return False
        return self.visible_ms(now_ms) > now_ms


class PopOrders:
    """The last pop in order of every group and queue, in memory and stored."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pops: dict[Place, OrderedPop] = {}
        self._releases: list[tuple[int, Place]] = []
        # The time of each queue's valid entry in `_releases`. A queue has more entries there if its time was moved up.
        self._watched: dict[Place, int] = {}
        self._unstored = Unstored[Place](store)
        read_notes(store, _NOTE, _KIND, self._take)

    def reload(self) -> None:
        """Read again what a refused batch has changed."""
        self._unstored.restore(self._reload)

    def _reload(self, place: Place) -> None:
        # `released` looks at the pop itself, so a time at which it would have been visible can stay in `_releases`.
        self._pops.pop(place, None)
        read_note(self._store, _NOTE, _name(place), _KIND, self._take)

    def _take(self, name: bytes, value: bytes) -> None:
        group, topic, queue = name.decode().split("\0")
        place = Place(group, topic, int(queue))
        self._pops[place] = msgspec.json.decode(value, type=OrderedPop)
        self._watch(place)

    def get(self, place: Place) -> OrderedPop | None:
        """Return the last pop of a queue."""
        return self._pops.get(place)

    def note(
        self, place: Place, attempt: str | None, now_ms: int, invisible_ms: int, offsets: list[int]
    ) -> OrderedPop:
        """Note that messages are popped now. The change joins the store's batch."""
        before = self._pops.get(place)
        pop = OrderedPop(now_ms, invisible_ms, offsets, attempt)
        if before is not None:
            if before.attempt is not None and before.attempt == attempt:
                pop.delivered = before.delivered
            else:
                pop.delivered = {
                    one: before.delivered.get(one, 0) + 1
                    for one in offsets
                    if one in before.offsets
                }
        self._put(place, pop)
        self._watch(place)
        return pop

    def acknowledge(self, place: Place, offset: int) -> OrderedPop:
        """Note that a message of the last pop was consumed. The change joins the store's batch.

        :returns: the last pop, as it is then.
        """
        pop = self._pops[place]
        if offset not in pop.acked:
            pop = msgspec.structs.replace(pop, acked=[*pop.acked, offset])
            self._put(place, pop)
            if len(pop.acked) < len(pop.offsets):
                # The messages that are left may be visible sooner.
                self._watch(place)
        return pop

    def put_off(self, place: Place, offset: int, until_ms: int) -> None:
        """Make a message of the last pop invisible until a time. The change joins the store's batch."""
        pop = self._pops[place]
        self._put(place, msgspec.structs.replace(pop, put_off=pop.put_off | {offset: until_ms}))
        self._watch(place)

    def forget(self, places: Iterable[Place]) -> None:
        """Forget the last pops of these queues. The change joins the store's batch."""
        for place in places:
            if place in self._pops:
                self._store.delete_note(_NOTE + _name(place))
                self._unstored.add(place)
                del self._pops[place]

    def forget_group(self, group: str) -> None:
        """Forget the pops of a group that is gone, or whose progress is gone."""
        self.forget([place for place in self._pops if place.group == group])

    def forget_topics(self, topics: AbstractSet[str]) -> None:
        """Forget the pops of topics that are gone."""
        self.forget([place for place in self._pops if place.topic in topics])

    def released(self, now_ms: int, most: int) -> list[Place] | None:
        """Return queues that have stopped blocking since the last call because a time has passed. Check so many at
        most. Return None when none is left to check."""
        free: list[Place] = []
        for looked_at in range(most):
            if not self._releases or self._releases[0][0] > now_ms:
                return free if looked_at else None
            time_ms, place = heapq.heappop(self._releases)
            if self._watched.get(place) != time_ms:
                continue
            del self._watched[place]
            pop = self._pops.get(place)
            if pop is not None and pop.blocks(None, now_ms):
                self._watch(place)
            elif pop is not None:
                free.append(place)
        return free

    def _put(self, place: Place, pop: OrderedPop) -> None:
        self._store.put_note(_NOTE + _name(place), msgspec.json.encode(pop))
        self._unstored.add(place)
        self._pops[place] = pop

    def _watch(self, place: Place) -> None:
        """Have `released` check a queue when its messages are visible again."""
        pop = self._pops[place]
        visible_ms = pop.visible_ms(pop.popped_ms)
        watched = self._watched.get(place)
        if watched is None or visible_ms < watched:
            self._watched[place] = visible_ms
            heapq.heappush(self._releases, (visible_ms, place))


def _name(place: Place) -> bytes:
    return "\0".join(map(str, place)).encode()
