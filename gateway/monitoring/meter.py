"""Counts of the committer for operators. They cost a few additions per commit or checkpoint, none per message."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Distribution:
    """How often a value fell between which bounds, as in a Prometheus histogram.

    :param bounds: the upper bounds of the classes, in order; values above the last bound are counted too.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def cumulative(self) -> list[tuple[str, int]]:
        """Return each bound as text, the last as `+Inf`, with the number of values up to it."""
        rows = []
        count = 0
        for bound, more in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            count += more
            rows.append((bound, count))
        return rows


class Meter:
    """What the committer did since the start. Times are seconds."""

    def __init__(self) -> None:
        self.commit_seconds = Distribution(
            (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
        )
        self.write_seconds = Distribution(self.commit_seconds.bounds)
        self.checkpoint_seconds = Distribution(self.commit_seconds.bounds)
        """Of checkpoints made once the answers are sent; where a batch itself has to be one, it counts as a commit."""
        self.checkpoint_sync_seconds = Distribution(self.commit_seconds.bounds)
        """Of all checkpoints: the time until the disk holds them."""
        self.batch_answers = Distribution((0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024))
        self.firing_error = Distribution(
            (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 60.0, 3600.0)
        )
        self.refused = 0
        """Batches that could not be stored."""
        self.failed_checkpoints = 0

    def committed(self, answers: int, seconds: float, write_seconds: float) -> None:
        """Count a batch that is on disk, and the requests that waited for it.

        :param write_seconds: the part of the time that writing to the redo log and the disk's sync took.
        """
        self.batch_answers.add(answers)
        self.commit_seconds.add(seconds)
        self.write_seconds.add(write_seconds)

    def fired(self, messages: int, late_ms: int) -> None:
        """Count the messages of one step that entered their queues; the earliest was so late, and none was later."""
        self.firing_error.add(late_ms / 1000, messages)
