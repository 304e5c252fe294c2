"""A real gateway process reports its state to systemd."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.live.process import LIMIT_S, GatewayProcess

pytestmark = pytest.mark.live


@pytest.mark.parametrize("workers", [1, 2])
def test_ready_alive_stopping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    flags = ["--workers", str(workers)] if workers > 1 else []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(LIMIT_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "200000")
        with GatewayProcess(tmp_path / "data", *flags) as gateway:
            status = "2 workers" if workers > 1 else f"clients are told {gateway.address}"
            assert listener.recv(4096).decode() == f"READY=1\nSTATUS={status}"
            assert [listener.recv(4096) for _ in range(3)] == [b"WATCHDOG=1"] * 3
            with ThreadPoolExecutor(1) as waiting:
                # A socket that nobody reads is soon full.
                ended = waiting.submit(gateway.terminate)
                while (told := listener.recv(4096)) == b"WATCHDOG=1":
                    pass
                assert told.decode() == "STOPPING=1\nSTATUS=finishing what is under way"
                assert ended.result() == 0
