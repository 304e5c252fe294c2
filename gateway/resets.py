"""Offsets that an operator has reset, until the active consumers have learned of them.

A consumer keeps its own place in a queue and reports it every few seconds, so the report would overwrite a new offset.
Until the queue's next pull, which is answered with the new offset, such reports are acknowledged and dropped
(ConsumerOffsetManager.assignResetOffset, PullMessageProcessor).
"""

from __future__ import annotations

from storage import Store


class Resets:
    """Resets that no pull has picked up yet. They are in memory: after a restart only the stored offset counts.

    `offsets` has them by group, topic and queue; pulls check only whether there are any at all. A reset counts as long
    as the group's progress is where it was set: progress goes back when it could not be stored.
    """

    def __init__(self, store: Store) -> None:
        self._progress = store.progress
        self.offsets: dict[tuple[str, str, int], int] = {}

    def assign(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Have the group's next pull of a queue go on at an offset."""
        self.offsets[group, topic, queue] = offset

    def waits(self, group: str, topic: str, queue: int) -> bool:
        """Whether a reset has not been picked up, so that the group's own reports are to be dropped."""
        offset = self.offsets.get((group, topic, queue))
        return offset is not None and self._is_at(offset, group, topic, queue)

    def take(self, group: str, topic: str, queue: int) -> int | None:
        """Return the offset at which a pull is to go on, only once; None where nothing was reset."""
        offset = self.offsets.pop((group, topic, queue), None)
        if offset is None or not self._is_at(offset, group, topic, queue):
            return None
        return offset

    def forget_group(self, group: str) -> None:
        """Drop the resets of a deleted group."""
        self._forget([place for place in self.offsets if place[0] == group])

    def forget_topic(self, topic: str) -> None:
        """Drop the resets of a deleted topic; another topic of the same name is not reset."""
        self._forget([place for place in self.offsets if place[1] == topic])

    def _is_at(self, offset: int, group: str, topic: str, queue: int) -> bool:
        return self._progress.get(group.encode(), topic.encode(), queue) == offset

    def _forget(self, places: list[tuple[str, str, int]]) -> None:
        for place in places:
            del self.offsets[place]
