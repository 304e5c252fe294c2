"""Several gateways on one machine behind one address: `workers = N`.

One interpreter uses one core. Each worker is a process that serves as a broker of its own. This process is their
leader: it starts the workers, restarts those that die or hang, and answers at the shared address (`gateway.front`).
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from twisted.internet import error
from twisted.internet.defer import Deferred, DeferredList, ensureDeferred
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.internet.protocol import ProcessProtocol
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from gateway.apart import DEATHS, DIED
from gateway.config import Config, descriptions
from gateway.connection import SILENCE_LOOK_SECONDS
from gateway.front import Front
from gateway.loading import (
    LEADER_ADDRESS_VARIABLE,
    LEADER_KEY_VARIABLE,
    LEADER_VARIABLE,
    WORKERS_VARIABLE,
    ConfigError,
    changed,
    load,
)
from gateway.logs import Logs
from gateway.named_files import http_token, initial_user, no_user, tls_layers
from gateway.process import (
    BACKLOG,
    NOT_READY,
    WRONG_SETTINGS,
    SettingsError,
    StartError,
    allow_open_files,
    announce,
    begin,
    cannot_listen,
    exit_status,
    stop,
    stop_on_signals,
    tell_http,
)
from gateway.service_manager import VARIABLES, ServiceManager
from gateway.setting_values import HostPort, parse_host_port
from gateway.settings.network import WORKER_PORT_DISTANCE
from gateway.shared_http import SharedHttp
from gateway.upstream_settings import after
from gateway.wire.admin_bodies import parse_changes
from gateway.wire.commands import Command
from gateway.worker_folders import (
    check_folders_of_workers,
    lock_folder_of_workers,
    worker_folder,
)
from storage import DATA_FILE

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds before a worker that ended by itself is started again. The pause doubles each time that the worker has
not listened."""

LONGEST_END: Final = 20.0
"""Seconds that a worker has to finish what is under way once SIGTERM is sent; it takes a few. A worker that takes
longer hangs and is killed, which loses nothing that was acknowledged."""

LONGEST_START: Final = 180.0
"""Seconds that a rolling restart waits for each worker to end and to listen again. After that the restart stops: what
keeps one worker from starting may keep the others too."""

HEARING_SECONDS: Final = 5.0
"""Seconds between two checks for signs of life, of which each worker writes one a second. What counts is how many
checks in a row find none: a leader that did not run itself, as on a machine that slept, cannot judge its workers."""

TIMES_UNTIL_TOLD, TIMES_UNTIL_KILLED = 3, 24
"""Checks in a row without a sign of life: after 15 s a worker that listens counts as not serving, and after 2 minutes
it is killed. The next process starts over whatever took that long, such as waiting for the disk."""

LEADERS_OWN: Final = (
    *("workers", "listen", "advertise", "http", "http_tls", "data", "broker_name", "log_file"),
)
"""Settings that the leader and its workers keep from the leader's start to its end, whenever a worker is started."""

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


class Leader:
    """Starts, watches and restarts the workers, and runs their front.

    :param environment: the workers' environment variables, with all settings but those that each worker has as flags.
    :param logs: this process's own log.
    :param left_out: names of settings that stay unset whatever the settings file says.
    """

    log = Logger()

    def __init__(
        self,
        config: Config,
        reactor: Any,
        environment: Mapping[str, str],
        logs: Logs,
        left_out: Iterable[str] = (),
    ) -> None:
        self._config = config
        self._reactor = reactor
        self._environment = {**environment, LEADER_KEY_VARIABLE: secrets.token_hex()}
        self._logs = logs
        self._left_out = dict.fromkeys(left_out, "")
        names = [_broker_name(config, number) for number in range(config.workers)]
        key = self._environment[LEADER_KEY_VARIABLE]
        self._front = Front(reactor, config, names, self._changed, key)
        self.http = SharedHttp(config, reactor, names) if config.http is not None else None
        """The shared HTTP port, if there is one."""
        self._port: Any = None
        self._silence = LoopingCall(self._front.clients.close_silent)
        self._silence.clock = reactor
        self._hearing = LoopingCall(self._look)
        self._hearing.clock = reactor
        self._is_started = False
        self.trouble: SettingsError | None = None
        """Why the leader stops by itself, if it does."""
        self._is_rolling = False
        self._workers = [
            Worker(
                *(reactor, self._front, self.http, number, name),
                *(worker_folder(config.data, number), _command(config, number, self._left_out)),
                *(self._environment, self._gave_up),
            )
            for number, name in enumerate(names)
        ]
        if config.listen.port:
            for number, name in enumerate(names):
                self._expect(number, name)

    def start(self) -> Deferred[Any]:
        """Listen at the shared address, and start the workers. Fires when each of them listens or could not start:
        those that listen serve, and the others are tried again.

        :raises StartError: when the address is taken.
        """
        host, port = listen = self._config.listen
        try:
            self._port = self._reactor.listenTCP(
                port, self._front.clients, backlog=BACKLOG, interface=host
            )
        except error.CannotListenError as failure:
            raise cannot_listen(failure, "listen", listen) from failure
        self._environment[LEADER_ADDRESS_VARIABLE] = str(self.address.from_here)
        self._silence.start(SILENCE_LOOK_SECONDS, now=False)
        self._hearing.start(HEARING_SECONDS, now=False)
        if self.http is not None:
            self.http.address = str(self._config.advertised(self.address.port))
            self.http.listen()
        started = DeferredList([worker.start() for worker in self._workers])
        return started.addCallback(self._has_started)

    @property
    def address(self) -> HostPort:
        """The shared address."""
        return HostPort(self._config.listen.host, self._port.getHost().port)

    def stop(self) -> Deferred[Any]:
        """Stop listening, and stop all workers. Fires when the last one is gone."""
        self._port.stopListening()
        if self.http is not None:
            self.http.stop()
        return DeferredList([worker.stop() for worker in self._workers])

    def roll(self) -> None:
        """Restart the workers one by one, each when the one before it listens again. After a worker that does not
        listen again, none is restarted.

        The restart is refused, with a log entry, while another one goes on, and where no worker could start with the
        settings. The leader takes up the present settings too, except `LEADERS_OWN`; the log names those of them that
        have changed.
        """
        if self._is_rolling:
            self.log.warn(
                "SIGHUP is ignored: a rolling restart is under way; send SIGHUP again once it has ended"
            )
            return
        try:
            wanted = load(self._left_out, self._environment).config
            config = changed(wanted, {name: getattr(self._config, name) for name in LEADERS_OWN})
            tls_layers(config, self._reactor)
            lacks_user = initial_user(config) is None and config.authentication
            http_token(config)
        except (ConfigError, StartError) as failure:
            self._pass_over(failure)
            return
        waiting = [name for name in LEADERS_OWN if getattr(wanted, name) != getattr(config, name)]
        if waiting:
            self.log.warn(
                "a rolling restart does not change {names}: for that, stop the gateway and start it again",
                names=", ".join(waiting),
            )
        # Once authentication is on, workers would refuse to list their users to the leader.
        asks_for_users = lacks_user and not self._config.authentication
        ensureDeferred(self._roll(config, asks_for_users=asks_for_users))

    def _pass_over(self, failure: Exception) -> None:
        self.log.error(
            "SIGHUP is ignored, as no worker could start with the present settings: {reason}",
            reason=str(failure),
        )

    def _configure(self, config: Config) -> None:
        self._config = config
        self._front.configure(config)
        if self.http is not None:
            self.http.configure(config)
        self._logs.configure(config)

    def _expect(self, number: int, broker: str) -> None:
        """Register where a worker will listen; its start may take long."""
        listen = self._config.listen
        advertised = _own(self._config.advertised(listen.port), number)
        self._front.expected(broker, _own(listen, number), advertised)
        if self.http is not None:
            self.http.expected(broker, advertised)

    def _look(self) -> None:
        for worker in self._workers:
            worker.look()

    def _has_started(self, _: object) -> None:
        self._is_started = True

    def _gave_up(self) -> bool:
        """Stop the leader during the first start of its workers, as the settings do not let them start; return whether
        it stops. A worker that ends so later leaves the others alone."""
        if not self._is_started:
            self.trouble = SettingsError(
                "a worker cannot start with these settings: its lines above say why"
            )
            stop(self._reactor)
        return not self._is_started

    def _changed(self, command: Command) -> None:
        """Apply settings that the workers have applied, and pass them to workers that are started from now on."""
        before = self._config
        changes = parse_changes(command.body)
        # Each worker runs with workers = 1, so this value is no change to a worker, and means nothing for the leader.
        changes.pop("workers", None)
        config = after(before, changes)
        for name, setting in descriptions().items():
            value = getattr(config, name)
            if value != getattr(before, name):
                self._environment[setting.variable] = setting.show(value)
        self._configure(config)

    async def _roll(self, config: Config, *, asks_for_users: bool) -> None:
        self._is_rolling = True
        lacking = await self._front.without_users() if asks_for_users else []
        if lacking:
            self._pass_over(no_user(worker_folder(config.data, lacking[0])))
        else:
            self._configure(config)
            await self._restart_all()
        self._is_rolling = False

    async def _restart_all(self) -> None:
        for number, worker in enumerate(self._workers):
            try:
                await worker.restart().addTimeout(LONGEST_START, self._reactor)
            except DeferredTimeoutError:
                self.log.error(
                    "the rolling restart ends: worker {number} does not listen after {seconds:g} s, and is still "
                    "retried; the workers after it were not restarted. See the lines above, and send SIGHUP again",
                    number=number,
                    seconds=LONGEST_START,
                )
                break
        else:
            self.log.info("all workers were restarted")


def _command(config: Config, number: int, left_out: Iterable[str]) -> list[str]:
    settings = _own_settings(config, number, left_out).items()
    flags = ["--http-tls" if config.http_tls else "--no-http-tls"]
    flags += [text for setting in settings for text in setting]
    # -P keeps the current folder off the import path, as for the command itself: it may have a `gateway` of its own.
    return [sys.executable, "-P", "-m", "gateway", "serve", *flags]


def _broker_name(config: Config, number: int) -> str:
    return f"{config.broker_name}-{number}"


def _own(shared: HostPort, number: int) -> HostPort:
    """Return a worker's own address, which it has beside the shared one. Port 0, which is still to be chosen, stays
    0."""
    return HostPort(shared.host, shared.port and shared.port + WORKER_PORT_DISTANCE * (number + 1))


def _own_settings(config: Config, number: int, left_out: Iterable[str]) -> dict[str, str]:
    """Return, as flags, the settings that each worker has for itself (addresses, name, folder), the log file that it
    shares with the leader, and empty flags for settings that it must not have."""
    advertise, http = config.advertise, config.http
    found = {
        "--workers": "1",
        "--listen": str(_own(config.listen, number)),
        "--data": str(worker_folder(config.data, number)),
        "--broker-name": _broker_name(config, number),
    }
    # What was left out must not come back from the settings file.
    settings = descriptions()
    found |= {settings[name].flag: "" for name in (*left_out, "advertise", "http")}
    found["--log-file"] = settings["log_file"].show(config.log_file)
    if advertise is not None:
        found["--advertise"] = str(_own(advertise, number))
    if http is not None:
        found["--http"] = str(HostPort(http.host, http.port and http.port + 1 + number))
    return found


def run(config: Config, variables: Mapping[str, str]) -> int:
    """Serve with several workers until stopped, and return the process's exit status.

    :param variables: the settings that were given as flags, as environment variables.
    """
    return exit_status(partial(_serve, config, variables))


def _serve(config: Config, variables: Mapping[str, str]) -> None:
    left_over = check_folders_of_workers(config)
    with lock_folder_of_workers(config.data):
        _lead(config, variables, left_over)


def _lead(config: Config, variables: Mapping[str, str], left_over: Iterable[Path]) -> None:
    reactor, logs = begin(config)
    # Report once what no worker could start with, instead of having each worker report it again and again.
    tls_layers(config, reactor)
    if initial_user(config) is None and config.authentication:
        folders = (worker_folder(config.data, number) for number in range(config.workers))
        for folder in folders:
            if not (folder / DATA_FILE).exists():
                raise no_user(folder)
    http_token(config)
    for folder in left_over:
        Leader.log.warn(
            "no worker serves the messages in {folder}, as workers = {workers}; set workers higher to serve them",
            folder=folder,
            workers=config.workers,
        )
    inherited = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    own = {
        LEADER_VARIABLE: str(os.getpid()),
        WORKERS_VARIABLE: str(config.workers),
    }
    environment = {**inherited, **variables, **own}
    allow_open_files(config, asked=config.workers)
    left_out = [name for name, one in descriptions().items() if variables.get(one.variable) == ""]
    leader = Leader(config, reactor, environment, logs, left_out)
    started = leader.start()
    started.addCallback(lambda _: _tell(config, leader))
    manager = ServiceManager()
    started.addCallback(lambda _: manager.ready(f"{config.workers} workers", reactor))
    reactor.addSystemEventTrigger("before", "shutdown", manager.stopping)
    reactor.addSystemEventTrigger("before", "shutdown", leader.stop)
    signal.signal(signal.SIGHUP, lambda *_: reactor.callFromThread(leader.roll))
    # Twisted installs its handlers first, since it learns of ended processes by a signal.
    reactor.callWhenRunning(stop_on_signals, reactor)
    reactor.run()
    if leader.trouble is not None:
        raise leader.trouble


def _tell(config: Config, leader: Leader) -> None:
    announce(f"listening on {leader.address} with {config.workers} workers, data in {config.data}")
    if leader.http is not None:
        tell_http(config, leader.http.port)
