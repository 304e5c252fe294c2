"""Reads from /proc what a process and its children have used."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final, NamedTuple

_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_BLOCK_BYTES: Final = 512
"""The unit of st_blocks and of a disk's sectors, whatever the disk's own block size is."""


class Usage(NamedTuple):
    """The usage of a process, all its threads and its children up to one moment."""

    at: float
    """time.monotonic() in seconds."""
    cpu: float
    """CPU time in seconds, user and system, with ended children, in steps of 10 ms."""
    written: int
    """Bytes that the process caused to be sent to disk (/proc/PID/io, write_bytes)."""
    own_memory: int
    """Resident bytes that belong to no file: heap and stacks, not the page cache."""
    resident: int
    """All resident bytes, mapped files included."""


def usage(pid: int) -> Usage:
    """Read what a process and its children have used. Raises ProcessLookupError if the process has ended."""
    cpu = 0.0
    written = own = resident = 0
    for member in _family(pid):
        process = Path("/proc") / str(member)
        try:
            cpu += _cpu_seconds(process)
            written += _numbers(process / "io")["write_bytes"]
            memory = _numbers(process / "status")
            own += (memory["RssAnon"] + memory["RssShmem"]) * 1024
            resident += memory["VmRSS"] * 1024
        except (OSError, KeyError):
            # A process that has ended, but that its parent has not reaped yet, has no memory.
            if member == pid:
                raise ProcessLookupError(f"the server, process {pid}, has ended") from None
    return Usage(time.monotonic(), cpu, written, own, resident)


def device_bytes(folder: Path) -> int | None:
    """Return the bytes that all processes have written to the disk of a folder; None if it is on no disk.

    A process's own count (write_bytes of /proc/PID/io) is less exact: with large folios in the page cache, a page of
    4 KiB counts as its whole folio, although less goes to disk.
    """
    number = folder.stat().st_dev
    disk = Path("/sys/dev/block", f"{os.major(number)}:{os.minor(number)}", "stat")
    try:
        # The 7th number is the sectors written (Documentation/block/stat.rst).
        return int(disk.read_text().split()[6]) * _BLOCK_BYTES
    except OSError:
        return None


def held_bytes(folder: Path) -> int:
    """Return the bytes that the files below a folder occupy on disk, without the holes of sparse files."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(parent) / name).lstat().st_blocks * _BLOCK_BYTES
            except FileNotFoundError:
                continue
    return total


def _family(pid: int) -> list[int]:
    members = [pid]
    for member in members:
        for children in Path("/proc", str(member), "task").glob("*/children"):
            try:
                members += [int(child) for child in children.read_text().split()]
            except OSError:
                continue
    return members


def _cpu_seconds(process: Path) -> float:
    # The name in brackets may hold spaces; utime is the 12th field after it (proc_pid_stat(5): 14).
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15]) / _TICKS_PER_SECOND


def _numbers(file: Path) -> dict[str, int]:
    found = {}
    for line in file.read_text().splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdigit():
            found[name] = int(words[0])
    return found
