"""The files of results, which are written after minutes or hours of work; most are JSON."""

from __future__ import annotations

from pathlib import Path
from stat import S_IMODE
from typing import Any

import msgspec

from spark_jobs.errors import JobError


def check(file: Path) -> None:
    """Check before the work that a file can be written after it. Its contents stay as they are.

    :raises JobError: if it cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if _is_stream(file):
            file.open("ab").close()
            return
        unfinished = _unfinished(file)
        unfinished.unlink(missing_ok=True)
        unfinished.open("ab").close()
        unfinished.unlink()
    except OSError as error:
        raise _refusal(file, error) from error


def write(file: Path, found: Any) -> None:
    """Write a result as JSON.

    :raises JobError: if the file cannot be written.
    """
    write_text(file, msgspec.json.format(msgspec.json.encode(found)).decode())


def write_text(file: Path, text: str) -> None:
    """Write a file, and make its folder if that is missing. If it cannot be written whole, one of its name stays as it
    was. If it can, it gets the mode of that one.

    :raises JobError: if it cannot be written. On a full disk the system's error does not name the file.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if _is_stream(file):
            file.write_text(text, encoding="utf-8")
            return
        unfinished = _unfinished(file)
        unfinished.unlink(missing_ok=True)  # of a killed run, with another mode perhaps
        try:
            if file.exists():
                unfinished.touch(mode=0o600)  # nobody reads it who may not read the one before
                unfinished.write_text(text, encoding="utf-8")
                unfinished.chmod(S_IMODE(file.stat().st_mode))
            else:
                unfinished.write_text(text, encoding="utf-8")
            unfinished.replace(file.resolve())
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _refusal(file, error) from error


def _is_stream(file: Path) -> bool:
    """Whether it is a device or a pipe, such as standard output, which is written directly."""
    return file.exists() and not file.is_file()


def _unfinished(file: Path) -> Path:
    """Return where a file is written before it gets its name. A link stays: it is followed."""
    target = file.resolve()
    return target.with_name(f".{target.name}.unfinished")


def _refusal(file: Path, error: OSError) -> JobError:
    return JobError(f"cannot write {file}: {error.strerror}")
