"""The files of results, which are written after minutes or hours of work; most are JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from spark_jobs.errors import JobError


def check(file: Path) -> None:
    """Check before the work that a file can be written after it. Its contents stay as they are.

    :raises JobError: if it cannot be written.
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
    """Write a result as JSON.

    :raises JobError: if the file cannot be written.
    """
    write_text(file, msgspec.json.format(msgspec.json.encode(found)).decode())


def write_text(file: Path, text: str) -> None:
    """Write a file, and make its folder if that is missing.

    :raises JobError: if it cannot be written. On a full disk the system's error does not name the file.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _refusal(file, error) from error


def _refusal(file: Path, error: OSError) -> JobError:
    return JobError(f"cannot write {file}: {error.strerror}")
