"""The part of Twisted's reactor that the gateway uses, time and delayed calls, and a reactor with bounded turns."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from twisted.internet.epollreactor import EPollReactor
from twisted.internet.error import CannotListenError
from twisted.internet.process import Process, ProcessReader
from twisted.internet.tcp import Port

SOCKETS_AT_ONCE: Final = 256
"""Most ready sockets that one turn handles: some 15 ms of work if each has a request."""

HEARING_SECONDS: Final = 0.015
"""CPU seconds after which a turn ends, as when clients send hundreds of requests without waiting for answers, or many
begin TLS at the same time. The next turns handle the rest."""

FEW_SOCKETS: Final = 8
"""Ready sockets after which the CPU time is measured, which costs 1 us."""

LONG_SECONDS: Final = 0.05
"""Seconds after which a turn ends before that: requests of 0.1 s each may have arrived at once on several sockets."""


class DelayedCall(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancel the call."""

    def reset(self, seconds: float) -> None:
        """Make the call so many seconds from now instead."""


class Reactor(Protocol):
    """Twisted's IReactorTime; its interfaces cannot be checked statically without a plugin."""

    def seconds(self) -> float:
        """Return the reactor's monotonic time."""

    def rest(self, seconds: float) -> None:
        """Before the reactor waits for sockets again, sleep until so many seconds after the last turn began; what is
        scheduled is not late."""

    def callLater(self, delay: float, callable: Callable[[], object]) -> DelayedCall:
        """Call the function in so many seconds; 0 means at the end of this turn."""


class _Child(Process):
    """A started process. If the reactor cannot hear it, it is killed: nobody else knows of it."""

    def processReaderFactory(  # type: ignore[override]
        self, reactor: Any, process: Process, name: int, pipe: int
    ) -> ProcessReader:
        try:
            return ProcessReader(reactor, process, name, pipe)  # type: ignore[no-untyped-call]
        except OSError:
            os.close(pipe)
            assert self.pid is not None
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            raise


class TurnReactor(EPollReactor):
    """Twisted's reactor with bounded turns. Twisted handles all ready sockets in one turn; this reactor handles at most
    `SOCKETS_AT_ONCE`, for about `HEARING_SECONDS`, so that due calls and the turn's commit need not wait for the rest.
    It asks the kernel again once it has handled all; the kernel then reports those first that it has not reported yet.

    While sends come often, it sleeps between turns (`rest`), so that each has several.

    Nor does it note in each log line's context which socket it has just handled: no line shows that, and it takes 2 us
    a socket.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._turn_begun = 0.0
        """When the last turn began, in monotonic seconds."""
        self._rest = 0.0
        self._left: list[tuple[int, int, Any]] = []
        """Numbers of sockets that were ready and are not handled yet, what they were ready for, and who used them."""

    def rest(self, seconds: float) -> None:
        """See `Reactor.rest`."""
        self._rest = seconds

    def listenTCP(self, port: int, factory: Any, backlog: int = 50, interface: str = "") -> Port:
        """Listen.

        :raises CannotListenError: also for what the kernel refuses after `bind`, which Twisted lets through as it is:
            of two processes that bind an address at the same time, only one may listen.
        """
        found = Port(port, factory, backlog, interface, self)
        try:
            found.startListening()
        except OSError as failure:
            if found.connected:
                # Clients would connect, and nobody would hear them.
                found.socket.close()
            raise CannotListenError(interface, port, failure) from failure  # type: ignore[no-untyped-call]
        return found

    def spawnProcess(  # type: ignore[override]
        self, protocol: Any, executable: str, args: Any, env: Any, **options: Any
    ) -> Process:
        """Start a process.

        :raises OSError: when it cannot be started, or not be heard, as the kernel is at a limit. Then it does not run.
        """
        return _Child(self, executable, args, env, None, protocol, **options)  # type: ignore[no-untyped-call]

    def doIteration(self, timeout: float | None) -> None:
        """Wait until sockets are ready, at most so many seconds, and handle some of them."""
        users = self._selectables
        if self._left:
            # One that was handled since may have closed a socket, and its number may be another's now.
            ready = [
                (number, event) for number, event, user in self._left if users.get(number) is user
            ]
            self._left = []
        else:
            if self._rest and timeout != 0:
                timeout = self._take_rest(timeout)
            ready = self._poller.poll(-1 if timeout is None else timeout, SOCKETS_AT_ONCE)
        self._turn_begun = time.monotonic()
        begun = time.thread_time() if len(ready) > FEW_SOCKETS else 0.0
        enough = self._turn_begun + LONG_SECONDS
        for done, (number, event) in enumerate(ready, 1):
            # One that was handled before it may have closed it.
            if (user := users.get(number)) is not None:
                self._doReadOrWrite(user, number, event)  # type: ignore[no-untyped-call]
            if done < len(ready) and (
                time.monotonic() > enough
                or (not done % FEW_SOCKETS and time.thread_time() - begun > HEARING_SECONDS)
            ):
                self._left = [(number, event, users.get(number)) for number, event in ready[done:]]
                break

    def _take_rest(self, timeout: float | None) -> float | None:
        """Sleep until the next turn may begin, at most so many seconds. Return how many of them are left."""
        seconds = max(0.0, self._turn_begun + self._rest - time.monotonic())
        self._rest = 0.0
        if timeout is not None:
            seconds = min(seconds, timeout)
        time.sleep(seconds)
        return timeout - seconds if timeout is not None else None
