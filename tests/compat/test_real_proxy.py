"""The ports of a real Proxy: others if another process was quicker."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from compat.real_proxy import RealProxy

TAKEN = "print('java.net.BindException: Address already in use')"
STARTED = "import time; print('rocketmq-proxy startup successfully', flush=True); time.sleep(600)"


def test_other_ports_are_tried_while_some_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def start(
        command: object, *, folder: Path, stdout: Any, **_: object
    ) -> subprocess.Popen[bytes]:
        settings = json.loads((folder / "rmq-proxy.json").read_text())
        tried.append((settings["grpcServerPort"], settings["remotingListenPort"]))
        program = TAKEN if len(tried) < 3 else STARTED
        return subprocess.Popen([sys.executable, "-c", program], stdout=stdout)

    monkeypatch.setattr("compat.real_proxy.children.start", start)
    with RealProxy("127.0.0.1:1") as proxy:
        assert proxy.address == f"127.0.0.1:{tried[-1][0]}"
    assert len(tried) == len(set(tried)) == 3
