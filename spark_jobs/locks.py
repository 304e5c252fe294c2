"""Keeps two runs out of one folder."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from spark_jobs.errors import JobError

_LOCK: Final = ".lock"
"""In the folder that a run writes into; the run holds a lock on it."""


@contextmanager
def alone_in(folder: Path, refusal: str) -> Iterator[None]:
    """Keep other runs from a folder: they would take this one's unfinished work for what a killed one left.

    :raises JobError: with the text of the refusal, while another run is in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise JobError(refusal) from error
        yield
