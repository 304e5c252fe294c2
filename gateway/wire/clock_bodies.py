"""The body of the answer about a gateway's clock."""

from __future__ import annotations

from typing import Literal

import msgspec


class ClockState(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The answer to 31020. Times are epoch ms."""

    clock: Literal["real", "manual"]
    now_ms: int
    next_due_ms: int | None = None
    """When the next message is due; null when none is pending."""
    fired: int = 0
    """Messages that fired because the request moved the clock."""
