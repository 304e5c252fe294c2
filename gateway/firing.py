"""Fires due messages: timed ones, waiting ones of resumed topics, and recurring ones.

They enter their queues in bounded steps, as part of the batch that the committer is about to store.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from twisted.logger import Logger

from gateway.clock import Clock
from storage import Fired, StorageError, Store, fire_crowded_out, fire_due, fire_resumed

MAX_FIRED = 500
"""Most timed messages that one step fires, some 3 ms of work: sends and pulls are handled between two steps. A step
fires as many waiting messages of resumed topics."""

MAX_RECURRED = 100
"""Most recurring messages that one step fires, some 6 ms of work: each is accepted as if it were sent."""

MAX_CROWDED_OUT = 100
"""Most messages that a step adds of each further topic, beside that of the earliest message, while more messages are
due than it may fire."""


LONGEST_GATHERING_MS = 8
"""Most milliseconds that a due message waits for messages that are due just after it."""

UNGATHERED = 3
"""Timed messages per millisecond for which a step does not wait. It waits a millisecond for each further one."""

RATE_SPAN_MS = 32
"""Milliseconds over which the rate of timed messages is averaged, about."""


class Recurred(NamedTuple):
    """Result of one step of recurring messages: how many entered their queues, for how many a misfire policy decided,
    and whether more are due."""

    messages: int
    misfired: int
    more: bool


class Recurrences(Protocol):
    """Puts recurring messages into their queues, and stores their next times in the same batch."""

    @property
    def next_due_ms(self) -> int | None:
        """When the first recurring message is due; it may have been deleted since."""

    def fire_due(self, now_ms: int, limit: int) -> Recurred:
        """Fire at most `limit` due recurring messages."""

    def reload(self) -> None:
        """Read the stored state again: the batch could not be stored."""


class Step(NamedTuple):
    """Result of one step: what entered the queues, and whether more is due. `earliest_ms` is the first due time of its
    timed messages."""

    now_ms: int = 0
    timed: int = 0
    earliest_ms: int = 0
    resumed: int = 0
    recurred: int = 0
    misfired: int = 0
    more: bool = False


NOTHING = Step()
"""The result of a step when nothing is due, as of most that a send brings about."""


class Gathering:
    """Decides how long timed messages wait after a step, so that the next step fires several of them.

    A step costs a commit, and for each queue that grows a pull's answer and the client's next pull. If messages are due
    in every millisecond, a step every few milliseconds shares this cost: at 10,000 messages a second to 8 queues an
    answer holds 9 messages instead of 2. Messages wait longer at higher rates. They do not wait below 3,500 a second,
    or when nothing has fired for some milliseconds.
    """

    def __init__(self) -> None:
        self._rate = 0.0
        self._since_ms = 0
        self._until_ms = 0

    def fired(self, messages: int, now_ms: int) -> None:
        """Count the messages that a step fired."""
        elapsed_ms = max(1, now_ms - self._since_ms)
        weight = min(1.0, elapsed_ms / RATE_SPAN_MS)
        self._rate += (messages / elapsed_ms - self._rate) * weight
        self._since_ms = now_ms
        wait_ms = min(max(0, round(self._rate) - UNGATHERED), LONGEST_GATHERING_MS)
        self._until_ms = now_ms + wait_ms

    def until(self, now_ms: int) -> int:
        """Return when messages fire again; 0 when they need not wait, as after the clock was set back."""
        return self._until_ms if self._since_ms <= now_ms < self._until_ms else 0


class Firing:
    """Fires due messages. A step counts only once `stored` is called with it."""

    log = Logger()

    def __init__(self, clock: Clock, store: Store) -> None:
        self._clock = clock
        self._store = store
        self._next_timed: int | None = store.next_due()
        self._gathering = Gathering()
        self._behind = b""  # the topic after which `fire_crowded_out` continues
        self._recurrences: Recurrences | None = None
        self.fired = 0
        """Messages fired since the start, without recurring ones."""
        self.recurred = 0
        """Messages that recurring messages have sent since the start. Those of a paused topic wait, and count in
        `fired` too when they fire."""
        self.misfired = 0
        """How often a misfire policy decided about a recurring message."""

    @property
    def next_due_ms(self) -> int | None:
        """When the earliest message is due; it may have been aborted since. While messages wait to fire together, the
        time when they fire. None when no message is pending."""
        timed = self._next_timed
        if timed is not None:
            timed = max(timed, self._gathering.until(self._clock.now_ms()))
        recurring = self._recurrences.next_due_ms if self._recurrences is not None else None
        if recurring is None or timed is None:
            return timed if recurring is None else recurring
        return min(timed, recurring)

    def recur(self, recurrences: Recurrences) -> None:
        """Fire recurring messages too."""
        self._recurrences = recurrences

    def due_at(self, due_ms: int) -> None:
        """Note the due time of a message that joined the batch."""
        if self._next_timed is None or due_ms < self._next_timed:
            self._next_timed = due_ms

    def step(self) -> Step:
        """Fire due messages, as many as one step may.

        :raises StorageError: when they cannot be fired; nothing of the whole batch is stored then.
        """
        try:
            return self._step()
        except StorageError:
            self._store.abandon()
            raise
        except Exception as error:
            self.log.failure("due messages cannot be fired")
            failure = self._store.spoil(error)
            self._store.abandon()
            raise failure from error

    def _step(self) -> Step:
        now_ms = self._clock.now_ms()
        is_due, recurrences = self._is_due(now_ms), self._due_recurrences(now_ms)
        has_resumed = self._store.paused.has_resumed
        if not is_due and not has_resumed and recurrences is None:
            return NOTHING
        timed = self._fire_timed(now_ms) if is_due else Fired(0, more=False)
        waited = Fired(0, more=False)
        if has_resumed:
            waited = fire_resumed(self._store, now_ms, self._clock.stored_ms(), MAX_FIRED)
            # If the clock was set back, some of what waited is due later.
            if (due_ms := self._store.next_due()) is not None:
                self.due_at(due_ms)
        recurred = Recurred(0, 0, more=False)
        if recurrences is not None:
            recurred = recurrences.fire_due(now_ms, MAX_RECURRED)
        return Step(
            now_ms=now_ms,
            timed=timed.messages,
            earliest_ms=self._next_timed or now_ms,
            resumed=waited.messages,
            recurred=recurred.messages,
            misfired=recurred.misfired,
            more=timed.more or waited.more or recurred.more,
        )

    def stored(self, step: Step) -> None:
        """Count a step, which is on disk now."""
        if step is NOTHING:
            return
        self.fired += step.timed + step.resumed
        self.recurred += step.recurred
        self.misfired += step.misfired
        if self._is_due(self._clock.now_ms()):
            self._next_timed = self._store.next_due()
        # While more is due than a step may fire, messages do not wait for others.
        if step.timed and not step.more and self._clock.moves:
            self._gathering.fired(step.timed, step.now_ms)

    def reload(self) -> None:
        """Update `next_due_ms`. It may belong to a message that was aborted, rescheduled or paused since; or a message
        is earlier again, because the batch that changed it could not be stored."""
        self._next_timed = self._store.next_due()
        if self._recurrences is not None:
            self._recurrences.reload()

    def _is_due(self, now_ms: int) -> bool:
        """Return whether timed messages fire now."""
        due_ms = self._next_timed
        return due_ms is not None and due_ms <= now_ms and not self._gathering.until(now_ms)

    def _due_recurrences(self, now_ms: int) -> Recurrences | None:
        """Return what fires recurring messages; None when none is due."""
        recurrences = self._recurrences
        due_ms = recurrences.next_due_ms if recurrences is not None else None
        return recurrences if due_ms is not None and due_ms <= now_ms else None

    def _fire_timed(self, now_ms: int) -> Fired:
        stored_ms = self._clock.stored_ms()
        fired = fire_due(self._store, now_ms, stored_ms, MAX_FIRED)
        if not fired.more:
            return fired
        others, self._behind = fire_crowded_out(
            self._store, now_ms, stored_ms, MAX_CROWDED_OUT, self._behind
        )
        return Fired(fired.messages + others, more=True)
