"""`tidegate capture` as a process between real clients and real servers."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from compat import children
from compat.clients.driver import Driver, until
from compat.clients.java import JavaClient, Version
from compat.real_broker import RealBroker
from gateway.client import RemotingClient
from gateway.wire.codes import RequestCode
from gateway.wire.commands import decode_command
from gateway.wire.frames import FrameBuffer
from recording.format import SUFFIX, Kind, read_capture
from recording.proxy import REFUSAL_PAUSE_S
from tests.live.process import GatewayProcess

pytestmark = pytest.mark.live

LISTENING = re.compile(r"listening on 127\.0\.0\.1:(\d+)")
LIMIT_S = 120


class Capture:
    """A running `tidegate capture`."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.port = port

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """End the process, and return its status and the output since it began to listen."""
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, said.decode()


@contextmanager
def capturing(server: str, folder: Path, *flags: str) -> Iterator[Capture]:
    command = [
        *(sys.executable, "-m", "gateway", "capture", "--listen", "127.0.0.1:0"),
        *("--to", server, "--out", str(folder), *flags),
    ]
    process = children.start(
        command, folder=folder.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline().decode()
        listening = LISTENING.search(line)
        assert listening is not None, line
        yield Capture(process, int(listening[1]))
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def codes(folder: Path) -> set[int]:
    """Return the codes of all recorded requests of clients."""
    found = set()
    for file in sorted(folder.glob(f"*{SUFFIX}")):
        for record in read_capture(file):
            if record.kind == Kind.FROM_CLIENT:
                (parts,) = FrameBuffer().feed(record.data)
                found.add(decode_command(parts).code)
    return found


def test_a_gateway_is_recorded(tmp_path: Path) -> None:
    folder = tmp_path / "capture"
    with (
        GatewayProcess(tmp_path / "data") as gateway,
        capturing(gateway.address, folder, "--file-size", "1KiB") as capture,
    ):
        with RemotingClient("127.0.0.1", capture.port) as client:
            answer = client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"})
            assert f"127.0.0.1:{capture.port}".encode() in answer.body
            assert gateway.address.encode() not in answer.body
        status, said = capture.end(signal.SIGINT)
    assert status == 0
    assert re.search(r"ended: 2 frames, 0\.0 MiB in \d files", said)
    assert codes(folder) == {RequestCode.GET_ROUTEINFO_BY_TOPIC}
    assert not list(folder.glob("*.open"))


def test_clients_are_told_the_host_that_they_are_to_come_to(tmp_path: Path) -> None:
    with (
        GatewayProcess(tmp_path / "data") as gateway,
        capturing(gateway.address, tmp_path / "capture", "--advertise", "192.0.2.7") as capture,
        RemotingClient("127.0.0.1", capture.port) as client,
    ):
        answer = client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"})
        assert f"192.0.2.7:{capture.port}".encode() in answer.body
        assert gateway.address.encode() not in answer.body


def test_what_a_killed_recorder_wrote_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "capture"
    with GatewayProcess(tmp_path / "data") as gateway:
        with capturing(gateway.address, folder) as capture:
            with RemotingClient("127.0.0.1", capture.port) as client:
                client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"})
            (file,) = folder.glob("*.open")
            until(lambda: file.stat().st_size > 500, "the answer to be written")
            capture.process.kill()
            capture.process.communicate()
        with capturing(gateway.address, folder) as capture:
            assert capture.end()[0] == 0
    assert codes(folder) == {RequestCode.GET_ROUTEINFO_BY_TOPIC}
    assert len(list(folder.glob(f"*{SUFFIX}"))) == 2


def test_what_is_unreadable_is_told_at_once(tmp_path: Path) -> None:
    with (
        GatewayProcess(tmp_path / "data") as gateway,
        capturing(gateway.address, tmp_path / "capture") as capture,
        socket.create_connection(("127.0.0.1", capture.port), LIMIT_S) as client,
    ):
        client.sendall(b"\x16\x03\x01 hello")
        assert capture.process.stderr is not None
        line = capture.process.stderr.readline().decode()
        _, said = capture.end()
    assert "a connection is unreadable, perhaps as it uses TLS" in line
    assert "unreadable (TLS?)" in said.splitlines()[-1]
    assert "perhaps as it uses TLS" not in said, "only once"


def test_a_server_that_is_down_is_counted(tmp_path: Path) -> None:
    """The client hears of it only after a while: some connect again at once."""
    with capturing("127.0.0.1:1", tmp_path / "capture") as capture:
        began_s = time.monotonic()
        with (
            pytest.raises(Exception, match="closed"),
            RemotingClient("127.0.0.1", capture.port) as client,
        ):
            client.ask(RequestCode.HEART_BEAT)
        took_s = time.monotonic() - began_s
        status, said = capture.end()
    assert status == 0
    assert took_s >= REFUSAL_PAUSE_S
    assert "1 connections not taken by their server" in said


def refusal(*flags: str) -> str:
    """Return the one line that `tidegate capture` prints when it cannot start."""
    command = [sys.executable, "-m", "gateway", "capture", "--to", "127.0.0.1:1", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    return done.stderr


def test_what_keeps_it_from_beginning_is_a_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = refusal("--listen", address, "--out", str(tmp_path / "capture"))
    assert line.startswith(f"tidegate: cannot listen on {address}: ")
    assert "give --listen another address" in line
    assert not (tmp_path / "capture").exists()
    line = refusal("--listen", "127.0.0.1:0", "--out", "/proc/self/capture")  # not even by root
    assert line.startswith("tidegate: cannot record into /proc/self/capture: ")


@pytest.mark.oracle
def test_a_java_client_stays_at_the_proxy(
    tmp_path: Path, drivers: dict[Version, Driver], real_broker: RealBroker
) -> None:
    folder = tmp_path / "capture"
    drivers["5.5.0"].start()
    with capturing(real_broker.namesrv_address, folder) as capture:
        with JavaClient(f"127.0.0.1:{capture.port}", "5.5.0", driver=drivers["5.5.0"]) as client:
            client.create_topic("recorded")
            consumer = client.consume("recorded", "G-recorded")
            sent = client.send("recorded", b"hello")
            (received,) = consumer.wait_for(1)
        assert received.msg_id == sent.msg_id
        status, _ = capture.end()
    assert status == 0
    assert {
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.HEART_BEAT,
        RequestCode.PULL_MESSAGE,
    } <= codes(folder)
