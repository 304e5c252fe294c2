"""Child processes end with the process that started them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from compat import children
from gateway.wire.addresses import parse_address

LIMIT_S = 120

PARENT = """
import sys, time
from pathlib import Path
from compat import children
child = children.start([sys.executable, "-c", "import time; time.sleep(600)"], folder=Path.cwd())
print(child.pid, flush=True)
time.sleep(600)
"""


def is_running(pid: int) -> bool:
    """Whether the process exists and has not ended, even if its parent has not collected its status yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_child_does_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    with parent.stdout as lines:
        child = int(lines.readline())
    assert is_running(child)
    parent.kill()
    parent.wait(LIMIT_S)
    deadline = time.monotonic() + LIMIT_S
    while is_running(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_child_imports_the_project_of_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another checkout is installed: what is measured would be neither of them."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    child = children.start(
        [sys.executable, "-c", "import compat; print(compat.__file__)"],
        folder=tmp_path,
        stdout=subprocess.PIPE,
    )
    said, _ = child.communicate(timeout=LIMIT_S)
    assert Path(said.decode().strip()).parents[1] == Path(__file__).parents[2]


def test_stop_asks_first(tmp_path: Path) -> None:
    child = children.start([sys.executable, "-c", "import time; time.sleep(600)"], folder=tmp_path)
    assert children.stop(child, LIMIT_S) == -signal.SIGTERM


def test_stop_does_not_wait_for_ever(tmp_path: Path) -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True)"
    child = children.start(
        [sys.executable, "-c", f"{deaf}; time.sleep(600)"], folder=tmp_path, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    with child.stdout as lines:
        lines.readline()
        assert children.stop(child, 0.1) == -signal.SIGKILL


def test_a_server_is_known_by_what_it_prints_and_ends_with_the_block(tmp_path: Path) -> None:
    with children.server("compat.bench.answers", 4, output=tmp_path / "output") as server:
        host, port = parse_address(server.address)
        socket.create_connection((host, port), LIMIT_S).close()
        assert is_running(server.pid)
    assert not is_running(server.pid)


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(children.StartError, match=r"did not start: ValueError: .*'many'"),
        children.server("compat.bench.answers", "many", output=tmp_path / "output"),
    ):
        pass
