"""The gateway's heartbeat: fire what is due, commit, answer, wake.

Handlers change the store during a reactor turn and leave their answers here. At the end of the turn everything is
committed at once, so batches grow by themselves under load; only then do the answers leave. The same step fires the
timed messages that are due, so a commit serves both; when nothing arrives, one scheduled call waits for exactly the
earliest of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Protocol

from twisted.logger import Logger

from gateway.clock import Clock
from gateway.firing import Firing, Step
from gateway.meter import Meter
from gateway.reactor import DelayedCall, Reactor
from gateway.router import not_available
from gateway.unwritten import Unwritten
from storage import Growth, RestartNeededError, StorageError, Store

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


class Committer:
    """Commits the store's batch at the end of each turn that changed something, and fires what is due.

    :param firing: what is due; it becomes part of the batch.
    :param waker: answers the pulls that wait for a queue.
    :param unwritten: has the answers written, before a checkpoint holds anybody up.
    :param copies: told when a batch was refused.
    :param journal: told of that too, and when one is stored.
    :param give_up: called when nothing can be stored or read any more, with the reason; more than once, perhaps.
    :param wait: seconds that a commit may wait for the senders that the commit before it answered. Those that send one
        message after the other all come back, and a commit costs the same for one of them as for all.
    """

    log = Logger()

    def __init__(
        self,
        reactor: Reactor,
        clock: Clock,
        store: Store,
        firing: Firing,
        waker: Waker,
        unwritten: Unwritten,
        copies: Iterable[Copy],
        journal: Journal,
        give_up: Callable[[str], None],
        wait: float,
    ) -> None:
        self._reactor = reactor
        self._clock = clock
        self._store = store
        self._waker = waker
        self._unwritten = unwritten
        self._firing = firing
        self._copies = (*copies, firing)
        self._are_copies_old = False
        self._journal = journal
        self._give_up = give_up
        self._answers: list[tuple[Waiting, bytes]] = []
        self._grown: deque[Growth] = deque()
        self._wait = wait
        self._expected = 1.0
        self._turn_end: DelayedCall | None = None
        self._alarm: DelayedCall | None = None
        self._alarm_ms = 0
        self._stopped = False
        self._wakes_change = False
        self.failing = False
        self.meter = Meter()
        store.settle = self.commit

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

    def commit(self) -> None:
        """Fire what is due, commit, answer, wake."""
        if self._turn_end is not None:
            # One commit a turn is enough, and firing in steps goes on by a single chain of calls.
            self._turn_end.cancel()
            self._turn_end = None
        answers, self._answers = self._answers, []
        if answers:
            self._expected = min(max(len(answers), self._expected * FORGETTING), MOST_EXPECTED)
        try:
            fired, grown = self._store_batch(len(answers))
        except StorageError as error:
            self._refuse(answers, error)
            return
        self.failing = False
        if fired.timed:
            self.meter.fired(fired.timed, self._clock.now_ms() - fired.earliest_ms)
        self._journal.write()
        self._answer_and_wake(answers, grown)
        self._wakes_change = self._store.has_changes
        self._firing.stored(fired)
        if fired.more:
            self.change()
        self._set_alarm()
        self.checkpoint()

    def checkpoint(self) -> None:
        """Bring LMDB's file up to date if it is time. Called when answers have just left, so that those who got them
        do not wait for it, and now and then when nothing comes."""
        for seconds in self._store.environment.durable.take_seconds():
            self.meter.checkpoint_sync_seconds.add(seconds)
        begun = perf_counter()
        try:
            if self._store.checkpoint_if_due():
                self.meter.checkpoint_seconds.add(perf_counter() - begun)
        except RestartNeededError as error:
            self._give_up(str(error))
        except StorageError as error:
            self.meter.failed_checkpoints += 1
            self.log.error("{error}; everything is stored in the redo log", error=str(error))

    def _store_batch(self, answers: int) -> tuple[Step, list[Growth]]:
        """Fire what is due and have the disk hold it, with what was changed since the last commit.

        :param answers: how many wait for it.
        :returns: what fired, and the queues that grew.
        :raises StorageError: nothing of it is stored.
        """
        store = self._store
        if self._are_copies_old:
            is_made_of_them = bool(answers) or store.has_changes
            store.abandon()
            self._reload()
            if is_made_of_them or self._are_copies_old:
                raise StorageError("what is stored could not be read since one was refused")
        fired = Step() if self._stopped else self._firing.step()
        if not store.has_changes:
            return fired, []
        begun = perf_counter()
        grown = store.commit()
        self.meter.committed(answers, perf_counter() - begun, store.write_seconds)
        return fired, grown

    def _answer_and_wake(self, answers: list[tuple[Waiting, bytes]], grown: list[Growth]) -> None:
        with self._unwritten:
            for call, frame in answers:
                call.send(frame)
            if self._wakes_change:
                # As after the commit before: where each of them wakes somebody who pops, no other moment comes.
                self._unwritten.flush()
                self.checkpoint()
            # Who is woken may fill a batch, which is committed at once: what grew by it comes after what grew before.
            self._grown += grown
            while self._grown:
                self._waker.grown(self._grown.popleft())

    def _refuse(self, answers: list[tuple[Waiting, bytes]], error: StorageError) -> None:
        """Nothing of the batch is stored: say so to everyone who waits, and fire again later."""
        if not self.failing:
            self.log.error("a batch could not be stored: {error}", error=str(error))
        self.failing = True
        self.meter.refused += 1
        self._journal.reload()
        self._reload()
        refusal = not_available(error)
        for call, _ in answers:
            call.fail(refusal.code, refusal.remark)
        self._clear_alarm()
        if not self._stopped:
            self._alarm_ms = self._clock.now_ms() + int(RETRY_AFTER * 1000)
            self._alarm = self._reactor.callLater(RETRY_AFTER, self._wake_up)
        if isinstance(error, RestartNeededError):
            self._give_up(str(error))

    def _reload(self) -> None:
        """Have the copies take over what is stored. While it cannot be read they have what was refused, so all that is
        made of them is refused too."""
        try:
            self._store.reopen()
        except RestartNeededError as error:
            self._are_copies_old = True
            self._give_up(str(error))
            return
        except StorageError as error:
            if not self._are_copies_old:
                self.log.error("all is refused until it can be read: {error}", error=str(error))
            self._are_copies_old = True
            return
        for copy in self._copies:
            copy.reload()
        self._are_copies_old = False

    def _set_alarm(self) -> None:
        """Have the reactor call when the earliest message is due; an earlier call that is already set will do."""
        if self._stopped or self._turn_end is not None:
            return
        now_ms = self._clock.now_ms()
        wake_ms = now_ms + LONGEST_SLEEP_MS
        due_ms = self._firing.next_due_ms
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
