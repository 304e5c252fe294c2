"""`tidegate clock` on a real gateway whose time stands still."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.client import look_up
from gateway.wire.codes import RequestCode
from tests.live.process import GatewayProcess

pytestmark = pytest.mark.live


def tidegate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway", *arguments],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def test_the_clock_is_moved_from_the_command_line(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path / "data", "--clock", "manual") as gateway:
        at = ("--server", gateway.address)
        assert tidegate("clock", "set", "2030-01-31T09:30:00Z", *at).returncode == 0
        with gateway.client() as client:
            fields = {
                "a": "P",
                "b": "orders",
                "c": "TBW102",
                "d": "4",
                "e": "0",
                "f": "0",
                "g": "1",
                "h": "0",
                "i": "TIMER_DELAY_SEC\x011800\x02",
                "m": "false",
            }
            assert client.ask(RequestCode.SEND_MESSAGE_V2, fields, b"hello").code == 0
            assert len(look_up(client, topic="orders").messages) == 1
            done = tidegate("clock", "advance", "30m", "--json", *at)
            assert done.returncode == 0, done.stderr
            state = json.loads(done.stdout)
            assert state["nowMs"] == 1_896_084_000_000
            assert state["fired"] == 1
            assert look_up(client, topic="orders").messages == []
        told = tidegate("clock", *at).stdout
        assert told.endswith("(stands still)\n")
        wrong = tidegate("clock", "advance", "soon", *at)
        assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
        gateway.terminate()
        refused = tidegate("serve", "--data", str(gateway.data), "--listen", "127.0.0.1:0")
        assert refused.returncode == 2
        assert "set clock to manual" in refused.stderr
