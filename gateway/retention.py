"""Lets messages expire once they are past their retention, and removes what has expired, evenly spread over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from twisted.logger import Logger

from gateway.broker import Broker
from gateway.reactor import Reactor
from storage import StorageError, expired_bounds, remove_expired

EXPIRE_STEP = 500
"""Most messages that expire in one commit, so that no send waits long for it: some 3 ms of work. While there are more,
each turn of the reactor has one such step."""

REMOVE_STEP = 100
"""Most messages removed in one commit: some 2 ms of work, 10 ms if the messages are not in memory."""

LEAST_PAUSE: Final = 0.01
MOST_PAUSE: Final = 1.0
"""Seconds between two steps of removal, at least and at most: the disk may become full meanwhile."""

LATE_SECONDS: Final = 2 * MOST_PAUSE
"""Seconds behind its time from which on a round counts as late."""

MOST_AT_ONCE = 5_000
"""Most messages of one step while many arrive: then it takes twice as many as were accepted since the previous step.
Large batches make turns long and few; with a smaller step in each of them the disk would fill up."""

ROUNDS_PER_RETENTION: Final = 24
"""Rounds of removal in the time for which messages are kept. With fewer, more neighbouring messages are removed
together, but the disk holds what has expired for longer."""

MOST_SECONDS: Final = 3 * 3_600.0
"""Seconds between the beginnings of two rounds at most: topics may have a shorter retention, and be deleted."""

SHARE_OF_ROUND: Final = 0.9
"""The share of the time between two rounds over which a round is spread."""


@dataclass(slots=True)
class _Round:
    """A round of removal: when it began, and the seconds over which it is spread; the first and the last sequence of
    what it removes, and where its next step begins."""

    began: float
    seconds: float
    first: bytes
    last: bytes
    at: bytes

    def seconds_ahead(self, now: float) -> float:
        """Return how long the next step should wait, as the round has come further than time has."""
        first = int.from_bytes(self.first)
        count = int.from_bytes(self.last) - first + 1
        done = (int.from_bytes(self.at) - first) / count
        return done * self.seconds - (now - self.began)


class Retention:
    """The steps of retention; `Housekeeping` says when they run."""

    log = Logger()

    def __init__(self, reactor: Reactor, broker: Broker) -> None:
        self._reactor = reactor
        self._broker = broker
        self._expire_from = b""
        self._round: _Round | None = None
        self._next_round = 0.0
        self._clean_ups = broker.clean_ups
        self._expired_at = self._removed_at = 0

    def expire(self) -> bool:
        """Let the next messages expire. Return True when there may be more."""
        broker = self._broker
        if self._expire_from and broker.committer.failing:
            # What the last step did is undone. The next clean-up tries again.
            self._expire_from = b""
            return False
        sequence = broker.store.committed_sequence
        came = sequence - self._expired_at if self._expire_from else 0
        self._expired_at = sequence
        try:
            step = broker.expire_messages(_limit(EXPIRE_STEP, came), self._expire_from)
        except StorageError as error:
            self._expire_from = b""
            self.log.error("the clean-up of old messages failed: {error}", error=str(error))
            return False
        finally:
            self._commit()
        self._expire_from = step.behind or b""
        return step.behind is not None

    def remove(self) -> bool:
        """Remove the next expired messages when it is time. Return True while a round of removal goes on, or waits for
        messages that are about to expire."""
        broker, now = self._broker, self._reactor.seconds()
        if broker.committer.failing:
            return False
        if self._round is None or (self._is_urgent and self._round.seconds):
            self._round = self._begin(now)
        current = self._round
        if current is None:
            return bool(self._expire_from)
        ahead = current.seconds_ahead(now)
        if ahead > 0:
            return True
        sequence = broker.store.committed_sequence
        # Only a round that does not keep up takes more at once. Others make longer pauses, in which much may come.
        came = sequence - self._removed_at if ahead < -LATE_SECONDS else 0
        self._removed_at = sequence
        limit = _limit(REMOVE_STEP, came)
        try:
            step = remove_expired(
                broker.store, broker.clock.now_ms(), limit, current.at, current.last
            )
        except StorageError as error:
            self._round = None
            self.log.error("the removal of old messages failed: {error}", error=str(error))
            return False
        finally:
            self._commit()
        if step.behind is None:
            self._round = None
            return False
        current.at = step.behind
        return True

    def pause(self) -> float:
        """Return the seconds until the next step of removal."""
        if self._round is None:
            return LEAST_PAUSE
        ahead = self._round.seconds_ahead(self._reactor.seconds())
        return min(max(ahead, LEAST_PAUSE), MOST_PAUSE)

    @property
    def _is_urgent(self) -> bool:
        return self._broker.intake.disk_full or self._broker.clean_ups != self._clean_ups

    def _begin(self, now: float) -> _Round | None:
        """Begin a round if it is time for one and messages have expired. It waits for others that are about to, unless
        the disk is full."""
        broker, is_urgent = self._broker, self._is_urgent
        is_time = (now >= self._next_round or is_urgent) and not self._expire_from
        if not is_time and not broker.intake.disk_full:
            return None
        bounds = expired_bounds(broker.store)
        if bounds is None:
            return None
        self._clean_ups = broker.clean_ups
        seconds = min(broker.config.retention_ms / 1_000 / ROUNDS_PER_RETENTION, MOST_SECONDS)
        self._next_round = now + seconds
        first, last = bounds
        return _Round(now, 0 if is_urgent else seconds * SHARE_OF_ROUND, first, last, first)

    def _commit(self) -> None:
        if self._broker.store.has_changes:
            self._broker.committer.change()


def _limit(least: int, came: int) -> int:
    return min(max(least, 2 * came), MOST_AT_ONCE)
