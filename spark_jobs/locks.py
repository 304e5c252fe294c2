"""Keeps a second run out of a folder."""

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
    """Keep other runs out of a folder: they would take this run's unfinished work for that of a killed run.

    :raises JobError: with the text of `refusal`, while another run writes to the folder; also if it cannot be locked.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise JobError(refusal) from error
        except OSError as error:
            raise JobError(
                f"cannot lock {folder}: {error.strerror}; use a folder on another file system"
            ) from error
        yield
