"""A real gateway process tells systemd how it is."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.live.process import GatewayProcess

pytestmark = pytest.mark.live


@pytest.mark.parametrize("workers", [1, 2])
def test_ready_alive_stopping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    flags = ["--workers", str(workers)] if workers > 1 else []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "200000")
        with GatewayProcess(tmp_path / "data", *flags) as gateway:
            status = "2 workers" if workers > 1 else f"clients are told {gateway.address}"
            assert listener.recv(4096).decode() == f"READY=1\nSTATUS={status}"
            assert [listener.recv(4096) for _ in range(3)] == [b"WATCHDOG=1"] * 3
            assert gateway.terminate() == 0
            told = set()
            listener.settimeout(0.5)
            try:
                while True:
                    told.add(listener.recv(4096).decode())
            except TimeoutError:
                pass
            assert "STOPPING=1\nSTATUS=finishing what is under way" in told
