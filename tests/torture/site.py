"""The gateway under torture: its disk, its clock, its processes, and the load on it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from compat.bench.processes import usage
from gateway.client import ClientError, RefusalError, RemotingClient, successful
from gateway.wire.codes import RequestCode
from gateway.wire.messages import Message
from tests.live.ledger import Ledger, read_all, wait_until_fired, work
from tests.live.process import GatewayProcess

MAX_CONNECTIONS: Final = 25_000
PATIENCE_S: Final = 180
"""How long the gateway may take to serve again after a harm."""

_CLOCK_LIBRARY: Final = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
"""From Debian's package libfaketime."""


_ENDED: Final = "ended and is started again"
_KILLED: Final = f"signal {int(signal.SIGKILL)}"
"""What the leader logs of a worker that ended, and of the signal that ended it."""
_TRACEBACK: Final = re.compile(r"^\S.*\n\tTraceback \(most recent.*\n((?:\t.*\n)*)", re.MULTILINE)
"""Matches a line of the log and the traceback below it."""
_SLEEP_FAILED: Final = "time.sleep(seconds)\n\tbuiltins.OSError: [Errno 22] Invalid argument\n"
"""Ends the traceback of a fault of libfaketime 0.9.10, not of the gateway: at times it has Python's `time.sleep` wait
until a negative time (its issue 426)."""


class Site:
    """A gateway in a folder. Its clock can be set if libfaketime is installed.

    :param has_own_disk: whether the folder is a file system that may be filled.
    """

    def __init__(self, folder: Path, workers: int, flush: str, *, has_own_disk: bool) -> None:
        self.folder = folder
        self.has_own_disk = has_own_disk
        self.has_own_clock = _CLOCK_LIBRARY is not None
        self.workers = workers
        self._clock = folder / "clock"
        self.set_clock(0)
        flags = ["--workers", str(workers), "--flush", flush]
        flags += ["--max-connections", str(MAX_CONNECTIONS), "--disk-reserve", "0"]
        self.gateway = GatewayProcess(folder / "data", *flags, environment=self._environment())
        self.ledger = Ledger()
        self.peak_own_memory = 0
        self._over = threading.Event()

    def _environment(self) -> dict[str, str]:
        if not self.has_own_clock:
            return {}
        return {
            "LD_PRELOAD": str(_CLOCK_LIBRARY),
            "FAKETIME_TIMESTAMP_FILE": str(self._clock),
            "FAKETIME_CACHE_DURATION": "1",
            # Only the wall clock is set, as by an operator or NTP.
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }

    def set_clock(self, seconds: int) -> None:
        """Shift the gateway's wall clock, within a second, by so many seconds from the true time."""
        new = self._clock.with_suffix(".new")
        new.write_text(f"{seconds:+d}s\n")
        new.rename(self._clock)

    def address(self, number: int) -> tuple[str, int]:
        """Return the address of one of the workers. Raises ClientError and RefusalError."""
        with self.gateway.client() as client:
            body = successful(client.ask(RequestCode.GET_BROKER_CLUSTER_INFO)).body
        brokers = msgspec.json.decode(body)["brokerAddrTable"]
        addresses = sorted(broker["brokerAddrs"]["0"] for broker in brokers.values())
        host, _, port = addresses[number % len(addresses)].rpartition(":")
        return host, int(port)

    def connect(self, number: int) -> RemotingClient:
        """Return a connection to one of the workers. Raises ClientError and RefusalError."""
        return RemotingClient(*self.address(number))

    @contextmanager
    def load(self, senders: int) -> Iterator[None]:
        """Send by so many threads, as long as the context lasts."""
        threads = [
            threading.Thread(target=self._send, args=(number, senders), daemon=True)
            for number in range(senders)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
            # A sender that failed has printed its error. Without it, the gateway was hardly under load.
            assert all(thread.is_alive() for thread in threads), "a sender ended before its time"
        finally:
            self._over.set()
            for thread in threads:
                thread.join()

    def _send(self, seed: int, step: int) -> None:
        numbers = iter(range(seed, 1 << 60, step))
        while not self._over.is_set():
            try:
                connection = self.connect(seed)
            except (ClientError, RefusalError):
                self._over.wait(0.1)
                continue
            work(connection, self.ledger, seed, numbers, self._over)

    def fired(self) -> list[Message]:
        """Wait for all pending messages. Return all messages that fired."""
        self.wait_until_serving()
        with self.gateway.client() as client:
            wait_until_fired(client)
        self.watch_memory()
        return [
            message for number in range(self.workers) for message in read_all(self.connect(number))
        ]

    def crashes(self) -> set[str]:
        """Return the log's lines of workers that ended otherwise than by a harm's SIGKILL."""
        lines = self.gateway.log.read_text(errors="replace").splitlines()
        return {line for line in lines if _ENDED in line and _KILLED not in line}

    def tracebacks(self) -> set[str]:
        """Return the log's lines that a traceback follows, with it: whatever is done to a gateway, it logs what
        happened."""
        found = _TRACEBACK.finditer(self.gateway.log.read_text(errors="replace"))
        return {one[0] for one in found if _SLEEP_FAILED not in one[1]}

    def wait_until_serving(self) -> None:
        """Return when every worker answers again; raise TimeoutError when that takes too long."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                with self.gateway.client() as client:
                    successful(client.ask(RequestCode.LOOK_UP_TIMERS))
                return
            except (ClientError, RefusalError) as error:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the gateway does not serve again: {error}") from None
                time.sleep(0.05)

    def worker_pids(self) -> list[int]:
        """Return the ids of the processes that hold the data: the workers, or the gateway itself."""
        pid = self.gateway.pid
        if self.workers == 1:
            return [pid]
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(one) for one in children.split()]

    def watch_memory(self) -> None:
        """Note the current memory use of the whole gateway."""
        used = usage(self.gateway.pid)
        self.peak_own_memory = max(self.peak_own_memory, used.own_memory)


@contextmanager
def disk(size_mib: int) -> Iterator[tuple[Path, bool]]:
    """Provide a new folder, and whether it is a file system of its own, of this size, which needs root."""
    folder = Path(tempfile.mkdtemp(prefix="torture-"))
    mount, umount = shutil.which("mount"), shutil.which("umount")
    mounted = False
    if mount and umount and os.geteuid() == 0:
        options = f"size={size_mib}m"
        done = subprocess.run(
            [mount, "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, check=False
        )
        mounted = done.returncode == 0
    try:
        yield folder, mounted
    finally:
        if mounted and umount:
            subprocess.run([umount, "--lazy", folder], check=False)
        shutil.rmtree(folder, ignore_errors=True)
