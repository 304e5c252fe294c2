"""What every serving process begins with, a gateway as well as the leader of several workers: its log, its reactor, and
the way it ends."""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from twisted.internet.error import CannotListenError, ReactorNotRunning
from twisted.internet.main import installReactor
from twisted.internet.task import LoopingCall
from twisted.logger import Logger, globalLogBeginner

from gateway.cli.data_folder import is_of_store
from gateway.monitoring.log_stream import LogStream
from gateway.monitoring.logs import SPAN_SECONDS, Logs
from gateway.reactor import TurnReactor
from gateway.settings.config import Config
from gateway.settings.loading import LEADER_VARIABLE
from gateway.settings.values import HostPort

BACKLOG: Final = 1024
"""Connections that the kernel lets wait to be accepted, for the moment when a whole fleet reconnects."""

OTHER_FILES: Final = 100
"""Files that a process has open beside connections, at most."""

_STANDARD_OUTPUT, _STANDARD_ERROR = 1, 2
"""File descriptors."""

READY, NOT_READY = b".", b"!"
"""What a worker writes to standard output each second once it listens: whether traffic should come."""

WRONG_SETTINGS: Final = 2
"""Exit status of a process that cannot start until its settings are changed."""


class ServeError(Exception):
    """The process cannot serve; the text is one line that says why and what to do."""

    status = 1
    """The process's exit status."""


class StartError(ServeError):
    """The process cannot start."""


class SettingsError(StartError):
    """The process cannot start with these settings on this data folder, however often it is tried."""

    status = WRONG_SETTINGS


def exit_status(serve: Callable[[], None]) -> int:
    """Serve, and return the process's exit status. Print in one line what keeps it from starting or going on."""
    try:
        serve()
    except ServeError as failure:
        print(f"tidegate: {failure}", file=sys.stderr)
        return failure.status
    return 0


def begin(config: Config) -> tuple[Any, Logs]:
    """Return the process's reactor and its log, which is written from now on as the settings say.

    :raises StartError: when the log file cannot be written, or the machine is at one of its limits.
    """
    if config.log_file is not None and is_of_store(config.log_file, config.data):
        raise StartError(
            f"log_file = {config.log_file} is a file of the data folder itself: set it to another"
        )
    try:
        if config.log_file is not None:
            # Without O_NONBLOCK a named pipe would be opened only once somebody reads it.
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
            descriptor = os.open(config.log_file, flags, 0o666)
        else:
            descriptor = _STANDARD_ERROR
    except OSError as failure:
        reason = failure.strerror
        if failure.errno == errno.ENXIO:
            reason = "it is a pipe that nobody reads"
        raise StartError(
            f"cannot write log_file = {config.log_file}: {reason}; "
            "set it to a file in a folder that exists and can be written to"
        ) from failure
    worker = config.broker_name if LEADER_VARIABLE in os.environ else None
    logs = Logs(config, LogStream(descriptor), worker)
    logs.begin(globalLogBeginner)
    try:
        reactor: Any = TurnReactor()  # its interfaces cannot be checked without a plugin
    except OSError as failure:
        raise StartError(
            f"cannot watch connections: {failure.strerror}; "
            f"{_LIMITS.get(failure.errno, 'raise the limits of this process')}"
        ) from failure
    installReactor(reactor)  # type: ignore[no-untyped-call]
    # Twisted's own timers use the wall clock: if that were set back, everything that is scheduled would be late.
    reactor.seconds = time.monotonic
    spans = LoopingCall(logs.end_span)
    spans.clock = reactor
    spans.start(SPAN_SECONDS, now=False)
    reactor.addSystemEventTrigger("after", "shutdown", logs.end_span)
    return reactor, logs


def allow_open_files(config: Config, *, asked: int = 0) -> None:
    """Let this process open as many files as it may, as a JVM does. Shells limit the processes that they start to 1,024
    files, and each connection takes one. Log a warning if the settings allow more connections than can be open.

    :param asked: processes to which each connection to the HTTP port may need a further connection.
    :raises StartError: when no connection could be open.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most <= OTHER_FILES:
        raise StartError(
            f"this process may have {most} open files, which leaves none for connections: raise that limit "
            "(ulimit -Hn, LimitNOFILE of systemd)"
        )
    limits = {"max_connections": config.max_connections}
    wanted = config.max_connections + OTHER_FILES
    if config.http is not None:
        limits["max_http_connections"] = config.max_http_connections
        wanted += config.max_http_connections * (1 + asked)
    if most < wanted:
        Logger().warn(
            "{limits} can take {wanted} open files, and this process may have {most} open files: raise that limit "
            "(ulimit -Hn, LimitNOFILE of systemd), or lower {names}",
            limits=" and ".join(f"{name} = {limit}" for name, limit in limits.items()),
            wanted=wanted,
            most=most,
            names=" or ".join(limits),
        )


def announce(config: Config, line: str) -> None:
    """Write a line to standard output, and to `log_file` if there is one, where starts are looked for as well. Where
    standard output's reader is gone or its disk is full, the process serves all the same."""
    if config.log_file is not None:
        Logger().info("{line}", line=line)
    try:
        os.write(_STANDARD_OUTPUT, f"{line}\n".encode(errors="surrogateescape"))
    except OSError as failure:
        Logger().warn(
            "cannot write '{line}' to standard output: {error}", line=line, error=failure.strerror
        )


def tell_http(config: Config, port: int) -> None:
    """Announce where the HTTP port is, and whether the console is there.

    :param port: the port that is really bound.
    """
    assert config.http is not None
    address = f"{'https' if config.http_tls else 'http'}://{HostPort(config.http.host, port)}"
    announce(config, f"metrics on {address}/metrics")
    announce(
        config,
        "no console and no API: http is not a loopback address; set http_token_file or authentication"
        if config.is_api_closed
        else f"console on {address}/",
    )


_WAYS_OUT: Final[dict[int | None, str]] = {
    errno.EADDRINUSE: "stop what uses it, or ",
    errno.EACCES: "ask for the permission to use that port, or ",
}

_LIMITS: Final[dict[int | None, str]] = {
    errno.EMFILE: "let this process open more files (ulimit -Hn, LimitNOFILE of systemd)",
    errno.ENFILE: "let this machine open more files (fs.file-max)",
    errno.ENOMEM: "free memory of this machine",
    errno.ENOBUFS: "free memory of this machine",
    errno.ENOSPC: "let this user watch more connections (fs.epoll.max_user_watches)",
}
"""What to do where no other address helps, as this process or its machine is at a limit."""


def cannot_listen(
    failure: CannotListenError, setting: str, address: HostPort, other: str = "another address"
) -> StartError:
    """Return the error of a process that cannot listen, for example because its address is taken.

    :param setting: the name of the setting with the address.
    :param other: what the setting could be changed to.
    """
    number = getattr(failure.socketError, "errno", None)
    way_out = _LIMITS.get(number) or f"{_WAYS_OUT.get(number, '')}set {setting} to {other}"
    return StartError(f"cannot listen on {address}: {reason_of(failure)}; {way_out}")


def reason_of(failure: CannotListenError) -> str:
    """Return why a process cannot listen."""
    return str(getattr(failure.socketError, "strerror", None) or failure.socketError)


def stop(reactor: Any) -> None:
    """Have a process finish what is under way and stop. A process that is stopping already goes on with that."""
    with suppress(ReactorNotRunning):
        reactor.stop()


def stop_on_signals(reactor: Any, *others: signal.Signals) -> None:
    """Let SIGTERM and SIGINT stop the process from now on, however often they come.

    A Ctrl-C at a terminal reaches a leader and its workers alike, and the leader then stops its workers as well.

    :param others: signals that stop it too, unless the process was started so that it ignores them, as by `nohup`.
    """
    heeded = [one for one in others if signal.getsignal(one) is not signal.SIG_IGN]
    for number in (signal.SIGTERM, signal.SIGINT, *heeded):
        signal.signal(number, lambda *_: reactor.callFromThread(stop, reactor))
