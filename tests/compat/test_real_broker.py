"""The ports of a real broker: free ones, and others if another process was quicker."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from compat.ports import free_port
from compat.real_broker import RealBroker, RealBrokerError
from gateway.client import RemotingClient
from gateway.wire.codes import ResponseCode
from gateway.wire.commands import Command


def test_a_free_port_has_free_neighbours() -> None:
    port = free_port(-2, 1)
    for each in (port - 2, port, port + 1):
        with socket.create_server(("127.0.0.1", each)):
            pass


def test_a_port_that_somebody_listens_on_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = free_port(-1, 1)
    offered = iter((taken, taken - 1, taken + 1, taken))
    monkeypatch.setattr("compat.ports._chance.randint", lambda low, high: next(offered))
    with socket.create_server(("127.0.0.2", taken)):
        assert free_port() == taken - 1
        with pytest.raises(StopIteration):
            free_port(-1)


def test_other_ports_are_tried_while_some_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def start(command: object, *, stdout: Any, **_: object) -> subprocess.Popen[bytes]:
        tried.append((tmp_path / "namesrv.conf").read_text())
        said = "java.net.BindException: Address already in use" if len(tried) < 3 else "no memory"
        return subprocess.Popen([sys.executable, "-c", f"print({said!r})"], stdout=stdout)

    monkeypatch.setattr("compat.real_broker.children.start", start)
    # As if what has taken the port answers like a name server that has a broker.
    monkeypatch.setattr(RemotingClient, "ask", lambda *_: Command(code=ResponseCode.SUCCESS))
    with pytest.raises(RealBrokerError, match="no memory"):
        RealBroker(folder=tmp_path).start()
    assert len(tried) == len(set(tried)) == 3
