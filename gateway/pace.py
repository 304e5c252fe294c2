"""Decides whether a commit waits for more sends: one commit for all of them costs as much as one for a single send."""

from __future__ import annotations

from collections.abc import Generator
from math import sqrt
from typing import Final

FORGETTING: Final = 0.7
"""The factor by which the number of senders shrinks after a commit with fewer of them."""

MOST_EXPECTED: Final = 256
"""Most senders that a commit waits for. If so many share a commit, its cost no longer matters."""

OFTEN: Final = 4_000
"""Sends per second above which the reactor rests if they come evenly. Below, a turn seldom has more than one anyway."""

REST_SECONDS: Final = 0.001
"""Seconds from one turn of the reactor to the next while it rests."""

SPAN_SECONDS: Final = 0.1
SPAN_SENDS: Final = 256
"""Least seconds and sends of a span. Sends per second are compared between spans."""

LONGEST_SPAN: Final = 1.0
"""Seconds of a span above which nothing is tried: with so few sends, differences are chance."""

MOST_SPANS: Final = 32
"""Most spans between two trials: a trial of the wrong way costs up to a third of a span's sends."""

WINS: Final = 2
"""Trials in a row that the other way has to win."""

LEAST_CHANCE: Final = 0.03
"""The part by which spans with very many sends differ by chance. Those with few differ by more: by 1.5 times the
standard deviation of a count."""


class Pace:
    """Chooses between two ways to commit sends.

    In step: senders that wait for each answer send again as soon as they have it, so those that were answered together
    come back together. A commit waits for as many as there were lately, for some milliseconds at most.

    Evenly: senders send whenever they have something to send. Then waiting for them only delays those that are there,
    so a commit waits for nobody. If sends come often, the reactor rests between its turns instead, so that a turn has
    several: to be woken for each of them costs more than the sends themselves.

    A gateway does not see which senders are the same. But those that wait for answers send less if they get them later,
    and the others do not. So from time to time the other way is tried for a moment. The second way is taken if it does
    not get fewer sends, the first one only if it gets more.

    :param wait: seconds that a commit may wait for the senders that it expects; 0 if it never waits.
    """

    def __init__(self, wait: float) -> None:
        self._wait = wait
        self._senders = 1.0
        self._is_even = False
        self._is_trial = False
        self._sends = 0
        self._since = 0.0
        self._trials = self._try_the_other_way()
        next(self._trials)
        self.expected = 1.0
        """Senders that the next commit waits for."""
        self.rest = 0.0
        """Seconds from the beginning of a turn with a commit to that of the next turn."""

    def committed(self, sends: int, now: float) -> None:
        """Count a commit.

        :param now: monotonic time in seconds.
        """
        if not self._waits_for_nobody:
            self._senders = min(max(sends, self._senders * FORGETTING), MOST_EXPECTED)
        self._sends += sends
        seconds = now - self._since
        if seconds >= SPAN_SECONDS and self._sends >= SPAN_SENDS and self._wait:
            self._end_span(self._sends / seconds, seconds)
            self._sends, self._since = 0, now
        self.expected = 1.0 if self._waits_for_nobody else self._senders

    @property
    def _waits_for_nobody(self) -> bool:
        return self._is_even != self._is_trial

    def _end_span(self, rate: float, seconds: float) -> None:
        """Note the sends per second of a span."""
        if seconds <= LONGEST_SPAN or self._is_trial:
            self._trials.send(rate)
        often = self._waits_for_nobody and rate >= OFTEN
        self.rest = min(REST_SECONDS, self._wait) if often else 0.0

    def _try_the_other_way(self) -> Generator[None, float, None]:
        """Try the other way in a span now and then, and take it once it has won. Is sent the sends per second of each
        span, at its end."""
        pause, wins = 1, 0
        while True:
            for _ in range(pause):
                yield
            before = yield
            self._is_trial = True
            tried = yield
            self._is_trial = False
            after = yield
            if not self._has_won(tried, (before + after) / 2):
                wins, pause = 0, min(2 * pause, MOST_SPANS)
                continue
            wins, pause = wins + 1, 1
            if wins == WINS:
                self._is_even = not self._is_even
                wins = 0

    def _has_won(self, tried: float, usual: float) -> bool:
        """Whether the other way is to be preferred, by the sends per second with it and before and after."""
        chance = LEAST_CHANCE + 1.5 / sqrt(max(SPAN_SENDS, tried * SPAN_SECONDS))
        if self._is_even:
            return tried * (1 - chance) > usual
        return tried > usual * (1 - chance)
