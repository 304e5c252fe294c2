"""Work for an answer that would take too long at once: other requests, and messages that are due, come in between."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from twisted.logger import Logger

from gateway.reactor import Reactor
from gateway.router import Call, answer_failure, overloaded

MOST = 1_000
"""Requests under way at once. More are refused: a client could send any number before the first is answered."""


class Steps:
    """Does such work one step a turn of the reactor, for one request after the other, and none in the turn in which the
    request arrived: with it, requests of hundreds of other clients may have arrived."""

    log = Logger()

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._under_way: deque[tuple[Iterator[None], Call]] = deque()

    def begin(self, steps: Iterator[None], call: Call) -> None:
        """Do the work, whose last step answers. Once the client is gone, no further step is done.

        :raises RequestError: when too many requests are under way.
        """
        if len(self._under_way) >= MOST:
            raise overloaded("requests of this kind under way", MOST)
        call.shed()
        self._under_way.append((steps, call))
        if len(self._under_way) == 1:
            self._reactor.callLater(0, self._go_on)

    def once(self, work: Callable[[], None], call: Call) -> None:
        """Do work of a single step, which answers.

        :raises RequestError: as `begin`.
        """

        def steps() -> Iterator[None]:
            work()
            yield from ()

        self.begin(steps(), call)

    def _go_on(self) -> None:
        steps, call = self._under_way.popleft()
        while self._under_way and not call.peer.open:
            steps, call = self._under_way.popleft()
        try:
            for _ in steps if call.peer.open else ():
                self._under_way.append((steps, call))
                break
        except Exception as error:  # noqa: BLE001 - the router has handled the request
            answer_failure(call, error, self.log)
        if self._under_way:
            self._reactor.callLater(0, self._go_on)
