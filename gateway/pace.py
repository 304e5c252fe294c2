"""Decides whether a commit waits for more sends: one commit for all of them costs as much as one for a single send."""

from __future__ import annotations

from collections.abc import Generator
from enum import IntEnum, auto
from itertools import cycle
from math import sqrt
from typing import Final

FORGETTING: Final = 0.7
"""The factor by which the number of senders shrinks after a commit with fewer of them."""

MOST_EXPECTED: Final = 256
"""Most senders that a commit waits for. If so many share a commit, its cost no longer matters."""

OFTEN: Final = 4_000
"""Sends per second above which it pays to rest. Below, a turn seldom has more than one anyway."""

MOST_REST: Final = 0.002
"""Most seconds from one turn of the reactor to the next while it rests. They are 0.001 for `OFTEN` sends per second,
and grow with these."""

SPAN_SECONDS: Final = 0.1
SPAN_SENDS: Final = 256
"""Least seconds and sends of a span. Sends per second are compared between spans."""

LONGEST_SPAN: Final = 1.0
"""Seconds of a span above which nothing is tried: with so few sends, differences are chance."""

MOST_SPANS: Final = 32
"""Most spans between two trials: a trial of the wrong way may cost a third of a span's sends, or half of them."""

WINS: Final = 2
"""Trials in a row that another way has to win."""

LEAST_CHANCE: Final = 0.03
"""The part by which spans with very many sends differ by chance. Those with few differ by more: by 1.5 times the
standard deviation of a count."""


class Way(IntEnum):
    """Ways to commit sends, the cheapest first."""

    RESTING = auto()
    """A commit waits for nobody. If sends come often, the reactor rests between its turns, so that a turn has several:
    to be woken for each of them costs more than the sends themselves."""

    IN_STEP = auto()
    """A commit waits for as many senders as there were lately. Those that send again as soon as they are answered come
    back together if they were answered together."""

    AT_ONCE = auto()
    """A commit waits for nobody, and nobody rests. Senders and the gateway then work at the same time, but in smaller
    batches."""


class Pace:
    """Chooses the cheapest way to commit sends that does not lower their number.

    A gateway does not see whether senders wait for its answers. But those that do send less if they get them later, and
    the others do not. So from time to time another way is tried for a moment, and the sends per second are compared.

    :param wait: seconds that a commit may wait for the senders that it expects; 0 if it never waits.
    """

    def __init__(self, wait: float) -> None:
        self.wait = wait
        self._senders = 1.0
        self._way = self._usual = Way.IN_STEP
        self._sends = 0
        self._since = 0.0
        self._trials = self._try_other_ways()
        next(self._trials)
        self.expected = 1.0
        """Senders that the next commit waits for."""
        self.rest = 0.0
        """Seconds from the beginning of a turn with a commit to that of the next turn."""

    def committed(self, sends: int, now: float) -> None:
        """Count a commit.

        :param now: monotonic time in seconds.
        """
        self._sends += sends
        if self._way is Way.IN_STEP:
            self._senders = min(max(sends, self._senders * FORGETTING), MOST_EXPECTED)
            self.expected = self._senders
        seconds = now - self._since
        if seconds >= SPAN_SECONDS and self._sends >= SPAN_SENDS and self.wait:
            self._end_span(self._sends / seconds, seconds)
            self._sends, self._since = 0, now

    def _end_span(self, rate: float, seconds: float) -> None:
        """Note the sends per second of a span."""
        if seconds <= LONGEST_SPAN or self._way is not self._usual:
            self._trials.send(rate)
        self.expected = self._senders if self._way is Way.IN_STEP else 1.0
        rests = self._way is Way.RESTING and rate >= OFTEN
        self.rest = min(rate / OFTEN / 1000, MOST_REST, self.wait) if rests else 0.0

    def _try_other_ways(self) -> Generator[None, float, None]:
        """Try each other way now and then, and take it once it has won. Is sent the sends per second of each span, at
        its end."""
        pause = 1
        for way in cycle(Way):
            if way is self._usual:
                continue
            for _ in range(pause):
                yield
            pause = min(2 * pause, MOST_SPANS)
            wins = 0
            while wins < WINS and (yield from self._wins(way)):
                wins += 1
            if wins == WINS:
                self._way = self._usual = way
                pause = 1

    def _wins(self, way: Way) -> Generator[None, float, bool]:
        """Try a way in one span. Return whether it is to be preferred to the usual one."""
        before = yield
        self._way = way
        tried = yield
        self._way = self._usual
        after = yield
        usual = (before + after) / 2
        chance = LEAST_CHANCE + 1.5 / sqrt(max(SPAN_SENDS, tried * SPAN_SECONDS))
        if way < self._usual:
            return tried > usual * (1 - chance)
        return tried * (1 - chance) > usual
