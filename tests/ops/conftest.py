"""Gateways in memory for operators' tasks, and the command line in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gateway.conftest import failures, gateway, make_gateway

__all__ = ["failures", "gateway", "make_gateway"]

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def tidegate(tmp_path: Path) -> Command:
    """Runs `tidegate` with arguments in another process, even while this process has a data folder open."""

    def run(*arguments: object, text: str | None = None) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gateway", *map(str, arguments)]
        return subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=180, check=False
        )

    return run
