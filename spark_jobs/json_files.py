"""The JSON files of what was found, which are written at the end of minutes or hours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from spark_jobs.errors import JobError


def check(file: Path) -> None:
    """Notice before the work whether a file can be written after it; what it has stays.

    :raises JobError: when it cannot.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        is_new = not file.exists()
        file.open("ab").close()
        if is_new:
            file.unlink()
    except OSError as error:
        raise _refusal(file, error) from error


def write(file: Path, found: Any) -> None:
    """Write what was found.

    :raises JobError: when that cannot be.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(msgspec.json.format(msgspec.json.encode(found)))
    except OSError as error:
        raise _refusal(file, error) from error


def _refusal(file: Path, error: OSError) -> JobError:
    return JobError(f"cannot write {file}: {error.strerror}")
