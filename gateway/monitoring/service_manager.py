"""Reports the gateway's state to systemd (sd_notify(3)): ready, stopping, and alive.

It does so only where systemd asks for it, by NOTIFY_SOCKET and WATCHDOG_USEC.
"""

from __future__ import annotations

import os
import socket
from typing import Any, Final, cast

from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from gateway.reactor import Reactor

SOCKET: Final = "NOTIFY_SOCKET"
WATCHDOG: Final = "WATCHDOG_USEC"
WATCHDOG_PROCESS: Final = "WATCHDOG_PID"
VARIABLES: Final = frozenset({SOCKET, WATCHDOG, WATCHDOG_PROCESS})
"""Variables that a process started by this one must not have: systemd listens only to this one."""


class ServiceManager:
    """The service manager that started the process."""

    log = Logger()

    def __init__(self) -> None:
        environment = os.environ
        address = environment.get(SOCKET, "")
        # An abstract socket is written with @ for the zero byte.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        mine = environment.get(WATCHDOG_PROCESS, str(os.getpid())) == str(os.getpid())
        limit = environment.get(WATCHDOG, "")
        self._watchdog_s = int(limit) / 1e6 if mine and limit.isdigit() else 0.0

    def ready(self, status: str, reactor: Reactor) -> None:
        """Report that the gateway serves. From now on report that its reactor runs, where systemd watches that.

        :param status: a line for `systemctl status`.
        """
        self._tell(f"READY=1\nSTATUS={status}")
        if self._address and self._watchdog_s:
            loop = LoopingCall(self._tell, "WATCHDOG=1")
            loop.clock = cast(Any, reactor)
            loop.start(self._watchdog_s / 2)

    def stopping(self) -> None:
        """Report that the gateway finishes what is under way."""
        self._tell("STOPPING=1\nSTATUS=finishing what is under way")

    def _tell(self, state: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as speaker:
                speaker.sendto(state.encode(), self._address)
        except OSError as error:
            self.log.warn("cannot notify systemd: {error}", error=error.strerror)
