"""A real gateway process over IPv6, behind a PROXY header, and over TLS from the command line."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from compat import children
from gateway.client import ClientError, RemotingClient, tls_context
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import decode_command, encode_command
from gateway.wire.frames import Frame, FrameBuffer
from tests.gateway.certificates import Authority
from tests.live.process import LIMIT_S, GatewayProcess, killed

pytestmark = pytest.mark.live

CLUSTERS = RequestCode.GET_BROKER_CLUSTER_INFO


def has_ipv6() -> bool:
    """Whether this machine has an IPv6 loopback."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@contextmanager
def listening(data: Path, listen: str) -> Iterator[int]:
    """Run a gateway on this address, and yield its port."""
    command = [
        *(sys.executable, "-m", "gateway", "serve", "--data", str(data)),
        *("--listen", listen, "--advertise", "127.0.0.1"),
    ]
    with killed(children.start(command, folder=data.parent, stdout=subprocess.PIPE)) as process:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        found = re.match(r"listening on \[(::1?)\]:(\d+), clients are told 127\.0\.0\.1:\2,", line)
        assert found is not None, line
        yield int(found[2])


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
@pytest.mark.parametrize(("listen", "hosts"), [("::1", ["::1"]), ("::", ["::1", "127.0.0.1"])])
def test_ipv6(tmp_path: Path, listen: str, hosts: list[str]) -> None:
    with listening(tmp_path / "data", f"[{listen}]:0") as port:
        for host in hosts:
            with RemotingClient(host, port, timeout=LIMIT_S) as client:
                assert client.ask(CLUSTERS).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    "header",
    [
        b"PROXY TCP4 192.0.2.1 192.0.2.7 51000 9876\r\n",
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + bytes((192, 0, 2, 1, 192, 0, 2, 7, 1, 2, 3, 4)),
    ],
    ids=["version 1", "version 2"],
)
def test_a_proxy_header(gateway: GatewayProcess, header: bytes) -> None:
    request = header + encode_command(CLUSTERS, 7)
    frames = FrameBuffer()
    with socket.create_connection(("127.0.0.1", gateway.port), LIMIT_S) as connection:
        for at in range(0, len(request), 9):
            connection.sendall(request[at : at + 9])
        arrived: list[Frame] = []
        while not arrived:
            data = connection.recv(1 << 16)
            assert data, "the gateway has closed the connection"
            arrived = frames.feed(data)
    answer = decode_command(arrived[0])
    assert (answer.opaque, answer.code) == (7, ResponseCode.SUCCESS)


def test_the_command_line_over_tls(tmp_path: Path) -> None:
    authority = Authority()
    issued = authority.issue(tmp_path, "gateway")
    trusted, strange = tmp_path / "ca.crt", tmp_path / "strange.crt"
    trusted.write_bytes(authority.pem)
    strange.write_bytes(Authority().pem)
    files = ("--tls-certificate", str(issued.certificate), "--tls-key", str(issued.key))
    with GatewayProcess(tmp_path / "data", "--tls", "enforcing", *files) as gateway:

        def pending(*flags: str) -> subprocess.CompletedProcess[str]:
            command = ["-m", "gateway", "pending", "--server", gateway.address, *flags]
            return subprocess.run(
                [sys.executable, *command], capture_output=True, text=True, timeout=180, check=False
            )

        assert pending("--tls").returncode == 0
        assert pending("--tls-ca", str(trusted)).returncode == 0
        refused = pending("--tls-ca", str(strange))
        assert refused.returncode == 1
        assert "is not trusted" in refused.stderr
        assert "check that --tls-ca has the file of its CA" in refused.stderr
        assert "--tls-ca" in pending("--tls-ca", str(tmp_path / "none")).stderr
        assert "if it requires TLS, add --tls" in pending().stderr


def test_the_command_line_where_clients_need_a_certificate(tmp_path: Path) -> None:
    trusted = tmp_path / "ca.crt"
    trusted.write_bytes(Authority().pem)
    with (
        GatewayProcess(tmp_path / "data", "--tls-client-ca", str(trusted)) as gateway,
        pytest.raises(ClientError, match=r"only clients that have a certificate \(tls_client_ca\)"),
    ):
        RemotingClient("127.0.0.1", gateway.port, tls=tls_context(None)).ask(
            RequestCode.GET_BROKER_CONFIG
        )


def test_tls_where_there_is_none(tmp_path: Path) -> None:
    with (
        GatewayProcess(tmp_path / "data", "--tls", "disabled") as gateway,
        pytest.raises(ClientError, match="did not answer by TLS"),
        RemotingClient("127.0.0.1", gateway.port, tls=tls_context(None)),
    ):
        pass
