"""The wall clock, read once for each request and watched for jumps."""

from __future__ import annotations

import time

from twisted.logger import Logger

JUMP_MS = 1_000
"""Smallest step of the wall clock, compared with the monotonic clock, that is logged."""


class Clock:
    """The current time in epoch milliseconds.

    Timers follow the wall clock. If it is set back, they wait until it reaches their time again. If it is set forward,
    the messages that became due fire in bounded batches.
    """

    log = Logger()

    moves: bool = True
    """Whether time passes by itself; a manual clock only moves when it is set."""

    def __init__(self) -> None:
        self._distance_ms = self._measure()
        self._last_stored_ms = 0

    def now_ms(self) -> int:
        """Return epoch milliseconds, rounded down: a message with this due time is due."""
        return time.time_ns() // 1_000_000

    def stored_ms(self) -> int:
        """Return the store time for a message that enters a queue. It never goes back, so that a queue can be searched
        by time whatever the wall clock does."""
        now_ms = self.now_ms()
        if now_ms > self._last_stored_ms:
            self._last_stored_ms = now_ms
        return self._last_stored_ms

    def end_stored_ms(self) -> int:
        """Return the last store time so far. Whatever is stored from now on has a later one."""
        last_ms = self.stored_ms()
        self._last_stored_ms = last_ms + 1
        return last_ms

    def continue_from(self, stored_ms: int) -> None:
        """Continue from the last store time of an earlier process. Log it if the clock was set back since."""
        behind_ms = stored_ms - self.now_ms()
        if self.moves and behind_ms >= JUMP_MS:
            self.log.warn(
                "the wall clock is {step} ms behind the time of the last stored message: if it is wrong "
                "now, set it, as timed messages wait for it",
                step=behind_ms,
            )
        self._last_stored_ms = max(self._last_stored_ms, stored_ms)

    def reload(self) -> None:
        """A batch could not be stored; that changes the time only where it is stored, see `ManualClock`."""

    def watch(self) -> None:
        """Log a step of the wall clock since the last call."""
        distance_ms = self._measure()
        step_ms = distance_ms - self._distance_ms
        self._distance_ms = distance_ms
        if abs(step_ms) < JUMP_MS:
            return
        if step_ms < 0:
            self.log.warn(
                "the wall clock was set back by {step} ms: timed messages wait for it",
                step=-step_ms,
            )
        else:
            self.log.warn(
                "the wall clock was set forward by {step} ms: what became due fires now",
                step=step_ms,
            )

    def _measure(self) -> int:
        """Return by how much the wall clock is ahead of the monotonic one, ms."""
        return (time.time_ns() - time.monotonic_ns()) // 1_000_000
