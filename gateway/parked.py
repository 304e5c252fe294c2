"""Pulls that wait for a message, by queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Final, Protocol

from gateway.config import Config
from gateway.reactor import Reactor
from gateway.router import overloaded
from storage import Growth, Queue

WOKEN_AT_ONCE = 16
"""Woken pulls that are retried in one turn, some 1 ms of work, or 20 ms where each reads 500 messages to judge them.
Thousands of pulls can wait for one queue, for example those of broadcasting consumers."""

LET_GO_AT_ONCE = 2_000
"""Pulls that are let go in one turn of the reactor, some 10 ms of work. The pulls of thousands of clients that came
together, as after a restart, end together as well."""

SWEPT_AT_ONCE = 2_000
"""Queues whose pulls are checked in one turn, some 3 ms of work, or up to 10 ms where they hold most pulls."""


_NO_TAG: Final = frozenset({None})
"""Stands for the tags of pulls that take no message, so that these pulls are kept here and let go too."""


class Parked(Protocol):
    """A pull that waits.

    `deadline` is in reactor seconds: then the pull is answered without messages. With `tag_hashes` it takes only
    messages whose tag has one of these hashes.
    """

    queue: Queue
    deadline: float

    @property
    def tag_hashes(self) -> AbstractSet[int] | None:
        """Hashes of the tags that the pull takes; None for any tag."""

    @property
    def alive(self) -> bool:
        """False once the client is gone."""

    def retry(self, first: int) -> bool:
        """Answer if there is something to answer with; return whether the pull was answered.

        :param first: nothing before this offset is new to the pull.
        """

    def give_up(self) -> None:
        """Answer without messages, if the client is still there."""

    def fail(self, error: Exception) -> None:
        """Answer that `retry` failed. To be called while its error is handled."""


class _Waiting:
    """The pulls that wait for one queue: those that take any message, and those that take certain tags, by tag."""

    def __init__(self) -> None:
        self._for_any: dict[Parked, None] = {}
        self._by_tag: dict[int | None, dict[Parked, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._for_any or self._by_tag)

    def add(self, pull: Parked) -> None:
        tags = pull.tag_hashes
        if tags is None:
            self._for_any[pull] = None
        else:
            for tag in tags or _NO_TAG:
                self._by_tag.setdefault(tag, {})[pull] = None

    def remove(self, pull: Parked) -> None:
        tags = pull.tag_hashes
        if tags is None:
            self._for_any.pop(pull, None)
        else:
            for tag in tags or _NO_TAG:
                waiting = self._by_tag.get(tag, {})
                waiting.pop(pull, None)
                if not waiting:
                    self._by_tag.pop(tag, None)

    def take(self, tags: AbstractSet[int | None]) -> dict[Parked, None]:
        """Take out the pulls that take messages with one of these tags, each once. Those of one tag keep their
        order."""
        taken, self._for_any = self._for_any, {}
        if self._by_tag:
            tagged: dict[Parked, None] = {}
            for tag in self._by_tag.keys() & tags:
                tagged |= self._by_tag[tag]
            for pull in tagged:
                self.remove(pull)
            taken |= tagged
        return taken

    def take_all(self) -> dict[Parked, None]:
        """Take out all pulls."""
        return self.take(self._by_tag.keys())

    def all(self) -> dict[Parked, None]:
        """Return all pulls, each once."""
        if not self._by_tag:
            return self._for_any
        return self._for_any | {pull: None for waiting in self._by_tag.values() for pull in waiting}


class ParkingLot:
    """Parks pulls, wakes them when their queue grows, and lets them go at their deadline.

    A caller parks a pull right after reading its queue, with no commit in between, so no message is missed. New
    messages wake only the pulls that want one of their tags: each pull here has read its queue to the end, or would
    have skipped the rest. At most `max_waiting_requests` pulls are to wait.
    """

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._queues: dict[Queue, _Waiting] = {}
        # Woken pulls that are still to be retried, each with the offset of the first message that is new to it.
        self._woken: deque[tuple[Parked, int]] = deque()
        # Queues that the sweep under way has still to check.
        self._unswept: list[Queue] = []
        self._count = 0
        self._limit = 0

    def configure(self, config: Config) -> None:
        """Set how many pulls may wait."""
        self._limit = config.max_waiting_requests

    def __len__(self) -> int:
        return self._count

    def awaits(self, queue: Queue) -> bool:
        """Whether a pull waits for a queue."""
        return queue in self._queues

    def has_room(self, count: int = 1) -> bool:
        """Whether so many more may wait."""
        return self._count + count <= self._limit

    def check_room(self) -> None:
        """Check that one more pull may wait.

        :raises RequestError: when it may not.
        """
        if not self.has_room():
            raise overloaded("max_waiting_requests", self._limit)

    def park(self, pull: Parked) -> None:
        """Let a pull wait until its queue grows, but not past its deadline."""
        waiting = self._queues.get(pull.queue)
        if waiting is None:
            waiting = self._queues[pull.queue] = _Waiting()
        waiting.add(pull)
        self._count += 1

    def grown(self, growth: Growth) -> None:
        """Retry the pulls that may want the new messages of a queue."""
        waiting = self._queues.get(growth.queue)
        if waiting is not None:
            self._wake(waiting.take(growth.tag_hashes), growth.first)

    def wake(self, queue: Queue) -> None:
        """Retry every pull that waits for this queue, even if the queue has not grown."""
        waiting = self._queues.get(queue)
        if waiting is not None:
            self._wake(waiting.take_all(), queue.visible)

    def sweep(self, now: float) -> bool:
        """Let go of the pulls whose deadline has passed or whose client is gone, as many as fit in one turn. Return
        True when there may be more: then call it again in another turn.

        Every parked pull is checked. Most are answered long before their deadline, so a list ordered by deadline would
        be larger and costlier to keep than this walk is.
        """
        if not self._unswept:
            self._unswept = list(self._queues)
        left = LET_GO_AT_ONCE
        for _ in range(min(SWEPT_AT_ONCE, len(self._unswept))):
            queue = self._unswept.pop()
            waiting = self._queues.get(queue)
            if waiting is None:
                continue
            ended = (pull for pull in waiting.all() if pull.deadline <= now or not pull.alive)
            over = list(islice(ended, left))
            for pull in over:
                waiting.remove(pull)
            if not waiting and not self._woken:
                # Only the sweep deletes an empty entry: where pulls come and go, the same queue is soon waited for.
                del self._queues[queue]
            self._count -= len(over)
            for pull in over:
                pull.give_up()
            left -= len(over)
            if not left:
                self._unswept.append(queue)
                return True
        return bool(self._unswept)

    def release_all(self) -> None:
        """Let go of all pulls, as the gateway stops."""
        # First retry the woken pulls: answered without messages, their clients would go on behind the new ones.
        self._retry_some(len(self._woken))
        self._unswept.clear()
        while self.sweep(float("inf")):
            pass

    def _wake(self, pulls: Collection[Parked], first: int) -> None:
        """Retry these pulls behind those that were woken before. If none of those is left, retry some now."""
        if not self._woken and len(pulls) <= WOKEN_AT_ONCE:
            for pull in pulls:
                self._retry(pull, first)
            return
        is_first = not self._woken
        self._woken += [(pull, first) for pull in pulls]
        if is_first:
            self._retry_some()

    def _retry_some(self, most: int = WOKEN_AT_ONCE) -> None:
        for _ in range(min(most, len(self._woken))):
            self._retry(*self._woken.popleft())
        if self._woken:
            self._reactor.callLater(0, self._retry_some)

    def _retry(self, pull: Parked, first: int) -> None:
        # The pull does not count while it is answered: an answer can bring the same client back at once.
        self._count -= 1
        if not pull.alive:
            pull.give_up()
            return
        try:
            is_answered = pull.retry(first)
        except Exception as error:  # noqa: BLE001 - the other pulls are retried all the same
            # The pull is not parked again: at its deadline it would be answered as if there were nothing new.
            pull.fail(error)
            return
        if not is_answered:
            self.park(pull)
