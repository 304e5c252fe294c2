"""What a job cannot do, and what a file should not have."""

from __future__ import annotations

from typing import NamedTuple


class JobError(Exception):
    """A job cannot be done as it was asked for. The text is one line and says why."""


class Damage(NamedTuple):
    """Bytes of a file, from a position on, that are not what the file should have there."""

    position: int
    size: int
    reason: str
