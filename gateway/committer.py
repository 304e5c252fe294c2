"""The gateway's heartbeat: fire what is due, commit, answer, wake.

Handlers change the store during a reactor turn and leave their answers here. At the end of the turn everything is
committed at once, so batches grow by themselves under load; only then do the answers leave. The same step fires the
timed messages that are due, so a commit serves both; when nothing arrives, one scheduled call waits for exactly the
earliest of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter
from typing import NamedTuple, Protocol

from twisted.logger import Logger

from gateway.clock import Clock
from gateway.meter import Meter
from gateway.reactor import DelayedCall, Reactor
from gateway.wire.codes import ResponseCode
from storage import Fired, Growth, StorageError, StorageFullError, Store, fire_resumed

MAX_FIRED = 500
"""Messages fired in one step, some 3 ms of work: between two steps sends and pulls have their turn. Of each topic that
was resumed, as many of those that waited."""

MAX_RECURRED = 100
"""Recurring messages that fire in one step, some 6 ms of work: what fires is taken in as if it were sent."""

MAX_CROWDED_OUT = 100
"""While more is due than that: messages fired in one step of each topic that is not at the front."""

LONGEST_SLEEP_MS = 1_000
"""Time until the timers are looked at again even if none is known to be due: the wall clock may have been set."""

RETRY_AFTER = 1.0
"""Seconds until firing is tried again after a commit failed, for example on a full disk."""

FORGETTING = 0.7
"""What is left, after a commit with fewer, of the number of senders that are expected."""

MOST_EXPECTED = 256
"""Senders that are waited for at most: with so many the cost of a commit does not count any more."""

MAX_BATCH_BYTES = 8 << 20
"""A batch larger than this is committed in the middle of a turn, so that memory stays bounded."""

NOTHING_FIRED = Fired(0, more=False)


class Waker(Protocol):
    """Told of the queues that have new messages."""

    def grown(self, growth: Growth) -> None: ...


class Waiting(Protocol):
    """Waits until what it changed is on disk; a `Call` is one."""

    def send(self, frame: bytes) -> None:
        """It is: here is the answer that was left for it."""

    def fail(self, code: int, remark: str) -> None:
        """It is not, and never will be."""


class Copy(Protocol):
    """Holds in memory what the store has, with the changes that are to be committed."""

    def reload(self) -> None:
        """Take over what the store has: the changes were refused."""


class Journal(Copy, Protocol):
    """Keeps lines of the changes that are to be committed."""

    def write(self) -> None:
        """The changes are on disk, and are answered now."""


class Recurred(NamedTuple):
    """What one step of recurring messages did: how many entered their queues, how many were later than they may be, and
    whether more are due."""

    messages: int
    misfired: int
    more: bool


class Recurrences(Copy, Protocol):
    """Puts messages that recur into their queues, and notes in the same batch when they do so next."""

    @property
    def next_due_ms(self) -> int | None:
        """When the first of them is due, or was until it was deleted."""

    def fire_due(self, now_ms: int, limit: int) -> Recurred:
        """Fire what is due, at most `limit` of it.

        :raises StorageError: as `Store.fire_due` does.
        """


NOTHING_RECURRED = Recurred(0, 0, more=False)


class Committer:
    """Commits the store's batch at the end of each turn that changed something, and fires what is due.

    :param waker: answers the pulls that wait for a queue.
    :param copies: told when a batch was refused.
    :param journal: told of that too, and when one is stored.
    :param wait: seconds that a commit may wait for the senders that the commit before it answered. Those that send one
        message after the other all come back, and a commit costs the same for one of them as for all.
    """

    log = Logger()

    def __init__(
        self,
        reactor: Reactor,
        clock: Clock,
        store: Store,
        waker: Waker,
        copies: Iterable[Copy],
        journal: Journal,
        wait: float,
    ) -> None:
        self._reactor = reactor
        self._clock = clock
        self._store = store
        self._waker = waker
        self._copies = (*copies, journal)
        self._journal = journal
        self._answers: list[tuple[Waiting, bytes]] = []
        self._wait = wait
        self._expected = 1.0
        self._turn_end: DelayedCall | None = None
        self._next_due: int | None = store.next_due()
        self._recurrences: Recurrences | None = None
        self._alarm: DelayedCall | None = None
        self._alarm_ms = 0
        self._stopped = False
        self.failing = False
        self.fired = 0
        """Messages fired since the start, without those that recur."""
        self.recurred = 0
        """Recurring messages that entered their queues since the start."""
        self.misfired = 0
        """How often a misfire policy had to decide about them."""
        self.meter = Meter()

    @property
    def next_due_ms(self) -> int | None:
        """When the earliest message is due, or was until it was aborted; None when none is held."""
        recurring = self._recurrences.next_due_ms if self._recurrences is not None else None
        if recurring is None or self._next_due is None:
            return self._next_due if recurring is None else recurring
        return min(self._next_due, recurring)

    def recur(self, recurrences: Recurrences) -> None:
        """Fire these too."""
        self._recurrences = recurrences
        self._copies += (recurrences,)

    @property
    def stopped(self) -> bool:
        """Whether nothing fires any more."""
        return self._stopped

    def start(self) -> None:
        """Fire what came due while the gateway was down, and go on from there."""
        self._set_alarm()

    def stop(self) -> None:
        """Commit what is open and let the timers rest."""
        if self._answers or self._store.has_changes:
            self.commit()
        self._stopped = True
        self._clear_alarm()

    def answer(self, call: Waiting, frame: bytes) -> None:
        """Send an answer once the changes made so far are on disk."""
        self._answers.append((call, frame))
        if self._turn_end is None:
            gathers = len(self._answers) < self._expected
            self._turn_end = self._reactor.callLater(self._wait if gathers else 0, self._end_turn)
        elif len(self._answers) == int(self._expected):
            self._turn_end.reset(0)
        if self._store.batch_bytes > MAX_BATCH_BYTES:
            self.commit()

    def change(self) -> None:
        """Commit at the end of the turn, or when the senders are there that are waited for."""
        if self._turn_end is None:
            self._turn_end = self._reactor.callLater(0, self._end_turn)

    def due_at(self, due_ms: int) -> None:
        """A message joined the batch that is due at this time; wake for it if it is the earliest."""
        if self._next_due is None or due_ms < self._next_due:
            self._next_due = due_ms

    def commit(self) -> None:
        """Fire what is due, commit, answer, wake."""
        if self._turn_end is not None:
            # One commit a turn is enough, and firing in steps goes on by a single chain of calls.
            self._turn_end.cancel()
            self._turn_end = None
        store = self._store
        answers, self._answers = self._answers, []
        if answers:
            self._expected = min(max(len(answers), self._expected * FORGETTING), MOST_EXPECTED)
        fired = resumed = NOTHING_FIRED
        recurred = NOTHING_RECURRED
        earliest_ms = self._next_due
        try:
            if self._next_due is not None and not self._stopped:
                now_ms = self._clock.now_ms()
                if self._next_due <= now_ms:
                    stored_ms = self._clock.stored_ms()
                    fired = store.fire_due(now_ms, stored_ms, MAX_FIRED)
                    if fired.more:
                        others = store.fire_crowded_out(now_ms, stored_ms, MAX_CROWDED_OUT)
                        fired = Fired(fired.messages + others, more=True)
            if store.paused.resumed() and not self._stopped:
                resumed = fire_resumed(store, self._clock.stored_ms(), MAX_FIRED)
            recurred = self._fire_recurring()
            changed = store.has_changes or store.has_changed_offsets
            begun = perf_counter()
            grown = store.commit() if changed else []
        except StorageError as error:
            self._refuse(answers, error)
            return
        self.failing = False
        if changed:
            self.meter.committed(len(answers), perf_counter() - begun, store.write_seconds)
        if fired.messages and earliest_ms is not None:
            self.meter.fired(fired.messages, self._clock.now_ms() - earliest_ms)
        self._journal.write()
        for call, frame in answers:
            call.send(frame)
        for growth in grown:
            self._waker.grown(growth)
        self.fired += fired.messages + resumed.messages
        self.recurred += recurred.messages
        self.misfired += recurred.misfired
        if self._next_due is not None and self._next_due <= self._clock.now_ms():
            self._next_due = store.next_due()
        if fired.more or resumed.more or recurred.more:
            self.change()
        self._set_alarm()

    def _fire_recurring(self) -> Recurred:
        recurrences = self._recurrences
        if recurrences is None or recurrences.next_due_ms is None or self._stopped:
            return NOTHING_RECURRED
        now_ms = self._clock.now_ms()
        if recurrences.next_due_ms > now_ms:
            return NOTHING_RECURRED
        return recurrences.fire_due(now_ms, MAX_RECURRED)

    def _refuse(self, answers: list[tuple[Waiting, bytes]], error: StorageError) -> None:
        """Nothing of the batch is stored: say so to everyone who waits, and fire again later."""
        if not self.failing:
            self.log.error("a batch could not be stored: {error}", error=str(error))
        self.failing = True
        self.meter.refused += 1
        for copy in self._copies:
            copy.reload()
        full = isinstance(error, StorageFullError)
        code = ResponseCode.SERVICE_NOT_AVAILABLE if full else ResponseCode.SYSTEM_ERROR
        for call, _ in answers:
            call.fail(code, f"service not available now: {error}")
        self._clear_alarm()
        if not self._stopped:
            self._alarm_ms = self._clock.now_ms() + int(RETRY_AFTER * 1000)
            self._alarm = self._reactor.callLater(RETRY_AFTER, self._wake_up)

    def _set_alarm(self) -> None:
        """Have the reactor call when the earliest message is due; an earlier call that is already set will do."""
        if self._stopped or self._turn_end is not None:
            return
        now_ms = self._clock.now_ms()
        wake_ms = now_ms + LONGEST_SLEEP_MS
        due_ms = self.next_due_ms
        if due_ms is not None and (self._clock.moves or due_ms <= now_ms):
            wake_ms = min(wake_ms, max(now_ms, due_ms))
        if self._alarm is not None:
            if self._alarm_ms <= wake_ms:
                return
            self._alarm.cancel()
        self._alarm_ms = wake_ms
        self._alarm = self._reactor.callLater((wake_ms - now_ms) / 1000, self._wake_up)

    def _clear_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _end_turn(self) -> None:
        self._turn_end = None
        self.commit()

    def _wake_up(self) -> None:
        self._alarm = None
        self.commit()
