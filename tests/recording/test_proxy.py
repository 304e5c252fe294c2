"""The proxy between plain sockets: brokers found through it, and data that is no frame."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from compat.ports import free_port
from compat.recorder import Recorder
from gateway.client import RemotingClient
from gateway.wire.addresses import VIP_CHANNEL_DISTANCE
from gateway.wire.codes import RequestCode
from gateway.wire.commands import decode_command, encode_response
from gateway.wire.frames import FrameBuffer
from recording.format import Kind, read_capture
from recording.proxy import Route, Splitter

LIMIT_S = 120


class Server:
    """A server that passes all it receives to a function, and sends back the function's result."""

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self._threads = [threading.Thread(target=self._serve)]
        self._threads[0].start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._talk, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _talk(self, connection: socket.socket) -> None:
        # The proxy may close a connection with unread data.
        with connection, suppress(ConnectionResetError):
            while data := connection.recv(1 << 20):
                connection.sendall(self._answer(data))

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(LIMIT_S)


def answering(body: bytes) -> Callable[[bytes], bytes]:
    def answer(data: bytes) -> bytes:
        (frame,) = FrameBuffer().feed(data)
        return encode_response(decode_command(frame).opaque, 0, body=body)

    return answer


@pytest.fixture
def broker() -> Iterator[Server]:
    server = Server(answering(b"the broker"))
    yield server
    server.close()


@pytest.fixture
def name_server(broker: Server) -> Iterator[Server]:
    addresses = {"0": f"127.0.0.1:{broker.address[1]}"}
    route = {"brokerDatas": [{"brokerAddrs": addresses, "brokerName": "a"}], "queueDatas": []}
    server = Server(answering(json.dumps(route).encode()))
    yield server
    server.close()


def test_brokers_are_found_through_the_proxy(
    tmp_path: Path, name_server: Server, broker: Server
) -> None:
    file = tmp_path / "capture"
    here = ("127.0.0.1", free_port())
    with Recorder(file, [Route("names", here, name_server.address, is_followed=True)]):
        with RemotingClient(*here) as client:
            asked = {"topic": "orders"}
            told = [client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, asked).body for _ in range(2)]
            other = client.ask(RequestCode.GET_KV_CONFIG).body
        assert told[0] == told[1], "a broker has one place here"
        assert json.loads(other)["brokerDatas"][0]["brokerAddrs"]["0"].endswith(
            f":{broker.address[1]}"
        ), "only answers that clients take addresses from are changed"
        address = json.loads(told[0])["brokerDatas"][0]["brokerAddrs"]["0"]
        host, _, port = address.rpartition(":")
        assert int(port) != broker.address[1]
        with RemotingClient(host, int(port)) as client:
            assert client.ask(RequestCode.HEART_BEAT).body == b"the broker"
    records = list(read_capture(file))
    opened = [record.data.decode() for record in records if record.kind == Kind.OPENED]
    assert opened == ["names", f"broker 127.0.0.1:{broker.address[1]}"]
    said = [record.data for record in records if record.kind == Kind.FROM_SERVER]
    assert f"127.0.0.1:{broker.address[1]}".encode() in said[0], "recorded as the server said it"


def test_a_gateway_has_a_vip_channel_at_the_proxy_too(tmp_path: Path) -> None:
    """It names itself as the broker, at the address for which the proxy listens from the start."""

    def answer(data: bytes) -> bytes:
        addresses = {"0": f"127.0.0.1:{gateway.address[1]}"}
        return answering(json.dumps({"brokerDatas": [{"brokerAddrs": addresses}]}).encode())(data)

    gateway = Server(answer)
    host, port = here = ("127.0.0.1", free_port(-VIP_CHANNEL_DISTANCE))
    try:
        with Recorder(
            tmp_path / "capture", [Route("gateway", here, gateway.address, is_followed=True)]
        ):
            with RemotingClient(*here) as asking:
                route = asking.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}).body
            assert f"{host}:{port}".encode() in route
            with socket.create_connection((host, port - VIP_CHANNEL_DISTANCE), LIMIT_S) as client:
                assert client.recv(1) == b"", "the server itself has none here"
    finally:
        gateway.close()


def test_what_is_no_frame_passes_and_is_not_recorded(tmp_path: Path) -> None:
    server = Server(lambda data: b"\x16\x03\x03" + data)
    try:
        for is_followed in (True, False):
            file = tmp_path / f"capture-{is_followed}"
            here = ("127.0.0.1", free_port())
            with (
                Recorder(file, [Route("tls", here, server.address, is_followed)]),
                socket.create_connection(here, LIMIT_S) as client,
            ):
                for hello in (b"\x16\x03\x01 hello", b"more"):
                    client.sendall(hello)
                    received = b""
                    while len(received) < len(hello) + 3:
                        received += client.recv(1024)
                    assert received == b"\x16\x03\x03" + hello
                client.shutdown(socket.SHUT_WR)
                assert client.recv(1024) == b"", "nothing is passed on twice"
            kinds = [record.kind for record in read_capture(file)]
            assert kinds == [Kind.OPENED, Kind.CLOSED]
    finally:
        server.close()


@pytest.mark.parametrize("is_early", [True, False])
def test_a_client_that_says_no_more_still_hears(tmp_path: Path, is_early: bool) -> None:
    """Whether or not the proxy has a connection to the server by then."""
    listener = socket.create_server(("127.0.0.1", 0))
    here = ("127.0.0.1", free_port())
    with (
        listener,
        Recorder(tmp_path / "capture", [Route("late", here, listener.getsockname())]),
        socket.create_connection(here, LIMIT_S) as client,
    ):
        received = b""
        client.sendall(b"\0\0\0\x04last")
        if is_early:
            client.shutdown(socket.SHUT_WR)
        server, _ = listener.accept()
        with server:
            if not is_early:
                received += server.recv(1024)
                client.shutdown(socket.SHUT_WR)
            while data := server.recv(1024):
                received += data
            assert received == b"\0\0\0\x04last"
            server.sendall(b"\0\0\0\x04well")
        assert client.recv(1024) == b"\0\0\0\x04well"
        assert client.recv(1) == b""


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_frames_are_cut_however_the_bytes_come(size: int) -> None:
    frames = [b"\0\0\0\x05" + bytes([number]) * 5 for number in range(10)]
    data = b"".join(frames)
    splitter = Splitter()
    found = [
        frame for at in range(0, len(data), size) for frame in splitter.feed(data[at : at + size])
    ]
    assert found == frames
    assert splitter.take_rest() == b""
    assert not splitter.is_broken


def test_a_part_of_a_frame_that_looks_like_one_is_none() -> None:
    inner = b"\0\0\0\x03abc"
    outer = b"\0\0\0\x0b" + b"left" + inner
    splitter = Splitter()
    assert splitter.feed(outer[:8]) == []
    assert splitter.feed(outer[8:]) == [outer]
