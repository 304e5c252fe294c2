"""The recording proxy between a client and a server that are plain sockets."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from compat.ports import free_port
from compat.recorder import Recorder
from recording.format import CaptureError, Kind, Record, read_capture
from recording.proxy import Route

LIMIT_S = 120


def frame(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


def read_frame(connection: socket.socket) -> bytes:
    received = b""
    while len(received) < 4 or len(received) < 4 + struct.unpack_from(">I", received)[0]:
        data = connection.recv(65536)
        if not data:
            raise EOFError
        received += data
    return received


class Echo:
    """A server that answers each frame with one frame that has the content twice."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, suppress(EOFError, ConnectionError):
                while True:
                    connection.sendall(frame(read_frame(connection)[4:] * 2))

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(LIMIT_S)


@pytest.fixture
def echo() -> Iterator[Echo]:
    """A running echo server."""
    server = Echo()
    yield server
    server.close()


def test_frames_pass_unchanged_and_are_recorded(tmp_path: Path, echo: Echo) -> None:
    file = tmp_path / "capture"
    here = ("127.0.0.1", free_port())
    long = b"long" * 100_000
    with (
        Recorder(file, [Route("echo", here, echo.address)]),
        socket.create_connection(here, LIMIT_S) as client,
    ):
        for part in (frame(b"one")[:2], frame(b"one")[2:]):
            client.sendall(part)
        assert read_frame(client) == frame(b"oneone")
        client.sendall(frame(long))
        assert read_frame(client) == frame(long * 2)
    records = list(read_capture(file))
    assert [(record.kind, record.data) for record in records] == [
        (Kind.OPENED, b"echo"),
        (Kind.FROM_CLIENT, frame(b"one")),
        (Kind.FROM_SERVER, frame(b"oneone")),
        (Kind.FROM_CLIENT, frame(long)),
        (Kind.FROM_SERVER, frame(long * 2)),
        (Kind.CLOSED, b""),
    ]
    assert [record.time_ns for record in records] == sorted(record.time_ns for record in records)


def test_connections_are_told_apart(tmp_path: Path, echo: Echo) -> None:
    file = tmp_path / "capture"
    here = ("127.0.0.1", free_port())
    with Recorder(file, [Route("echo", here, echo.address)]):
        for content in (b"a", b"b"):
            with socket.create_connection(here, LIMIT_S) as client:
                client.sendall(frame(content))
                read_frame(client)
    sent = {
        record.connection: record.data
        for record in read_capture(file)
        if record.kind == Kind.FROM_CLIENT
    }
    assert sent == {1: frame(b"a"), 2: frame(b"b")}


def test_a_server_that_is_not_there_closes_the_connection(tmp_path: Path) -> None:
    file = tmp_path / "capture"
    here = ("127.0.0.1", free_port())
    route = Route("nobody", here, ("127.0.0.1", free_port()))
    with Recorder(file, [route]), socket.create_connection(here, LIMIT_S) as client:
        assert client.recv(1) == b""
    assert list(read_capture(file)) == []


def test_a_port_in_use_is_an_error(tmp_path: Path, echo: Echo) -> None:
    with (
        pytest.raises(OSError, match="in use"),
        Recorder(tmp_path / "capture", [Route("echo", echo.address, echo.address)]),
    ):
        pass


def test_a_file_that_cannot_be_made_is_an_error(tmp_path: Path, echo: Echo) -> None:
    here = ("127.0.0.1", free_port())
    with (
        pytest.raises(FileNotFoundError),
        Recorder(tmp_path / "none" / "capture", [Route("echo", here, echo.address)]),
    ):
        pass


def test_a_file_that_cannot_be_completed_is_an_error(tmp_path: Path, echo: Echo) -> None:
    file = tmp_path / "capture"
    with (
        pytest.raises(IsADirectoryError),
        Recorder(file, [Route("echo", ("127.0.0.1", free_port()), echo.address)]),
    ):
        file.mkdir()


@pytest.mark.parametrize("missing", [1, 5])
def test_a_capture_without_its_end_is_told(tmp_path: Path, echo: Echo, missing: int) -> None:
    file = tmp_path / "capture"
    here = ("127.0.0.1", free_port())
    with (
        Recorder(file, [Route("echo", here, echo.address)]),
        socket.create_connection(here, LIMIT_S) as client,
    ):
        client.sendall(frame(b"x"))
        read_frame(client)
    file.write_bytes(file.read_bytes()[:-missing])
    with pytest.raises(CaptureError, match="ends within a record"):
        list(read_capture(file))


def test_another_file_is_no_capture(tmp_path: Path) -> None:
    file = tmp_path / "other"
    file.write_bytes(b"something else entirely")
    with pytest.raises(CaptureError, match="not a capture"):
        list(read_capture(file))


@pytest.mark.parametrize("name", ["java-5.5.0", "java-4.9.8", "cpp", "mqadmin"])
def test_the_recorded_captures_are_whole(name: str) -> None:
    file = Path(__file__).parent.parent / "wire" / "recorded" / f"{name}.capture"
    open_now: set[int] = set()
    frames: list[Record] = []
    for record in read_capture(file):
        if record.kind == Kind.OPENED:
            open_now.add(record.connection)
        elif record.kind == Kind.CLOSED:
            open_now.remove(record.connection)
        else:
            assert record.connection in open_now
            assert len(record.data) == 4 + struct.unpack_from(">I", record.data)[0]
            frames.append(record)
    assert open_now == set()
    assert {record.kind for record in frames} == {Kind.FROM_CLIENT, Kind.FROM_SERVER}
