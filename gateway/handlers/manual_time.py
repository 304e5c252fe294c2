"""The clock of a gateway for tests (Tidegate's own 31020): shown, advanced and set.

Messages that come due on the way fire at their own times, one due time after the other, as if the time had passed.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import msgspec
from twisted.logger import Logger

from gateway.broker import Broker
from gateway.manual_clock import ManualClock
from gateway.moments import LATEST_DATE_MS
from gateway.reactor import Reactor
from gateway.router import Call, RequestError, answer_failure
from gateway.wire.clock_bodies import ClockState
from gateway.wire.codes import ResponseCode
from gateway.wire.headers import MoveClock
from storage import StorageError

STEPS = 20
"""Due times that fire in one turn of the reactor, before other work has its turn."""


class _Move(NamedTuple):
    """A request in progress. `target_ms` is the time to move to, `fired` the count of fired messages at its arrival."""

    call: Call
    target_ms: int
    fired: int


class ManualTime:
    """Moves the clock, one request after the other."""

    log = Logger()

    def __init__(self, broker: Broker, reactor: Reactor) -> None:
        self._broker = broker
        self._reactor = reactor
        self._moves: deque[_Move] = deque()

    def clock(self, call: Call) -> None:
        """Answer with the clock, after moving it if the request names a time or a distance. The answer waits until the
        messages that came due have fired."""
        fields: MoveClock = call.fields
        clock = self._broker.clock
        if fields.advance is None and fields.to is None:
            call.answer(body=msgspec.json.encode(self._state(0)))
            return
        if not isinstance(clock, ManualClock):
            raise RequestError(
                ResponseCode.ILLEGAL_OPERATION,
                "this gateway goes by the machine's clock; one that is started with clock = manual can be moved",
            )
        begin_ms = self._moves[-1].target_ms if self._moves else clock.now_ms()
        target_ms = fields.to if fields.to is not None else begin_ms + (fields.advance or 0)
        # Stored as the time of an abort, 0 would say that there was none.
        if not 0 < target_ms <= LATEST_DATE_MS or (fields.advance or 0) < 0:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                "the clock can be advanced, or set to a time after the beginning of 1970, up to 9999",
            )
        self._moves.append(_Move(call, target_ms, self._fired()))
        if len(self._moves) == 1:
            self._go_on()

    def _go_on(self) -> None:
        """Work on the first request for one turn of the reactor."""
        clock, committer = self._broker.clock, self._broker.committer
        assert isinstance(clock, ManualClock)
        move = self._moves[0]
        if committer.stopped:
            return
        for _ in range(STEPS):
            due_ms = self._broker.firing.next_due_ms
            # What waits in resumed topics fires before the clock moves on.
            waits = self._broker.store.paused.has_resumed
            arrived = not waits and (due_ms is None or due_ms > move.target_ms)
            try:
                if arrived:
                    clock.move_to(move.target_ms)
                elif due_ms is not None and not waits:
                    clock.move_to(max(due_ms, clock.now_ms()))
            except StorageError as error:
                # The next requests have their turn.
                answer_failure(move.call, error, self.log)
                break
            committer.commit()
            if committer.failing:
                move.call.fail(
                    ResponseCode.SYSTEM_ERROR, "what came due could not be stored; the log says why"
                )
                break
            if arrived:
                state = self._state(self._fired() - move.fired)
                move.call.answer(body=msgspec.json.encode(state))
                break
        else:
            self._reactor.callLater(0, self._go_on)
            return
        self._moves.popleft()
        if self._moves:
            self._reactor.callLater(0, self._go_on)

    def _fired(self) -> int:
        firing = self._broker.firing
        return firing.fired + firing.recurred

    def _state(self, fired: int) -> ClockState:
        self._broker.firing.reload()
        manual = isinstance(self._broker.clock, ManualClock)
        return ClockState(
            clock="manual" if manual else "real",
            now_ms=self._broker.clock.now_ms(),
            next_due_ms=self._broker.firing.next_due_ms,
            fired=fired,
        )
