"""What the gateway needs of Twisted's reactor: its time, and calls later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class DelayedCall(Protocol):
    """A call that has not been made."""

    def cancel(self) -> None:
        """Have it not made."""

    def reset(self, seconds: float) -> None:
        """Have it made in so many seconds from now instead."""


class Reactor(Protocol):
    """Twisted's IReactorTime; its interfaces cannot be checked statically without a plugin."""

    def seconds(self) -> float:
        """The reactor's own time, which never goes back."""

    def callLater(self, delay: float, callable: Callable[[], object]) -> DelayedCall:
        """Call in so many seconds; 0 is at the end of this turn."""
