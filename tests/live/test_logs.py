"""The log of a real gateway process, and `tidegate log-level`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.live.process import GatewayProcess

pytestmark = pytest.mark.live


def log_level(gateway: GatewayProcess, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "gateway", "log-level", *arguments, "--server", gateway.address],
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    return done.stdout.strip()


def test_the_level_is_changed_while_it_serves(tmp_path: Path) -> None:
    with GatewayProcess(
        tmp_path / "data", "--log-format", "json", "--log-level", "warn"
    ) as gateway:
        assert log_level(gateway) == "warn"
        assert log_level(gateway, "debug") == "debug"
        with gateway.client() as client:
            assert client.ask(28).code == 0
        assert log_level(gateway, "error", "--json") == '{"log_level": "error"}'
        assert gateway.terminate() == 0
        lines = [json.loads(line) for line in gateway.log.read_text().splitlines()]
    (asked,) = [line for line in lines if line.get("code") == 28]
    assert asked["level"] == "debug"
    assert asked["request"].startswith("127.0.0.1:")
    codes = [line["code"] for line in lines if "code" in line]
    changes = [line["changes"] for line in lines if "changes" in line]
    assert changes == ["log_level=debug", "log_level=error"]
    assert codes.count(25) == 1  # the one that ended it: the one that began it is not logged


@pytest.mark.parametrize("flags", [[], ["--workers", "2"]])
def test_a_log_file_has_the_starts(tmp_path: Path, flags: list[str]) -> None:
    """After a kill, the next start is the only trace of it there."""
    file = tmp_path / "file.log"
    log = ("--log-file", str(file), "--http", "127.0.0.1:0")
    with GatewayProcess(tmp_path / "data", *log, *flags) as gateway:
        assert gateway.terminate() == 0
        gateway.start()
        assert gateway.terminate() == 0
    lines = file.read_text().splitlines()
    [first, second] = [line for line in lines if f"] listening on {gateway.address}" in line]
    assert "gateway.process#info" in first
    assert first.split(" ", 1)[1] == second.split(" ", 1)[1]
    assert any("console on http://127.0.0.1:" in line for line in lines)


def test_a_log_that_nobody_reads_holds_up_nothing(tmp_path: Path) -> None:
    """The reader of a pipe may have been stopped, or a terminal may hold its output."""
    gateway = GatewayProcess(tmp_path / "data", "--log-level", "debug")
    os.mkfifo(gateway.log)
    unread = os.open(gateway.log, os.O_RDWR | os.O_NONBLOCK)
    with suppress(BlockingIOError):
        while True:
            os.write(unread, bytes(4096))
    with gateway:
        with gateway.client() as client:
            assert client.ask(28).code == 0
        assert gateway.terminate() == 0
    os.close(unread)
