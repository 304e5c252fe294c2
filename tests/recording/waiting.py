"""Waiting for the thread that writes captures."""

from __future__ import annotations

from collections.abc import Callable

from compat.clients.driver import until


def wait_until(is_true: Callable[[], bool]) -> None:
    """Wait for the writing thread, which runs by the real clock."""
    until(is_true, "what the writing thread is to do", pause=0.005)
