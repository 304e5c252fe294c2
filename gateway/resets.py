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
    as the group's progress is where it was set: progress goes back when it could not be stored. Then an earlier reset
    of the queue counts again, so there can be several until the batch is stored. What ends a reset is part of a batch
    too: `picked_up` and `reload` are called once that is stored.
    """

    def __init__(self, store: Store) -> None:
        self._progress = store.progress
        self.offsets: dict[tuple[str, str, int], set[int]] = {}

    def assign(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Have the group's next pull of a queue go on at an offset."""
        self.offsets.setdefault((group, topic, queue), set()).add(offset)

    def find(self, group: str, topic: str, queue: int) -> int | None:
        """Return the offset of a reset that has not been picked up; None where there is none. Until then the group's
        own reports are to be dropped."""
        offsets = self.offsets.get((group, topic, queue), ())
        offset = self._progress.get(group.encode(), topic.encode(), queue) if offsets else None
        return offset if offset in offsets else None

    def picked_up(self, group: str, topic: str, queue: int, offset: int) -> None:
        """Drop the reset that a consumer was told of, unless there was another one meanwhile."""
        if self.find(group, topic, queue) in (offset, None):
            self.offsets.pop((group, topic, queue), None)

    def reload(self) -> None:
        """Drop the resets that do not count now: they could not be stored, or the group's progress was set again or was
        deleted with its topic. Another topic of the same name is not reset."""
        current = ((place, self.find(*place)) for place in self.offsets)
        self.offsets = {place: {offset} for place, offset in current if offset is not None}
