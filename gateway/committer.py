"""The gateway's main step: fire due messages, commit, answer, wake waiting pulls.

Handlers change the store during a turn of the reactor and leave their answers here. At the end of the turn one commit
stores all changes, so batches grow with the load. Only then are the answers sent. The same step fires the messages that
are due, so one commit serves both. When nothing arrives, one scheduled call waits for the earliest due message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from typing import Protocol

from twisted.logger import Logger

from gateway.clock import Clock
from gateway.connections.unwritten import Unwritten
from gateway.firing import NOTHING, Firing, Step
from gateway.monitoring.meter import Meter
from gateway.pace import Pace
from gateway.reactor import DelayedCall, Reactor
from gateway.router import RequestError, not_available
from gateway.wire.pending_bodies import IN_PART
from storage import Growth, RestartNeededError, StorageError, Store, as_told

LONGEST_SLEEP_MS = 1_000
"""Longest time between two checks of the timers, even if none should be due: the wall clock may have been set."""

RETRY_AFTER = 1.0
"""Seconds until firing is tried again after a commit failed, for example on a full disk."""

MAX_BATCH_BYTES = 8 << 20
"""A batch larger than this is committed in the middle of a turn, so that memory stays bounded."""

_FAILED_IN_PART = "what follows a commit has failed in part"


class Waker(Protocol):
    """Wakes the requests that wait for new messages."""

    def grown(self, growth: Growth) -> None: ...


class Waiting(Protocol):
    """A request that waits until its changes are on disk; a `Call` is one."""

    def send(self, frame: bytes) -> None:
        """Send the answer: the changes are on disk."""

    def fail(self, code: int, remark: str) -> None:
        """Refuse the request: the changes were not stored."""


class Copy(Protocol):
    """A copy in memory of something in the store, including uncommitted changes."""

    def reload(self) -> None:
        """Read the stored state again: the changes could not be committed."""


class Journal(Copy, Protocol):
    """Collects log lines about uncommitted changes."""

    def write(self) -> None:
        """Write the lines: the changes are on disk, and the answers are about to be sent."""


class Committer:
    """Commits the store's batch at the end of each turn that changed something, and fires due messages.

    :param firing: fires due messages as part of the batch.
    :param waker: answers the pulls that wait for a queue.
    :param unwritten: writes the answers before a checkpoint, which could delay them.
    :param copies: are reloaded when a batch cannot be stored.
    :param journal: is reloaded too, and written when a batch is stored.
    :param give_up: called with the reason when the store can neither be written nor read any more; perhaps repeatedly.
    :param wait: seconds that a commit may wait for more sends: see `Pace`.
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
        self._steps: list[Callable[[], None]] = []
        self._grown: deque[Growth] = deque()
        self._pace = Pace(wait)
        self._turn_end: DelayedCall | None = None
        self._alarm: DelayedCall | None = None
        self._alarm_ms = 0
        self._stopped = False
        self._last_steps: list[Callable[[], None]] = []
        self._wakes_change = False
        self._refusal: RequestError | None = None  # of the last batch, if it could not be stored
        self.meter = Meter()
        store.settle = self.commit

    @property
    def stopped(self) -> bool:
        """Whether firing has stopped."""
        return self._stopped

    @property
    def failing(self) -> bool:
        """Whether the last batch could not be stored."""
        return self._refusal is not None

    def start(self) -> None:
        """Begin to fire, with the messages that came due while the gateway was down."""
        self._set_alarm()

    def stop(self) -> None:
        """Stop firing, and commit the open batch."""
        # First, so that work of many batches that waits for this one does not go on.
        self._stopped = True
        if self._answers or self._store.has_changes:
            self.commit()
        self._clear_alarm()
        for step in self._last_steps:
            step()

    def once_stopped(self, step: Callable[[], None]) -> None:
        """Call `step` when firing has stopped and the last batch is committed."""
        self._last_steps.append(step)

    def answer(self, call: Waiting, frame: bytes) -> None:
        """Send an answer once the changes made so far are on disk."""
        self._answers.append((call, frame))
        if self._turn_end is None:
            gathers = len(self._answers) < self._pace.expected
            wait = self._pace.wait if gathers else 0
            self._turn_end = self._reactor.callLater(wait, self._end_turn)
        elif len(self._answers) == int(self._pace.expected):
            self._turn_end.reset(0)
        if self._store.batch_bytes > MAX_BATCH_BYTES:
            self.commit()

    def once_stored(self, step: Callable[[], None]) -> None:
        """Call `step` once the changes made so far are on disk, before their answers leave; never if they cannot be
        stored. It is for what belongs to a change but is not in the store, such as a count or a line of the log.
        The caller also calls `answer` or `change`, unless it is a part of `Firing`."""
        self._steps.append(step)

    def change(self) -> None:
        """Commit at the end of the turn, or once the expected senders have sent."""
        if self._turn_end is None:
            self._turn_end = self._reactor.callLater(0, self._end_turn)

    def settle(self) -> None:
        """Commit changes that no answer waits for, such as a group that a request created by naming it."""
        if self._turn_end is None and self._store.has_changes:
            self.change()

    def commit(self) -> None:
        """Fire due messages, commit, answer, and wake waiting pulls."""
        if self._turn_end is not None:
            # One commit a turn is enough. If more messages are due, it schedules the next call itself.
            self._turn_end.cancel()
            self._turn_end = None
        answers, self._answers = self._answers, []
        try:
            fired, grown = self._store_batch(len(answers))
        except StorageError as error:
            self._refuse(answers, error)
            return
        except Exception as error:  # noqa: BLE001 - the gateway ends
            # Nobody can tell whether the batch is stored: any answer could be false, and it must not be stored again.
            self.log.failure("a commit failed")
            self._store.spoil(error)
            self._give_up(f"a commit failed: {error!r}")
            return
        self._refusal = None
        if fired.timed:
            self.meter.fired(fired.timed, self._clock.now_ms() - fired.earliest_ms)
        self._safely(self._journal.write)
        steps, self._steps = self._steps, []
        for step in steps:
            self._safely(step)
        self._answer_and_wake(answers, grown)
        self._wakes_change = self._store.has_changes
        self._safely(self._firing.stored, fired)
        if fired.more:
            self.change()
        self._set_alarm()
        if answers:
            self._pace.committed(len(answers), self._reactor.seconds())
            self._reactor.rest(self._pace.rest)
        self.checkpoint()

    def in_parts(self, steps: Iterable[None]) -> Iterator[None]:
        """Commit after each step of a change that takes several batches. Others have their turn in between. What
        follows the last step is committed like any change.

        :raises RequestError: when a batch could not be stored, or a step refuses to go on: the change ends there. The
            error tells if a part of it may be stored.
        """
        is_stored = False
        try:
            for _ in steps:
                has_changes = self._store.has_changes
                self.commit()
                if self._refusal is not None:
                    raise self._refusal
                is_stored = is_stored or has_changes
                yield
        except RequestError as refusal:
            if not is_stored:
                raise
            remark = f"{refusal.remark}; a part of the change was made before, and stays so"
            raise RequestError(refusal.code, remark, IN_PART) from refusal

    def checkpoint(self) -> None:
        """Make a checkpoint of LMDB's file if one is due. Called just after answers have left, so that their clients do
        not wait for it, and now and then when nothing arrives."""
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
        """Fire due messages, and store them together with all changes since the last commit.

        :param answers: how many answers wait for this commit.
        :returns: what the step fired, and the queues that grew.
        :raises StorageError: when nothing of the batch could be stored.
        """
        store = self._store
        if self._are_copies_old:
            is_made_of_them = bool(answers) or store.has_changes
            store.abandon()
            self._reload()
            if is_made_of_them or self._are_copies_old:
                raise StorageError(
                    "the data folder could not be read again after a batch was refused"
                )
        fired = NOTHING if self._stopped else self._firing.step()
        if not store.has_changes:
            return fired, []
        begun = perf_counter()
        grown = store.commit()
        self.meter.committed(answers, perf_counter() - begun, store.write_seconds)
        return fired, grown

    def _answer_and_wake(self, answers: list[tuple[Waiting, bytes]], grown: list[Growth]) -> None:
        # What an answer continues, or a woken pop, may lead to a commit: its queues must be handled after these.
        self._grown += grown
        with self._unwritten:
            for call, frame in answers:
                # As `_safely`, without a call for each answer.
                try:
                    call.send(frame)
                except Exception:  # noqa: BLE001 - no request may harm another
                    self.log.failure(_FAILED_IN_PART)
            if self._wakes_change:
                # If every commit wakes a pop, which changes the store again, there is no other moment for a checkpoint.
                self._unwritten.flush()
                self.checkpoint()
            while self._grown:
                self._safely(self._waker.grown, self._grown.popleft())

    def _safely(self, part: Callable[..., object], *arguments: object) -> None:
        """Do a part of what follows a commit. If it fails, the rest is done all the same: everything is stored, or
        refused."""
        try:
            part(*arguments)
        except Exception:  # noqa: BLE001 - no request may harm another
            self.log.failure(_FAILED_IN_PART)

    def _refuse(self, answers: list[tuple[Waiting, bytes]], error: StorageError) -> None:
        """Refuse all waiting requests, as nothing of the batch is stored, and try to fire again later."""
        if not self.failing:
            self.log.error("a batch could not be stored: {error}", error=str(error))
        refusal = self._refusal = not_available(error)
        self.meter.refused += 1
        self._safely(self._journal.reload)
        self._steps.clear()
        self._reload()
        for call, _ in answers:
            self._safely(call.fail, refusal.code, refusal.remark)
        self._clear_alarm()
        if not self._stopped:
            self._alarm_ms = self._clock.now_ms() + int(RETRY_AFTER * 1000)
            self._alarm = self._reactor.callLater(RETRY_AFTER, self._wake_up)
        if isinstance(error, RestartNeededError):
            self._give_up(str(error))

    def _reload(self) -> None:
        """Reload the copies. Until the store can be read again they include changes that were not stored, so all
        batches made from them are refused too."""
        try:
            self._store.reopen()
            for copy in self._copies:
                copy.reload()
        except RestartNeededError as error:
            self._are_copies_old = True
            self._give_up(str(error))
        except Exception as error:  # noqa: BLE001 - the next batch tries again
            if not self._are_copies_old:
                told = as_told(error)
                self.log.error("sends and changes are refused for now: {error}", error=str(told))
            self._are_copies_old = True
        else:
            self._are_copies_old = False

    def _set_alarm(self) -> None:
        """Schedule a call for when the earliest message is due, unless an earlier call is already scheduled."""
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
