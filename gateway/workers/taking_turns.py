"""Lets few requests wait for the workers at a time, at the address that they share; clients take turns."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gateway.reactor import DelayedCall, Reactor
from gateway.router import overloaded

AT_ONCE: Final = 4
"""Requests that the workers have at a time. A worker takes 20 ms for a page of a look-up, and all that it is sent from
here comes by one connection."""

MOST_OF_A_CLIENT: Final = 1_000
"""Most requests of one client that wait for their turn. More are refused: a client could send any number."""


@dataclass(slots=True)
class _Waiting:
    """A request that waits for its turn."""

    begin: Callable[[float], None]
    until: float
    alarm: DelayedCall | None = None


class TakingTurns:
    """Begins requests. The next one is that of the client that has waited longest since its last one began, so who
    sends thousands waits for their own alone."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._queues: OrderedDict[object, deque[_Waiting]] = OrderedDict()
        self._under_way = 0
        self.waiting = 0
        """Requests that wait for their turn."""

    def put(
        self,
        client: object,
        patience: float,
        begin: Callable[[float], None],
        give_up: Callable[[], None],
    ) -> None:
        """Begin a request, now or when it is the client's turn.

        :param patience: seconds until the request must be answered.
        :param begin: called with what is left of these seconds; `done` must follow.
        :param give_up: called if they are over before that.
        :raises RequestError: when too many requests of the client wait.
        """
        if self._under_way < AT_ONCE and not self.waiting:
            self._under_way += 1
            begin(patience)
            return
        queue = self._queues.get(client)
        if queue is None:
            queue = self._queues[client] = deque()
        elif len(queue) >= MOST_OF_A_CLIENT:
            raise overloaded("requests of one client that wait for workers", MOST_OF_A_CLIENT)
        one = _Waiting(begin, self._reactor.seconds() + patience)
        queue.append(one)
        self.waiting += 1

        def is_over() -> None:
            one.alarm = None
            self.waiting -= 1
            give_up()

        one.alarm = self._reactor.callLater(patience, is_over)

    def done(self) -> None:
        """Note that a request that began was answered. The next one begins in the next turn: if it is answered at once,
        as when a worker does not serve, many would be inside one another."""
        self._under_way -= 1
        if self._queues:
            self._reactor.callLater(0, self._go_on)

    def _go_on(self) -> None:
        while self._queues and self._under_way < AT_ONCE:
            client, queue = self._queues.popitem(last=False)
            one = queue.popleft()
            if queue:
                self._queues[client] = queue
            remaining = one.until - self._reactor.seconds()
            # Without a remainder its alarm is about to ring.
            if one.alarm is not None and remaining > 0:
                one.alarm.cancel()
                self.waiting -= 1
                self._under_way += 1
                one.begin(remaining)
