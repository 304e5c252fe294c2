"""Errors of jobs, and damage in files."""

from __future__ import annotations

from typing import NamedTuple


class JobError(Exception):
    """A job cannot be done as requested. The text is one line and gives the reason."""


class Damage(NamedTuple):
    """Bytes of a file, from a position on, that could not be read as the file's format requires."""

    position: int
    size: int
    reason: str
