"""One worker of several: its process is started, watched, restarted when it ends, and stopped."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from twisted.internet import error
from twisted.internet.defer import Deferred
from twisted.internet.protocol import ProcessProtocol
from twisted.logger import Logger
from twisted.python.failure import Failure

from gateway.apart import DEATHS, DIED
from gateway.process import NOT_READY, WRONG_SETTINGS
from gateway.settings.values import HostPort, parse_host_port
from gateway.workers.front import Front
from gateway.workers.shared_http import SharedHttp
from storage import DATA_FILE

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds before a worker that ended by itself is started again. The pause doubles each time that the worker has
not listened."""

LONGEST_END: Final = 20.0
"""Seconds that a worker has to finish what is under way once SIGTERM is sent; it takes a few. A worker that takes
longer hangs and is killed, which loses nothing that was acknowledged."""

HEARING_SECONDS: Final = 5.0
"""Seconds between two checks for signs of life, of which each worker writes one a second. What counts is how many
checks in a row find none: a leader that did not run itself, as on a machine that slept, cannot judge its workers."""

TIMES_UNTIL_TOLD, TIMES_UNTIL_KILLED = 3, 24
"""Checks in a row without a sign of life: after 15 s a worker that listens counts as not serving, and after 2 minutes
it is killed. The next process starts over whatever took that long, such as waiting for the disk."""

_LISTENING: Final = re.compile(rb"^listening on (\S+), clients are told (\S+), ", re.MULTILINE)
_HTTP: Final = re.compile(rb"^metrics on https?://(\S+)/metrics$", re.MULTILINE)
"""Lines that a worker writes to standard output (`gateway.service`)."""


class Worker(ProcessProtocol):
    """One worker: a process, and its successor whenever it ends.

    :param http: the shared HTTP port, if there is one.
    :param broker: the worker's broker name.
    :param folder: the worker's data folder.
    :param command: the program and its arguments; `--listen` is among them.
    :param environment: the process's environment variables; each start uses their present values.
    :param gave_up: called when a process has ended with `WRONG_SETTINGS`; returns whether all workers end for that.
    """

    log = Logger()

    def __init__(
        self,
        reactor: Any,
        front: Front,
        http: SharedHttp | None,
        number: int,
        broker: str,
        folder: Path,
        command: Sequence[str],
        environment: Mapping[str, str],
        gave_up: Callable[[], bool],
    ) -> None:
        self._reactor = reactor
        self._front = front
        self._http = http
        self._number = number
        self._broker = broker
        self._folder = folder
        self._command = list(command)
        self._environment = environment
        self._gave_up = gave_up
        self._process: Any = None
        self._output = b""
        self._pause = FIRST_PAUSE
        self._is_wanted = True
        self._is_ending = False
        self._listens = False
        self._has_listened = False
        self._times_silent = 0
        self._waiting_for_first: list[Deferred[None]] = []
        self._waiting_for_start: list[Deferred[None]] = []
        self._waiting_for_end: list[Deferred[None]] = []

    def start(self) -> Deferred[None]:
        """Start the process. Fires when it listens, or once it could not start. Then it is tried again."""
        first = self._when(self._waiting_for_first)
        self._run()
        return first

    def restart(self) -> Deferred[None]:
        """Replace the process with a new one. Fires when the new one listens."""
        started = self._when(self._waiting_for_start)
        self._pause = 0.0
        self._terminate()
        return started

    def stop(self) -> Deferred[None]:
        """Have the process finish what is under way and end. Fires when it is gone."""
        self._is_wanted = False
        gone = self._when(self._waiting_for_end)
        self._terminate()
        return gone

    def look(self) -> None:
        """Check whether the process gave a sign of life since the last check. A process that does not listen yet is
        left alone, as its start may take long, and so is one that was told to end, which has `LONGEST_END` for
        that."""
        if not self._listens or self._is_ending:
            return
        self._times_silent += 1
        seconds = self._times_silent * HEARING_SECONDS
        if self._times_silent == TIMES_UNTIL_TOLD:
            self.log.error(
                "worker {number} hangs: nothing was heard from it for {seconds:g} s",
                number=self._number,
                seconds=seconds,
            )
            self._left()
            if self._http is not None:
                self._http.hangs(self._broker)
        elif self._times_silent == TIMES_UNTIL_KILLED:
            self.log.error(
                "worker {number} hangs and is killed: nothing was heard from it for {seconds:g} s",
                number=self._number,
                seconds=seconds,
            )
            self._signal(self._process, "KILL")

    def _heard(self) -> None:
        if self._times_silent >= TIMES_UNTIL_TOLD:
            self.log.info("worker {number} goes on", number=self._number)
            self._front.serves(self._broker)
            if self._http is not None:
                self._http.serves(self._broker)
        self._times_silent = 0

    def _left(self) -> None:
        self._front.left(self._broker)
        if self._http is not None:
            self._http.left(self._broker)

    def outReceived(self, data: bytes) -> None:
        if self._is_ending:
            # It still gives signs of life. And if it was told during its start, it listens for a moment.
            return
        if self._listens:
            self._heard()
            if self._http is not None:
                self._http.ready(self._broker, is_ready=not data.endswith(NOT_READY))
            return
        self._output += data
        found, http = _LISTENING.search(self._output), _HTTP.search(self._output)
        if found is None or (self._http is not None and http is None):
            return
        self._output = b""
        self._listens = self._has_listened = True
        address, advertised = (parse_host_port(text.decode()) for text in found.groups())
        self.log.info("worker {number} listens on {address}", number=self._number, address=address)
        self._pause = FIRST_PAUSE
        # The next process has to listen where clients know this one.
        self._set("--listen", address)
        self._front.joined(self._broker, address, advertised)
        if self._http is not None and http is not None:
            where = parse_host_port(http[1].decode())
            self._set("--http", where)
            self._http.joined(self._broker, where, advertised)
        _fire(self._waiting_for_first)
        _fire(self._waiting_for_start)

    def _set(self, flag: str, address: HostPort) -> None:
        self._command[self._command.index(flag) + 1] = str(address)

    def processEnded(self, reason: Failure) -> None:
        self._process = None
        self._output = b""
        self._is_ending = False
        self._listens = False
        self._times_silent = 0
        self._left()
        is_wrong = reason.value.exitCode == WRONG_SETTINGS  # type: ignore[union-attr]
        if self._is_wanted and not (is_wrong and self._gave_up()):
            died = reason.value.signal in DEATHS  # type: ignore[union-attr]
            self._run_again("ended", DIED if died else reason.getErrorMessage())
        _fire(self._waiting_for_end)

    def _run_again(self, what: str, reason: str) -> None:
        if self._pause:
            self.log.error(
                "worker {number} {what} and is started again in {pause} s: {reason}",
                number=self._number,
                what=what,
                pause=self._pause,
                reason=reason,
            )
            _fire(self._waiting_for_first)
        self._reactor.callLater(self._pause, self._run)
        self._pause = min(2 * self._pause or FIRST_PAUSE, LONGEST_PAUSE)

    def _run(self) -> None:
        if not self._is_wanted:
            return
        try:
            has_data = not self._has_listened or (self._folder / DATA_FILE).exists()
        except OSError as failure:
            reason = failure.strerror or str(failure)
            self._run_again("cannot be started", f"{self._folder} cannot be read: {reason}")
            return
        if not has_data:
            # The process would begin with an empty folder, and nobody would notice that the data is gone.
            self._run_again(
                "has no data",
                f"{self._folder} was moved or deleted; put it back, or restart the gateway to begin with an empty one",
            )
            return
        try:
            self._process = self._reactor.spawnProcess(
                self,
                sys.executable,
                self._command,
                env=self._environment,
                childFDs={0: 0, 1: "r", 2: 2},
            )
        except OSError as failure:
            # Only this retry starts it: the leader has too many files open just now, or there is no memory.
            self._run_again("could not be started", failure.strerror or str(failure))

    def _terminate(self) -> None:
        if self._process is None:
            _fire(self._waiting_for_end)
            return
        # From now on it answers no request. A change that others made meanwhile would be made in part.
        self._is_ending = True
        self._left()
        self._signal(self._process, "TERM")
        self._reactor.callLater(LONGEST_END, self._kill, self._process)

    def _kill(self, process: Any) -> None:
        """Kill a process that has not ended since it got SIGTERM."""
        if process is self._process:
            self.log.error(
                "worker {number} has not stopped within {seconds:g} s and is killed",
                number=self._number,
                seconds=LONGEST_END,
            )
            self._signal(process, "KILL")

    def _signal(self, process: Any, name: str) -> None:
        try:
            process.signalProcess(name)
        except error.ProcessExitedAlready:
            self.log.debug("worker {number} has ended already", number=self._number)

    @staticmethod
    def _when(waiting: list[Deferred[None]]) -> Deferred[None]:
        event: Deferred[None] = Deferred()
        waiting.append(event)
        return event


def _fire(waiting: list[Deferred[None]]) -> None:
    events = waiting[:]
    waiting.clear()
    for event in events:
        event.callback(None)
