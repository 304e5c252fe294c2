"""The fields of Tidegate's own requests about recurring messages; `headers` offers them together with all others."""

from __future__ import annotations

from typing import Literal

from gateway.wire.fields import Fields, Int32


class ListRecurring(Fields):
    """31010: what recurs, by topic and name."""

    topic: str = ""
    """Only this topic's; empty: all."""
    name: str = ""
    """Only the one of this name; it needs its topic."""
    full: bool = False
    """With bodies and properties."""
    limit: Int32 = 100
    """Most of them in the answer."""
    cursor: str = ""
    """From the page before."""


class ChangeRecurring(Fields):
    """31011: pauses, resumes or deletes one."""

    topic: str
    name: str
    change: Literal["pause", "resume", "delete"]


class NextRecurring(Fields):
    """31012: when one fires next, or when a rule would that is set now."""

    topic: str = ""
    name: str = ""
    """Of the one that is asked about, together with its topic; else there is a rule."""
    cron: str | None = None
    every: str | None = None
    zone: str | None = None
    start: str | None = None
    end: str | None = None
    times: Int32 = 10
    """How many times to tell."""
