"""The fields of Tidegate's own requests about recurring messages; `headers` re-exports them."""

from __future__ import annotations

from typing import Literal

from gateway.wire.fields import Fields, Int32


class ListRecurring(Fields):
    """31010: lists recurring messages by topic and name."""

    topic: str = ""
    """Empty for all topics."""
    name: str = ""
    """The name of a single recurring message; it needs the topic."""
    full: bool = False
    """Whether to include bodies and properties."""
    limit: Int32 = 100
    """Most recurring messages in the answer."""
    cursor: str = ""
    """From the answer with the previous page."""


class ChangeRecurring(Fields):
    """31011: pauses, resumes or deletes a recurring message."""

    topic: str
    name: str
    change: Literal["pause", "resume", "delete"]


class NextRecurring(Fields):
    """31012: lists the next times of a recurring message, or of a rule as if it were set now."""

    topic: str = ""
    name: str = ""
    """The name of the recurring message, together with its topic; empty if the request has a rule."""
    cron: str | None = None
    every: str | None = None
    zone: str | None = None
    start: str | None = None
    end: str | None = None
    times: Int32 = 10
    """The number of times to list."""
