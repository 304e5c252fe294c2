"""Work for an answer that would take too long at once: other requests, and messages that are due, come in between."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

from twisted.logger import Logger

from gateway.committer import Committer
from gateway.reactor import Reactor
from gateway.router import Call, answer_failure, overloaded, send_away

MOST = 1_000
"""Requests under way at once. More are refused: a client could send any number before the first is answered."""

MOST_BYTES = 64 << 20
"""Most bytes of the headers of these requests together, whose fields are kept; a single one may have more."""


_Item = TypeVar("_Item")


class _Work(NamedTuple):
    """A request under way, the bytes of its header, and whether it is carried out though its client has left."""

    steps: Iterator[None]
    call: Call
    size: int
    changes: bool


class Steps:
    """Does such work one step a turn of the reactor, for one request after the other, and none in the turn in which the
    request arrived: with it, requests of hundreds of other clients may have arrived. Only a change is made at once, if
    nothing else is done in that turn."""

    log = Logger()

    def __init__(self, reactor: Reactor, committer: Committer) -> None:
        self._reactor = reactor
        self._under_way: deque[_Work] = deque()
        self._bytes = 0
        self._is_busy = False  # whether work is under way, or was done in this turn
        committer.once_stopped(self._stop)

    def begin(self, steps: Iterator[None], call: Call) -> None:
        """Do work that changes nothing, whose last step answers. Once the client is gone, no further step is done.

        :raises RequestError: when too many requests are under way.
        """
        self._add(steps, call, changes=False)

    def once(self, work: Callable[[], None], call: Call) -> None:
        """Do work of a single step, which answers and changes nothing.

        :raises RequestError: as `begin`.
        """
        self._add(_single(work), call, changes=False)

    def change(self, steps: Iterator[None], call: Call) -> None:
        """Do work that changes something, whose last step answers: its first step at once if no other is under way or
        was done in this turn, so that what the client sent behind the request comes after it. As elsewhere, what a
        client sent before it left is carried out.

        :raises RequestError: as `begin`, and what the first step raises at once.
        """
        if self._is_busy:
            self._add(steps, call, changes=True)
        else:
            self.change_in_parts(steps, call)

    def change_in_parts(self, steps: Iterator[None], call: Call) -> None:
        """Do the first step of a change at once, and any others as a change's, even if the client has left. The last
        one answers.

        :raises RequestError: as `begin`, and what the first step raises.
        """
        self._check_room(call)
        if not self._is_busy:
            self._go_on_next_turn()
        for _ in steps:
            # Nothing is shed: the audit log still notes the request.
            self._put(_Work(steps, call, len(call.command.header), changes=True))
            break

    def _stop(self) -> None:
        """Do no further step: the gateway stops. The clients are sent elsewhere."""
        for work in self._under_way:
            send_away(work.call.command, work.call.peer)
        self._under_way.clear()
        self._bytes = 0

    def _check_room(self, call: Call) -> None:
        if len(self._under_way) >= MOST:
            raise overloaded("requests of this kind under way", MOST)
        if self._bytes and self._bytes + len(call.command.header) > MOST_BYTES:
            raise overloaded("bytes of requests of this kind under way", MOST_BYTES)

    def _add(self, steps: Iterator[None], call: Call, *, changes: bool) -> None:
        self._check_room(call)
        size = len(call.command.header)
        call.shed()
        self._put(_Work(steps, call, size, changes))
        if not self._is_busy:
            self._go_on_next_turn()

    def _put(self, work: _Work) -> None:
        self._under_way.append(work)
        self._bytes += work.size

    def _go_on_next_turn(self) -> None:
        self._is_busy = True
        self._reactor.callLater(0, self._go_on)

    def _go_on(self) -> None:
        self._is_busy = False
        while self._under_way:
            work = self._under_way.popleft()
            self._bytes -= work.size
            if work.changes or work.call.peer.open:
                self._go_on_next_turn()
                self._do_step(work)
                return

    def _do_step(self, work: _Work) -> None:
        try:
            for _ in work.steps:
                self._put(work)
                break
        except Exception as error:  # noqa: BLE001 - the router has handled the request
            answer_failure(work.call, error, self.log)


def in_turns(do: Callable[[_Item], None], items: Iterable[_Item], at_once: int) -> Iterator[None]:
    """Do work for each item; a step ends after so many."""
    for number, item in enumerate(items, 1):
        do(item)
        if number % at_once == 0:
            yield


def _single(work: Callable[[], None]) -> Iterator[None]:
    work()
    yield from ()
