"""The HTTP port: its pages over a real socket, and when it reports that no traffic should come."""

from __future__ import annotations

import json
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.gateway.faults import commits_fail
from tests.gateway.memory import MemoryGateway
from tests.live.process import GatewayProcess
from tests.ops.conftest import Command


def test_nothing_is_listened_on_unless_asked_for(gateway: MemoryGateway) -> None:
    assert len(gateway.reactor.tcpServers) == 1


def test_ready_until_a_batch_cannot_be_stored(gateway: MemoryGateway) -> None:
    assert gateway.service.not_ready() == []
    with commits_fail(gateway):
        gateway.connect().send_message()
        assert gateway.service.not_ready() == ["the last batch could not be stored"]
    gateway.connect().send_message()
    assert gateway.service.not_ready() == []


def test_not_ready_while_sends_are_refused(
    gateway: MemoryGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway.store.environment, "disk_free", lambda: 1)
    gateway.advance(1_000)
    (reason,) = gateway.service.not_ready()
    assert "disk_reserve" in reason


def test_not_ready_while_stopping(gateway: MemoryGateway) -> None:
    gateway.stop()
    assert gateway.service.not_ready() == ["stopping"]


class Served:
    """A gateway process with an HTTP port."""

    def __init__(self, process: GatewayProcess) -> None:
        self.process = process
        assert process._process is not None
        assert process._process.stdout is not None
        line = process._process.stdout.readline().decode()
        found = re.fullmatch(r"metrics on (http://127\.0\.0\.1:\d+)/metrics\n", line)
        assert found is not None, line
        self.address = found[1]

    def get(self, path: str, method: str = "GET") -> tuple[int, str, bytes]:
        """Return status, content type and body."""
        request = urllib.request.Request(self.address + path, method=method)
        try:
            with urllib.request.urlopen(request, timeout=180) as answer:
                return answer.status, answer.headers["Content-Type"], answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers["Content-Type"], error.read()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("http")
    with GatewayProcess(folder / "data", "--http", "127.0.0.1:0") as process:
        yield Served(process)


@pytest.mark.live
def test_metrics_are_prometheus_text(served: Served) -> None:
    status, kind, body = served.get("/metrics")
    assert (status, kind.partition(";")[0]) == (200, "text/plain")
    assert b'\nrocketmq_timer_enqueue_lag{cluster="DefaultCluster"' in body


@pytest.mark.live
@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_checks_are_answered(served: Served, path: str) -> None:
    status, kind, body = served.get(path)
    assert (status, kind) == (200, "application/json")
    assert json.loads(body) == {"ready": True, "reasons": []}
    assert served.get(path, "HEAD") == (200, "application/json", b"")


@pytest.mark.live
@pytest.mark.parametrize("path", ["/", "/health", "/metrics"])
def test_a_head_is_nothing_to_log(served: Served, path: str) -> None:
    status, kind, _ = served.get(path)
    assert served.get(path, "HEAD") == (status, kind, b"")
    assert "HEAD" not in served.process.log.read_text()


@pytest.mark.live
@pytest.mark.parametrize(
    "path", ["/metrics/more", "/../etc/passwd", "/nothing", "/console/../http.py", "/api/x"]
)
def test_there_is_nothing_else(served: Served, path: str) -> None:
    assert served.get(path)[0] == 404


@pytest.mark.live
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_nothing_can_be_changed(served: Served, method: str) -> None:
    assert served.get("/ready", method)[0] in (405, 501)


@pytest.mark.live
@pytest.mark.parametrize("begun", [b"", b"GET /health HTTP/1.1\r\n"], ids=["silent", "begun"])
def test_those_that_send_no_request_keep_no_check_out(tmp_path: Path, begun: bytes) -> None:
    flags = ("--http", "127.0.0.1:0", "--max-http-connections", "3")
    with GatewayProcess(tmp_path / "data", *flags) as process, ExitStack() as opened:
        served = Served(process)
        host, _, port = served.address.removeprefix("http://").partition(":")
        held = [opened.enter_context(socket.create_connection((host, int(port)))) for _ in range(9)]
        for one in held:
            with suppress(ConnectionError):
                one.sendall(begun)
        assert served.get("/health")[0] == 200
        assert json.loads(served.get("/ready")[2])["ready"]


@pytest.mark.live
def test_a_taken_port_is_a_reason_not_to_start(tmp_path: Path, tidegate: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = tidegate(
            *("serve", "--listen", "127.0.0.1:0", "--data", tmp_path / "data"),
            *("--no-vip-channel", "--http", f"127.0.0.1:{port}"),
        )
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "set http to another address" in done.stderr
