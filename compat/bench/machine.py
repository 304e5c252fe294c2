"""The machine of a run, and its limits, which no server on it can exceed."""

from __future__ import annotations

import os
import platform
import random
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from compat import children
from compat.bench import echo
from compat.bench.records import Spread, percentile, spread
from compat.toolchain.folder import PROJECT

_PAGE: Final = bytes(4096)
_PING: Final = bytes(echo.SIZE)
_ECHO_LIMIT_S: Final = 30
_RANDOM_READS: Final = 1_000
_MOST_BYTES: Final = 64 << 20
"""The most that is appended: some seconds of a disk, but less than one of a file system in memory."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the machine that explain figures."""

    cpu: str
    cores: int
    memory_bytes: int
    system: str
    file_system: str
    """The file system of the folder with the servers' data."""
    load_average: float
    """Runnable processes in the minute before; over a quarter of the cores, other work was using the machine."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The operations that the machine itself can do per second, one after the other."""

    overwrites_per_second: float
    """Writes of 4 KiB to one place, each followed by fdatasync."""
    appends_per_second: float
    """The same, but at the end of a file: the file system then also writes the file's new length."""
    append_p50_ms: float
    append_p99_ms: float
    round_trips_per_second: float
    """Round trips of 64 bytes over a loopback TCP connection between two processes."""


def describe(folder: Path) -> Machine:
    """Return the facts of this machine, with the file system of a folder."""
    return Machine(
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        system=f"{platform.system()} {platform.release()}",
        file_system=_file_system(folder),
        load_average=os.getloadavg()[0],
    )


def measure_limits(folder: Path, seconds: float) -> Limits:
    """Measure overwrites, appends and loopback, each for so many seconds."""
    overwrites = _sync_times(folder, seconds, step=0)
    appends = _sync_times(folder, seconds, step=len(_PAGE))
    ordered = sorted(appends)
    return Limits(
        overwrites_per_second=len(overwrites) / sum(overwrites),
        appends_per_second=len(appends) / sum(appends),
        append_p50_ms=percentile(ordered, 0.5) * 1000,
        append_p99_ms=percentile(ordered, 0.99) * 1000,
        round_trips_per_second=_round_trips(seconds),
    )


def random_reads(file: Path, seconds: float) -> Spread | None:
    """Measure reads of 4 KiB from the disk, one after the other: a thousand, or as many as fit into the time.

    Each read is of a page of the file that is chosen at random and was not read before. The file must have been synced.
    It is dropped from the page cache before and afterwards, so that the next process finds none of it there.

    :returns: None if the file has no whole page.
    """
    pages = range(file.stat().st_size // len(_PAGE))
    times = []
    with file.open("rb", buffering=0) as opened:
        descriptor = opened.fileno()
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        # Without it the kernel reads ahead, which takes longer and brings later pages into memory.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        begin = time.monotonic()
        end = begin + seconds
        for page in random.sample(pages, min(_RANDOM_READS, len(pages))):
            os.pread(descriptor, len(_PAGE), page * len(_PAGE))
            now = time.monotonic()
            times.append((now - begin) * 1_000)
            begin = now
            if now >= end:
                break
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    return spread(times)


def _sync_times(folder: Path, seconds: float, step: int) -> list[float]:
    """Return the seconds that each write with its fdatasync took. The writes are `step` bytes apart."""
    times: list[float] = []
    with _named(folder), tempfile.TemporaryFile(dir=folder) as file:
        os.pwrite(file.fileno(), _PAGE, 0)
        os.fsync(file.fileno())
        place = step
        begin = time.monotonic()
        end = begin + seconds
        while begin < end and place < _MOST_BYTES:
            os.pwrite(file.fileno(), _PAGE, place)
            os.fdatasync(file.fileno())
            now = time.monotonic()
            times.append(now - begin)
            begin = now
            place += step
    return times


@contextmanager
def _named(folder: Path) -> Iterator[None]:
    """Name the folder in errors of its file system, such as a full disk."""
    try:
        yield
    except OSError as error:
        error.filename = str(folder)
        raise


def _round_trips(seconds: float) -> float:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        process = children.start(
            [sys.executable, "-m", "compat.bench.echo", str(port)], folder=PROJECT
        )
        listener.settimeout(_ECHO_LIMIT_S)
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(_ECHO_LIMIT_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            trips = 0
            begin = now = time.monotonic()
            while now < begin + seconds:
                connection.sendall(_PING)
                connection.recv(len(_PING), socket.MSG_WAITALL)
                trips += 1
                now = time.monotonic()
        children.stop(process, _ECHO_LIMIT_S)
    return trips / (now - begin)


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _file_system(folder: Path) -> str:
    path = folder.resolve()
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, point, name, *_ = line.split()
        if path.is_relative_to(point) and len(point) >= len(best):
            best, kind = point, name
    return kind
