"""What tests of the commands share."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture
def own_signals() -> Iterator[None]:
    """Take back what a command does on SIGTERM, which is for the whole process."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
