"""Several gateways on one machine behind one address: `workers = N`.

One interpreter uses one core. Each worker is a process that serves as a broker of its own. This process is their
leader: it starts the workers, restarts those that die or hang, and answers at the shared address
(`gateway.workers.front`).
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from twisted.internet import error
from twisted.internet.defer import Deferred, DeferredList, ensureDeferred
from twisted.internet.defer import TimeoutError as DeferredTimeoutError
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from gateway.connections.connection import SILENCE_LOOK_SECONDS
from gateway.monitoring.logs import Logs
from gateway.monitoring.service_manager import VARIABLES, ServiceManager
from gateway.process import (
    BACKLOG,
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
from gateway.settings.config import Config, descriptions
from gateway.settings.loading import (
    LEADER_ADDRESS_VARIABLE,
    LEADER_KEY_VARIABLE,
    LEADER_VARIABLE,
    WORKERS_VARIABLE,
    ConfigError,
    changed,
    load,
)
from gateway.settings.named_files import http_token, initial_user, no_user, tls_layers
from gateway.settings.network import WORKER_PORT_DISTANCE
from gateway.settings.upstream import after
from gateway.settings.values import HostPort
from gateway.wire.admin_bodies import parse_changes
from gateway.wire.commands import Command
from gateway.workers.front import Front
from gateway.workers.shared_http import SharedHttp
from gateway.workers.worker import HEARING_SECONDS, Worker
from gateway.workers.worker_folders import (
    check_folders_of_workers,
    lock_folder_of_workers,
    worker_folder,
)
from storage import DATA_FILE

LONGEST_START: Final = 180.0
"""Seconds that a rolling restart waits for each worker to end and to listen again. After that the restart stops: what
keeps one worker from starting may keep the others too."""

LEADERS_OWN: Final = (
    *("workers", "listen", "advertise", "http", "http_tls", "data", "broker_name", "log_file"),
)
"""Settings that the leader and its workers keep from the leader's start to its end, whenever a worker is started."""


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
        self.http = (
            SharedHttp(config, reactor, names, key, self._front.worker_for)
            if config.http is not None
            else None
        )
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
        advertised = self._config.advertised(self.address.port)
        self._front.port = advertised.port
        if self.http is not None:
            self.http.address = str(advertised)
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
            needs_users = _check_files(config, self._reactor)
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
        asks_for_users = needs_users and not self._config.authentication
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
        advertised = _own_address(self._config.advertised(listen.port), number)
        self._front.expected(broker, _own_address(listen, number), advertised)
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
        config = after(before, changes, before.advertised(self.address.port), before.workers)
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


def _own_address(shared: HostPort, number: int) -> HostPort:
    """Return a worker's own address, which it has beside the shared one. Port 0, which is still to be chosen, stays
    0."""
    return HostPort(shared.host, shared.port and shared.port + WORKER_PORT_DISTANCE * (number + 1))


def _own_settings(config: Config, number: int, left_out: Iterable[str]) -> dict[str, str]:
    """Return, as flags, the settings that each worker has for itself (addresses, name, folder), the log file that it
    shares with the leader, and empty flags for settings that it must not have."""
    advertise, http = config.advertise, config.http
    found = {
        "--workers": "1",
        "--listen": str(_own_address(config.listen, number)),
        "--data": str(worker_folder(config.data, number)),
        "--broker-name": _broker_name(config, number),
    }
    # What was left out must not come back from the settings file.
    settings = descriptions()
    found |= {settings[name].flag: "" for name in (*left_out, "advertise", "http")}
    found["--log-file"] = settings["log_file"].show(config.log_file)
    if advertise is not None:
        found["--advertise"] = str(_own_address(advertise, number))
    if http is not None:
        found["--http"] = str(HostPort(http.host, http.port and http.port + 1 + number))
    return found


def _check_files(config: Config, reactor: Any) -> bool:
    """Check the files that settings name: what no worker could start with is reported once, and not by each of them
    again and again.

    :returns: whether the workers have to have users already, as authentication is on and no first one is named.
    :raises StartError: when a file cannot be used.
    """
    tls_layers(config, reactor)
    http_token(config)
    return initial_user(config) is None and config.authentication


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
    if _check_files(config, reactor):
        folders = (worker_folder(config.data, number) for number in range(config.workers))
        for folder in folders:
            if not (folder / DATA_FILE).exists():
                raise no_user(folder)
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
    announce(
        config,
        f"listening on {leader.address} with {config.workers} workers, data in {config.data.absolute()}",
    )
    if leader.http is not None:
        tell_http(config, leader.http.port)
