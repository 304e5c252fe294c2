"""The progress of consumer groups: the offset of each group in each queue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

from storage.environment import Tables
from storage.keys import MAX_OFFSET_NAMES, U64, offset_key, pack_u64, split_offset_key
from storage.logged import LoggedTransaction
from storage.reader import Reader
from storage.shapes import is_progress

Place = tuple[bytes, bytes, int]
"""Group, topic, queue."""

PLACES_AT_ONCE: Final = 2_000
"""The most noted offsets that one batch writes, some 5 ms of work."""


class Progress:
    """The table `offsets`, which is also kept in memory, with the changes of the open batch.

    A noted offset is visible at once, and on disk once `include` has made it part of a batch. Consumers send their
    offset with each pull, and a batch for each would cost more than the pull.

    :param damaged: receives the keys of rows that cannot be read: these queues have no progress.
    """

    def __init__(self, txn: Reader, tables: Tables, damaged: set[bytes]) -> None:
        self._tables = tables
        # By group, topic and queue: a query about one group reads no other.
        self._offsets: dict[bytes, dict[bytes, dict[int, int]]] = {}
        for key, value in txn.cursor(db=tables.offsets):
            if is_progress(key, value):
                self._put(split_offset_key(key), U64.unpack(value)[0])
            else:
                damaged.add(key)
        # In the order in which they were noted: a batch takes those that have waited longest.
        self._changed: dict[Place, None] = {}
        self._written: set[Place] = set()
        self._advanced: dict[Place, int | None] = {}
        self.is_included = False
        """Whether noted offsets that are not on disk are part of the batch."""

    def get(self, group: bytes, topic: bytes, queue: int) -> int | None:
        """Return a consumer group's offset in a queue; None when it has none."""
        try:
            return self._offsets[group][topic].get(queue)
        except KeyError:
            return None

    def groups(self) -> Iterable[bytes]:
        """Return the groups that have an offset."""
        return self._offsets.keys()

    def groups_in(self, *topics: bytes) -> list[bytes]:
        """Return the groups that have an offset in any of these topics."""
        wanted = set(topics)
        return [group for group, of in self._offsets.items() if not of.keys().isdisjoint(wanted)]

    def of_group(self, group: bytes) -> Mapping[bytes, Mapping[int, int]]:
        """Return a group's offsets, by topic and queue."""
        return self._offsets.get(group, {})

    def rows(self) -> Iterator[tuple[bytes, bytes, int, int]]:
        """Return all offsets: group, topic, queue, offset. Each is as it is when the iterator reaches it, if offsets
        are noted or dropped meanwhile."""
        for group in list(self._offsets):
            for topic, queues in list(self.of_group(group).items()):
                for queue, offset in list(queues.items()):
                    yield group, topic, queue, offset

    @property
    def has_changes(self) -> bool:
        """Whether an offset is not on disk yet."""
        return bool(self._changed)

    def note(self, group: bytes, topic: bytes, queue: int, offset: int) -> None:
        """Note a consumer group's offset.

        :raises ValueError: when queue or offset is negative or too large, or a name too long. Such progress could never
            be stored, and every batch with it would fail.
        """
        topics = self._offsets.get(group)
        queues = topics.get(topic) if topics is not None else None
        if queues is None or queues.get(queue) != offset:
            if not (0 <= queue < 1 << 32 and 0 <= offset < 1 << 63):
                raise ValueError(f"queue {queue} offset {offset} is not a place in a queue")
            if len(group) + len(topic) > MAX_OFFSET_NAMES or b"\0" in group + topic:
                raise ValueError(f"group {group!r} or topic {topic!r} is not a name")
            if queues is None:
                queues = self._offsets.setdefault(group, {}).setdefault(topic, {})
            queues[queue] = offset
            self._changed[group, topic, queue] = None

    def advance(self, group: bytes, topic: bytes, queue: int, offset: int) -> None:
        """Note an offset as part of the batch. Unlike an offset from `note`, it is undone when the batch is refused,
        together with the batch's rows for the messages before that offset.

        :raises ValueError: as from `note`.
        """
        place = (group, topic, queue)
        before = self.get(group, topic, queue)
        self.note(group, topic, queue, offset)
        self._advanced.setdefault(place, before)

    def forget_group(self, group: bytes) -> Iterator[None]:
        """Drop a consumer group's progress in all topics. Each step drops up to `PLACES_AT_ONCE` offsets, as part of
        the batch, which is to be stored before the next step."""
        return self._forget((group, topic) for topic in list(self.of_group(group)))

    def forget_topics(self, *topics: bytes) -> Iterator[None]:
        """Drop all consumer groups' progress in these topics, in steps as `forget_group`."""
        wanted = set(topics)
        return self._forget(
            (group, topic)
            for group in self.groups_in(*topics)
            for topic in self.of_group(group).keys() & wanted
        )

    def include(self) -> int:
        """Make up to `PLACES_AT_ONCE` offsets that are not on disk part of the batch. If the batch is refused, they
        join the next one.

        :returns: how many batches all of them need.
        """
        self.is_included = bool(self._changed)
        return -(-len(self._changed) // PLACES_AT_ONCE)

    def write(self, txn: LoggedTransaction) -> None:
        """Write the changes to the batch that is about to be committed."""
        self._written = set(self._advanced)
        if self.is_included:
            self._written.update(islice(self._changed, PLACES_AT_ONCE))
        for place in self._written:
            offset = self.get(*place)
            if offset is None:
                txn.delete(offset_key(*place), db=self._tables.offsets)
            else:
                txn.put(offset_key(*place), pack_u64(offset), db=self._tables.offsets)

    def commit(self) -> None:
        """Note that the batch is stored."""
        for place in self._written:
            self._changed.pop(place, None)
        self.is_included = False
        self._advanced = {}

    def abandon(self) -> None:
        """Undo what the batch advanced and dropped."""
        for place, before in self._advanced.items():
            if before is None:
                self._remove(place)
            else:
                self._put(place, before)
        self._advanced = {}

    def _forget(self, groups_and_topics: Iterable[tuple[bytes, bytes]]) -> Iterator[None]:
        left = PLACES_AT_ONCE
        for group, topic in groups_and_topics:
            while queues := self.of_group(group).get(topic):
                if not left:
                    self.include()
                    yield
                    left = PLACES_AT_ONCE
                    continue
                for queue, offset in list(islice(queues.items(), left)):
                    place = (group, topic, queue)
                    self._advanced.setdefault(place, offset)
                    self._changed[place] = None
                    self._remove(place)
                    left -= 1
        self.include()

    def _put(self, place: Place, offset: int) -> None:
        group, topic, queue = place
        self._offsets.setdefault(group, {}).setdefault(topic, {})[queue] = offset

    def _remove(self, place: Place) -> None:
        """Drop an offset, if there is one, and the dicts that this leaves empty."""
        group, topic, queue = place
        topics = self._offsets.get(group, {})
        queues = topics.get(topic, {})
        queues.pop(queue, None)
        if not queues:
            topics.pop(topic, None)
        if not topics:
            self._offsets.pop(group, None)
