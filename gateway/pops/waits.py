"""Requests that wait for a message in any of several queues: pops and notifications."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from twisted.logger import Logger

from gateway.clock import Clock
from gateway.filters import weight_of
from gateway.parked import SWEEP_SECONDS, Kind, ParkingLot
from gateway.pops.queues import PopQueue
from gateway.reactor import Reactor
from gateway.router import Call, Peer, answer_failure
from gateway.wire.headers import Notification, PopMessage

MAX_WAITING: Final = 1024
"""Requests of one kind that may wait for the same group, topic and queue (popPollingSize)."""

LONGEST_WAIT: Final = 30.0
"""Seconds that a request may wait, whatever it asks for."""

BEFORE_END: Final = 0.05
"""Seconds before the end of its time when a request is answered that has found nothing. Its client may not listen any
more at the end, and messages given to it then would be invisible for nothing (PopRequest.isTimeout)."""

LET_GO_BEFORE: Final = SWEEP_SECONDS + BEFORE_END
"""Seconds before the end of its time from when on the next sweep lets a request go."""


def time_left_ms(clock: Clock, born_ms: int, poll_ms: int) -> int:
    """Return how many ms a request still has, less than 0 when it comes too late. Where the clock stands still, return
    all of `poll_ms`: clients note the machine's time, so the request's age is unknown.

    :param born_ms: when the client made the request, epoch ms; 0 where it does not say.
    :param poll_ms: how long the request may take from then on.
    """
    if not born_ms or not clock.moves:
        return poll_ms
    return born_ms + poll_ms - clock.now_ms()


class Waited(NamedTuple):
    """What a request waits for: its group, topic and queue, where -1 is any queue. Pops are counted apart from
    notifications, which take nothing."""

    group: str
    topic: str
    queue: int
    notifies: bool = False


class _Wait:
    """A request that waits until one of its queues has something for it."""

    def __init__(
        self,
        call: Call,
        retry: Callable[[PopQueue], bool],
        over: Callable[[], None],
        end: Callable[[], None],
    ) -> None:
        self.call = call
        self._retry = retry
        self._over = over
        self._end = end
        self.done = False

    def retry(self, one: PopQueue) -> bool:
        if not self.done and self._retry(one):
            self._finish()
        return self.done

    def give_up(self) -> None:
        if not self.done:
            self._finish()
            if self.call.peer.open:
                self._over()

    def fail(self, error: Exception) -> None:
        self._finish()
        answer_failure(self.call, error, PopWaits.log)

    def _finish(self) -> None:
        self.done = True
        self._end()


class _WaitAt:
    """A waiting request at one of its queues, as `ParkingLot` keeps it."""

    __slots__ = ("_one", "_wait", "deadline", "kind", "queue", "weight")

    def __init__(
        self, wait: _Wait, kind: Kind, one: PopQueue, deadline: float, weight: int
    ) -> None:
        self._wait = wait
        self._one = one
        self.kind = kind
        self.queue = one.queue
        self.deadline = deadline
        self.weight = weight

    @property
    def peer(self) -> Peer:
        return self._wait.call.peer

    @property
    def tag_hashes(self) -> None:
        """None: messages with any tag, or without one, wake the request."""

    @property
    def alive(self) -> bool:
        return not self._wait.done and self._wait.call.peer.open

    def retry(self, first: int) -> bool:
        return self._wait.retry(self._one)

    def give_up(self) -> None:
        self._wait.give_up()

    def fail(self, error: Exception) -> None:
        self._wait.fail(error)


class PopWaits:
    """Lets requests wait, and counts them."""

    log = Logger()

    def __init__(self, parked: ParkingLot, reactor: Reactor) -> None:
        self._parked = parked
        self._reactor = reactor
        self._counts: dict[Waited, int] = {}

    def count(self, waited: Waited) -> int:
        """Return how many requests wait for this."""
        return self._counts.get(waited, 0)

    def wait(
        self,
        call: Call,
        waited: Waited,
        queues: Sequence[PopQueue],
        seconds: float,
        retry: Callable[[PopQueue], bool],
        over: Callable[[], None],
    ) -> bool:
        """Let a request wait that has found nothing in any of its queues.

        :param retry: answers if the given queue, the only one that may have changed, has something to answer with;
            returns whether it answered.
        :param over: answers that there is nothing.
        :returns: False when too many requests wait already.
        """
        weight = weight_of(call.fields.exp or "")
        room = weight + len(queues) - 1
        if self.count(waited) >= MAX_WAITING or not self._parked.has_room(room, call.peer):
            return False
        call.shed()
        if not call.fields.exp:
            call.fields.exp_type = None  # it means nothing then, and may have 1 MB
        self._counts[waited] = self.count(waited) + 1
        wait = _Wait(call, retry, over, lambda: self._forget(waited))
        kind = _kind(waited, call.fields)
        left = min(seconds - LET_GO_BEFORE, LONGEST_WAIT)
        if left <= 0:
            # The next sweep may come too late.
            left = seconds
            self._reactor.callLater(max(0.0, seconds - BEFORE_END), wait.give_up)
        deadline = self._reactor.seconds() + left
        for one in queues:
            self._parked.park(_WaitAt(wait, kind, one, deadline, weight))
            weight = 1  # the others share its filter
        return True

    def _forget(self, waited: Waited) -> None:
        left = self._counts[waited] - 1
        if left:
            self._counts[waited] = left
        else:
            del self._counts[waited]


def _kind(waited: Waited, fields: PopMessage | Notification) -> Kind:
    """Return the kind of a request. In order, the attempt decides whether it may have the messages under way again."""
    attempt = fields.attempt_id if fields.order else None
    wish = (waited.notifies, fields.exp, fields.exp_type, fields.order, attempt)
    return Kind(waited.group, wish)
