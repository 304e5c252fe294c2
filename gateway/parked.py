"""Pulls that wait for a message, by queue."""

from __future__ import annotations

from typing import Protocol

from storage import Queue


class Parked(Protocol):
    """A pull that waits.

    `deadline` is in reactor seconds: then it is answered with nothing.
    """

    queue: Queue
    deadline: float

    @property
    def alive(self) -> bool:
        """False once the client is gone."""

    def retry(self) -> bool:
        """Answer if there is something to answer with; True when it was answered."""

    def give_up(self) -> None:
        """Answer that there is nothing."""


class ParkingLot:
    """Parks pulls, wakes them when their queue grows, and lets them go at their deadline.

    Whoever parks has just looked at the queue, and commits do not happen in between, so no message can slip in unseen.
    """

    def __init__(self) -> None:
        self._waiting: dict[Queue, list[Parked]] = {}

    def __len__(self) -> int:
        return sum(len(waiting) for waiting in self._waiting.values())

    def park(self, pull: Parked) -> None:
        """Let a pull wait until its queue grows, but not past its deadline."""
        self._waiting.setdefault(pull.queue, []).append(pull)

    def wake(self, queue: Queue) -> None:
        """Look again for every pull that waits for this queue."""
        waiting = self._waiting.pop(queue, None)
        if waiting is None:
            return
        still = [pull for pull in waiting if pull.alive and not pull.retry()]
        if still:
            self._waiting.setdefault(queue, []).extend(still)

    def sweep(self, now: float) -> None:
        """Let go of the pulls whose deadline has come, and forget those whose client is gone.

        Every parked pull is looked at: most are answered long before their deadline, so a list ordered by deadline
        would be larger and costlier to keep than this is to walk.
        """
        for queue, waiting in list(self._waiting.items()):
            over = [pull for pull in waiting if pull.deadline <= now or not pull.alive]
            if not over:
                continue
            still = [pull for pull in waiting if pull.deadline > now and pull.alive]
            if still:
                self._waiting[queue] = still
            else:
                del self._waiting[queue]
            for pull in over:
                pull.give_up()

    def release_all(self) -> None:
        """Let go of everything, as the gateway stops."""
        self.sweep(float("inf"))
