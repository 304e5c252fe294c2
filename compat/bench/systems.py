"""The measured systems. Each is started fresh for each scenario, on loopback."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from compat import children
from compat.bench import holding
from compat.bench.records import Spread
from compat.bench.scenarios import Scenario
from compat.real_broker import RealBroker


class System(NamedTuple):
    """A running server under test."""

    name: str
    address: str
    """The address of its name server for clients."""
    pid: int
    """The process that stores and delivers messages."""
    folder: Path
    """The folder with its data."""
    output: Path
    """The file with its output: its log, and why it ended."""
    start_seconds: float = 0.0
    """The time from its start to its first answer; 0 if that is not measured."""
    fill_seconds: float = 0.0
    """How long it took to fill its data folder before the start."""
    filled_bytes: int = 0
    """How many bytes the filled data folder occupied on disk."""
    disk_read: Spread | None = None
    """How long the disk took for random pages of that data, before the start."""


@contextmanager
def tidegate(folder: Path, scenario: Scenario) -> Iterator[System]:
    """Run a gateway in a process of its own, on a free port.

    Its other settings come from environment variables, so that a setting can be tried:
    `TIDEGATE_... tidegate bench`.
    """
    folder.mkdir(parents=True)
    data = folder / "data"
    begin = time.monotonic()
    filled_bytes = holding.fill(data, scenario.held) if scenario.held else 0
    filled = time.monotonic()
    disk_read = holding.disk_reads(data) if scenario.held else None
    start = time.monotonic()
    options = ("--listen", "127.0.0.1:0", "--flush", scenario.flush, "--workers", scenario.workers)
    kept = scenario.retention_hours
    retention = ("--retention-hours", kept) if kept else ()
    words = ("gateway", "serve", "--data", data, *options, *retention)
    with children.server(*words, output=folder / "output") as server:
        holding.wait_for_answer(server.address)
        started = time.monotonic()
        yield System(
            "tidegate",
            server.address,
            server.pid,
            data,
            server.output,
            start_seconds=started - start,
            fill_seconds=filled - begin,
            filled_bytes=filled_bytes,
            disk_read=disk_read,
        )


@contextmanager
def answers(folder: Path, scenario: Scenario) -> Iterator[System]:
    """Run a server that answers sends and stores nothing: its rate is the limit of client and loopback."""
    folder.mkdir(parents=True)
    words = ("compat.bench.answers", scenario.queues)
    with children.server(*words, output=folder / "output") as server:
        yield System("answers", server.address, server.pid, folder, server.output)


@contextmanager
def rocketmq(folder: Path, scenario: Scenario) -> Iterator[System]:
    """Run a real broker with a heap of 2 GiB and its default settings, except the flush, recall and SQL92 filters.

    Its name server is not measured.
    """
    with RealBroker(flush=scenario.flush, heap="2g", light=False, folder=folder) as broker:
        address, pid = broker.namesrv_address, broker.pids[0]
        yield System("rocketmq", address, pid, folder / "store", broker.output)


Start = Callable[[Path, Scenario], AbstractContextManager[System]]
SYSTEMS: Final[dict[str, Start]] = {
    "tidegate": tidegate,
    "rocketmq": rocketmq,
    "answers": answers,
}
TITLES: Final = {"tidegate": "Tidegate", "rocketmq": "RocketMQ", "answers": "answers only"}
