"""A real gateway process on loopback, as the README starts it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from compat import children
from compat.ports import free_port
from gateway.client import RemotingClient
from gateway.settings.network import WORKER_PORT_DISTANCE
from gateway.wire.addresses import VIP_CHANNEL_DISTANCE

LIMIT_S = 120
"""How long to wait for an answer, or for the end of a gateway. No gateway takes so long, however busy the machine."""

_NEIGHBOURS = (
    -VIP_CHANNEL_DISTANCE,
    *(
        WORKER_PORT_DISTANCE * worker - below
        for worker in (1, 2)
        for below in (0, VIP_CHANNEL_DISTANCE)
    ),
)
"""The distances from its port to the other ports on which it listens, with up to two workers."""

_LISTENING = re.compile(r"listening on 127\.0\.0\.1:(\d+)")


@contextmanager
def limited(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill a process if the block takes too long, which also ends a read of its output."""
    watchdog = threading.Timer(LIMIT_S, process.kill)
    watchdog.start()
    try:
        yield
    finally:
        watchdog.cancel()


@contextmanager
def killed(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Kill a process at the end of the block, or if the block takes too long, and close its pipes."""
    with process, limited(process):
        try:
            yield process
        finally:
            process.kill()


class GatewayProcess:
    """`tidegate serve` on a port that it keeps over restarts; the port is not lent to anybody else meanwhile."""

    def __init__(
        self, data: Path, *flags: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self.data = data
        self._environment = environment
        self._flags = flags
        self.port = free_port(*_NEIGHBOURS)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.kill()

    @property
    def address(self) -> str:
        """The address for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start and wait until it listens."""
        command = [
            *(sys.executable, "-m", "gateway", "serve", "--data", str(self.data)),
            *("--listen", self.address, *self._flags),
        ]
        self.data.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = children.start(
                command,
                folder=self.data.parent,
                environment=self._environment,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        line = self.line()
        listening = _LISTENING.match(line)
        assert listening is not None, f"the gateway did not start: {line}{self.log.read_text()}"
        self.port = int(listening[1])

    def line(self) -> str:
        """Return the next line that it prints."""
        assert self._process is not None
        assert self._process.stdout is not None
        with limited(self._process):
            return self._process.stdout.readline().decode()

    @property
    def log(self) -> Path:
        """The log file."""
        return self.data.with_name(self.data.name + ".log")

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self.ended()

    def ended(self) -> int:
        """Wait until the process has ended. Return its exit status."""
        assert self._process is not None
        status = self._process.wait(LIMIT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None
        return status

    @contextmanager
    def stopped_for(self, seconds: float) -> Iterator[None]:
        """Stop the process while the block, which waits for its answers, begins; let it go on after that time."""
        os.kill(self.pid, signal.SIGSTOP)
        going_on = threading.Timer(seconds, os.kill, (self.pid, signal.SIGCONT))
        going_on.start()
        try:
            yield
        finally:
            going_on.join()

    def terminate(self) -> int:
        """Send SIGTERM. Return the exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self.ended()

    def client(self) -> RemotingClient:
        """Return a connection for raw requests."""
        return RemotingClient("127.0.0.1", self.port, timeout=LIMIT_S)
