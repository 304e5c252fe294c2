"""The periodic work: progress to disk, checkpoints, expiry, retention, and checks of disk and clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.task import LoopingCall
from twisted.internet.threads import deferToThread
from twisted.logger import Logger
from twisted.python.failure import Failure

from gateway.broker import Broker
from gateway.connections.connection import SILENCE_LOOK_SECONDS, RemotingFactory
from gateway.handlers.ordered_pops import OrderedPops
from gateway.handlers.pop_acks import PopAcks
from gateway.handlers.transactions import Transactions
from gateway.monitoring.stats import SAMPLE_SECONDS
from gateway.parked import SWEEP_SECONDS
from gateway.queue_locks import QueueLocks
from gateway.reactor import Reactor
from gateway.retention import Retention
from gateway.settings.values import show_size
from storage import RestartNeededError, StorageError, as_told, check_command

TIDY_SECONDS = 1.0
"""Seconds between two rounds of writing consumers' progress, logging damaged messages, and checking the data folder,
the disk, the clock and whether a checkpoint is due."""

PROGRESS_PAUSE = 0.01
"""Seconds until the next batch of progress, if there is more than fits into one."""

CHECK_SECONDS = 0.5
"""Seconds between two looks for undecided transactions whose producer has to be asked."""

REVIVE_SECONDS = 0.2
"""Seconds between two looks for popped messages whose invisible time is over."""

REVIVE_PAUSE = 0.02
"""Seconds until the next popped messages come back, if there are more than fit into one commit."""

RETENTION_SECONDS = 10.0
"""Seconds between the beginnings of two clean-ups."""

FORGET_PAUSE = 0.05
"""Seconds until the next attempt to free the memory of deleted topics, which is possible only while no batch is open.
Under load a batch is mostly open when this work runs, before the commit of its turn."""

HOLD_SECONDS = 0.4
"""With flush = async: seconds after which the redo log is synced, unless a checkpoint with its content is on disk by
then. Under load there is one sooner, and the log need not be written to the disk at all."""

HOLD_CHECK_SECONDS = 0.1
"""Seconds between two checks for that. With `HOLD_SECONDS` they make the half second that the setting promises."""


class Housekeeping:
    """Runs the periodic work on the reactor."""

    log = Logger()

    def __init__(
        self,
        reactor: Reactor,
        broker: Broker,
        factory: RemotingFactory,
        transactions: Transactions,
        pop_acks: PopAcks,
        ordered_pops: OrderedPops,
        locks: QueueLocks,
    ) -> None:
        self._reactor = reactor
        self._broker = broker
        self._factory = factory
        self._transactions = transactions
        self._pop_acks = pop_acks
        self._ordered_pops = ordered_pops
        self._locks = locks
        self._loops: list[LoopingCall] = []
        self._stopped = False
        self._told_damaged = 0
        self._log_failures = 0
        self._log_fails = False
        self._progress_batches = 0
        self._retention = Retention(reactor, broker)
        self._syncing = DeferredLock()

    def start(self) -> None:
        """Begin."""
        self._every(SWEEP_SECONDS, self._in_steps(self._sweep))
        self._every(TIDY_SECONDS, self._tidy)
        self._every(SILENCE_LOOK_SECONDS, self._expire)
        self._every(SILENCE_LOOK_SECONDS, self._in_steps(self._expire_locks))
        self._every(CHECK_SECONDS, self._transactions.check_due)
        self._every(REVIVE_SECONDS, self._in_steps(self._pop_acks.revive_due, REVIVE_PAUSE))
        self._every(REVIVE_SECONDS, self._in_steps(self._ordered_pops.release_due))
        self._every(RETENTION_SECONDS, self._in_steps(self._retention.expire))
        self._every(
            RETENTION_SECONDS, self._in_steps(self._retention.remove, self._retention.pause)
        )
        self._every(RETENTION_SECONDS, self._in_steps(self._forget_deleted, FORGET_PAUSE))
        self._every(SAMPLE_SECONDS, self._in_steps(self._broker.stats.sample))
        if self._broker.config.flush == "async":
            self._every(HOLD_CHECK_SECONDS, self._have_held)

    def stop(self) -> Deferred[DeferredLock]:
        """Stop. The Deferred fires when no other thread works on the store any more."""
        self._stopped = True
        for loop in self._loops:
            if loop.running:
                loop.stop()
        return self._syncing.acquire()

    def _every(self, seconds: float, work: Callable[[], Deferred[None] | None]) -> None:
        loop = LoopingCall(work)
        loop.clock = cast(Any, self._reactor)

        def begin() -> None:
            loop.start(seconds, now=False).addErrback(failed)

        def failed(failure: Failure) -> None:
            # A LoopingCall ends with its first error, but this work must go on.
            self._tell_failed(failure)
            if not self._stopped:
                begin()

        begin()
        self._loops.append(loop)

    def _tell_failed(self, failure: Failure) -> None:
        error = as_told(failure.value)
        if not isinstance(error, StorageError):
            self.log.failure("housekeeping failed", failure)
        elif not isinstance(error, RestartNeededError):
            # A gateway that is about to end has logged why.
            self.log.error("housekeeping failed: {error}", error=str(error))

    def _in_steps(
        self, step: Callable[[], bool], pause: Callable[[], float] | float = 0.0
    ) -> Callable[[], None]:
        """Return work that runs step by step, with turns for other work in between, until a step returns False. A call
        while it runs does nothing.

        :param pause: seconds between two steps, or a function that returns them after each.
        """
        goes_on = False

        def begin() -> None:
            if not goes_on:
                go_on()

        def go_on() -> None:
            nonlocal goes_on
            goes_on = False
            if not self._stopped and step():
                goes_on = True
                seconds = pause() if callable(pause) else pause
                self._reactor.callLater(seconds, go_on_later)

        def go_on_later() -> None:
            try:
                go_on()
            except Exception:  # noqa: BLE001 - the next round tries again
                self._tell_failed(Failure())  # type: ignore[no-untyped-call]

        return begin

    def _sweep(self) -> bool:
        return self._broker.parked.sweep(self._reactor.seconds())

    def _tidy(self) -> None:
        if not self._progress_batches:
            # Not with every commit: each pull changes the progress of its consumer.
            self._progress_batches = self._broker.store.progress.include()
            if self._progress_batches:
                self._write_progress()
        self._broker.committer.checkpoint()
        self._broker.store.forget_unused(self._broker.parked.awaits)
        self._broker.clock.watch()
        self._watch_folder()
        self._watch_disk()
        self._watch_log()
        self._tell_damaged()

    def _write_progress(self) -> None:
        """Store consumers' progress, in as many batches as it takes. If a batch cannot be stored, the committer tries
        it again, and the others wait for the next round."""
        if self._stopped or self._broker.committer.failing:
            self._progress_batches = 0
        elif not self._broker.store.progress.is_included:
            self._progress_batches -= 1
            if self._progress_batches:
                self._broker.store.progress.include()
        if self._progress_batches:
            self._broker.committer.change()
            self._reactor.callLater(PROGRESS_PAUSE, self._write_progress)

    def _watch_folder(self) -> None:
        environment = self._broker.store.environment
        was_away = environment.is_away
        environment.look()
        if environment.is_away and not was_away:
            self.log.critical(
                "nothing is stored any more: the data folder {data} was moved or deleted. If it was moved, move it "
                "back. If it was deleted, do not stop the gateway, as its files last until then "
                "(docs/disaster-recovery.md says how to save them)",
                data=environment.path,
            )
        elif was_away and not environment.is_away:
            self.log.info("the gateway goes on: the data folder is back")

    def _watch_disk(self) -> None:
        full = self._broker.store.environment.disk_free() < self._broker.config.disk_reserve
        if full != self._broker.intake.disk_full:
            self._broker.intake.disk_full = full
            if full:
                self.log.error(
                    "sends are refused: the disk has less than disk_reserve = {reserve} free",
                    reserve=show_size(self._broker.config.disk_reserve),
                )
            else:
                self.log.info("sends are accepted again: the disk has room")

    def _watch_log(self) -> None:
        redo_log = self._broker.store.environment.log
        if redo_log.failures > self._log_failures:
            if not self._log_fails and redo_log.failure is not None:
                self.log.error(
                    "the redo log could not be written: {error}. Until it can, each batch is stored by a checkpoint, "
                    "which takes longer",
                    error=redo_log.failure.strerror,
                )
            self._log_fails = True
        elif self._log_fails and not redo_log.fails:
            self._log_fails = False
            self.log.info("the redo log can be written again")
        self._log_failures = redo_log.failures

    def _tell_damaged(self) -> None:
        damaged = len(self._broker.store.damaged)
        if damaged > self._told_damaged:
            self._told_damaged = damaged
            self.log.error(
                "damaged messages and queues met since the start: {count}. They cannot be delivered. Stop the "
                "gateway and run '{check}', which names them",
                count=damaged,
                check=check_command(self._broker.config.data),
            )

    def _expire(self) -> None:
        self._broker.clients.expire(self._reactor.seconds())
        self._factory.close_silent()

    def _expire_locks(self) -> bool:
        if self._broker.committer.failing:
            return False
        more = self._locks.expire()
        if self._broker.store.has_changes:
            self._broker.committer.change()
        return more

    def _forget_deleted(self) -> bool:
        if self._broker.store.has_changes:
            return True
        return self._broker.forget_deleted()

    def _have_held(self) -> Deferred[None] | None:
        store = self._broker.store
        if store.environment.unheld_seconds() <= HOLD_SECONDS:
            return None
        return self._syncing.run(deferToThread, store.sync)
