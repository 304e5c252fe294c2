"""Measures processor time and memory of a job: of this process, its Java process and their workers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from compat.bench.processes import Usage, usage
from spark_jobs.bench.figures import Measurement

_EVERY_S: Final = 0.5


@contextmanager
def measured(job: str, master: str, unit: str, beside: int | None = None) -> Iterator[Measurement]:
    """Measure the block. The caller must set the measurement's number.

    :param beside: a child process that does not count, such as a gateway.
    """
    found = Measurement(
        job=job, master=master, number=0, unit=unit, wall_s=0.0, cpu_s=0.0, peak_bytes=0
    )
    done = threading.Event()

    def look() -> None:
        while not done.wait(_EVERY_S):
            found.peak_bytes = max(found.peak_bytes, _used(beside)[1])

    looking = threading.Thread(target=look)
    cpu, found.peak_bytes = _used(beside)
    began = time.monotonic()
    looking.start()
    try:
        yield found
    finally:
        found.wall_s = time.monotonic() - began
        done.set()
        looking.join()
        found.cpu_s = _used(beside)[0] - cpu


def _used(beside: int | None) -> tuple[float, int]:
    """Return the CPU seconds and the bytes of memory used so far."""
    own = usage(os.getpid())
    other = usage(beside) if beside is not None else Usage(0.0, 0.0, 0, 0, 0)
    return own.cpu - other.cpu, own.own_memory - other.own_memory
