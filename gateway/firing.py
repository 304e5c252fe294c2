"""What is due: timed messages, those of topics that were resumed, and messages that recur.

All of it goes into queues in bounded steps, as part of the batch that the committer is about to store.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from gateway.clock import Clock
from storage import Fired, StorageError, Store, fire_crowded_out, fire_due, fire_resumed

MAX_FIRED = 500
"""Messages fired in one step, some 3 ms of work: between two steps sends and pulls have their turn. Of each topic that
was resumed, as many of those that waited."""

MAX_RECURRED = 100
"""Recurring messages that fire in one step, some 6 ms of work: what fires is taken in as if it were sent."""

MAX_CROWDED_OUT = 100
"""While more is due than that: messages fired in one step of each topic that is not at the front, at most."""


LONGEST_GATHERING_MS = 4
"""Milliseconds at most that a timed message waits for those that are due just after it."""

GATHERED = 2
"""Timed messages a millisecond for each millisecond of waiting."""

RATE_SPAN_MS = 32
"""Over about how long the rate of timed messages is averaged."""


class Recurred(NamedTuple):
    """What one step of recurring messages did: how many entered their queues, how many were later than they may be, and
    whether more are due."""

    messages: int
    misfired: int
    more: bool


class Recurrences(Protocol):
    """Puts messages that recur into their queues, and notes in the same batch when they do so next."""

    @property
    def next_due_ms(self) -> int | None:
        """When the first of them is due, or was until it was deleted."""

    def fire_due(self, now_ms: int, limit: int) -> Recurred:
        """Fire what is due, at most `limit` of it."""

    def reload(self) -> None:
        """Take over what the store has: the batch was refused."""


class Step(NamedTuple):
    """What one step put into queues, and whether more is due; `earliest_ms` is when the first timed message was due."""

    now_ms: int = 0
    timed: int = 0
    earliest_ms: int = 0
    resumed: int = 0
    recurred: int = 0
    misfired: int = 0
    more: bool = False


class Gathering:
    """How long timed messages wait after a step of firing, so that the next step fires several of them.

    A step costs a commit, and for each queue that grows a pull's answer and the client's next pull. Where messages are
    due in every millisecond, a step every few of them shares that: at 10,000 messages a second to 8 queues an answer
    holds 5 messages in place of 2. They wait the longer the more of them there are, and below 4,000 a second not at
    all; nor does one that is due when nothing has fired for some milliseconds.
    """

    def __init__(self) -> None:
        self._rate = 0.0
        self._since_ms = 0
        self._until_ms = 0

    def fired(self, messages: int, now_ms: int) -> None:
        """A step fired so many."""
        elapsed_ms = max(1, now_ms - self._since_ms)
        weight = min(1.0, elapsed_ms / RATE_SPAN_MS)
        self._rate += (messages / elapsed_ms - self._rate) * weight
        self._since_ms = now_ms
        self._until_ms = now_ms + min(int(self._rate / GATHERED), LONGEST_GATHERING_MS)

    def until(self, now_ms: int) -> int:
        """When messages fire again; 0 when they need not wait, as after a clock was set back."""
        return self._until_ms if self._since_ms <= now_ms < self._until_ms else 0


class Firing:
    """Fires what is due. A step counts only once `stored` is told of it."""

    def __init__(self, clock: Clock, store: Store) -> None:
        self._clock = clock
        self._store = store
        self._next_timed: int | None = store.next_due()
        self._gathering = Gathering()
        self._behind = b""  # the topic behind which `fire_crowded_out` goes on
        self._recurrences: Recurrences | None = None
        self.fired = 0
        """Messages fired since the start, without those that recur."""
        self.recurred = 0
        """Messages that came of recurring ones since the start; those of a paused topic count in `fired` as well."""
        self.misfired = 0
        """How often a misfire policy had to decide about them."""

    @property
    def next_due_ms(self) -> int | None:
        """When the earliest message is due, or was until it was aborted; while messages wait for each other, when these
        fire. None when none is held."""
        timed = self._next_timed
        if timed is not None:
            timed = max(timed, self._gathering.until(self._clock.now_ms()))
        recurring = self._recurrences.next_due_ms if self._recurrences is not None else None
        if recurring is None or timed is None:
            return timed if recurring is None else recurring
        return min(timed, recurring)

    def recur(self, recurrences: Recurrences) -> None:
        """Fire these too."""
        self._recurrences = recurrences

    def due_at(self, due_ms: int) -> None:
        """A message joined the batch that is due at this time."""
        if self._next_timed is None or due_ms < self._next_timed:
            self._next_timed = due_ms

    def step(self) -> Step:
        """Fire what is due, as much as one step may.

        :raises StorageError: nothing of the whole batch is stored.
        """
        try:
            return self._step()
        except StorageError:
            self._store.abandon()
            raise

    def _step(self) -> Step:
        now_ms = self._clock.now_ms()
        timed = self._fire_timed(now_ms)
        waited = Fired(0, more=False)
        if self._store.paused.resumed():
            waited = fire_resumed(self._store, self._clock.stored_ms(), MAX_FIRED)
        recurred = self._fire_recurring(now_ms)
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
        """What a step fired is on disk."""
        self.fired += step.timed + step.resumed
        self.recurred += step.recurred
        self.misfired += step.misfired
        if self._is_due(self._clock.now_ms()):
            self._next_timed = self._store.next_due()
        # While there is more than a step may fire, nothing waits.
        if step.timed and not step.more and self._clock.moves:
            self._gathering.fired(step.timed, step.now_ms)

    def reload(self) -> None:
        """The batch was refused, and with it what the last step fired."""
        if self._recurrences is not None:
            self._recurrences.reload()

    def look_again(self) -> None:
        """Have `next_due_ms` tell of nothing that was aborted, moved or paused since."""
        self._next_timed = self._store.next_due()
        self.reload()

    def _is_due(self, now_ms: int) -> bool:
        """Whether timed messages are to fire now."""
        due_ms = self._next_timed
        return due_ms is not None and max(due_ms, self._gathering.until(now_ms)) <= now_ms

    def _fire_timed(self, now_ms: int) -> Fired:
        if not self._is_due(now_ms):
            return Fired(0, more=False)
        stored_ms = self._clock.stored_ms()
        fired = fire_due(self._store, now_ms, stored_ms, MAX_FIRED)
        if not fired.more:
            return fired
        others, self._behind = fire_crowded_out(
            self._store, now_ms, stored_ms, MAX_CROWDED_OUT, self._behind
        )
        return Fired(fired.messages + others, more=True)

    def _fire_recurring(self, now_ms: int) -> Recurred:
        recurrences = self._recurrences
        if (
            recurrences is None
            or recurrences.next_due_ms is None
            or recurrences.next_due_ms > now_ms
        ):
            return Recurred(0, 0, more=False)
        return recurrences.fire_due(now_ms, MAX_RECURRED)
