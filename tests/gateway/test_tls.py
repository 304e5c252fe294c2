"""TLS and PROXY headers on the port for frames."""

from __future__ import annotations

import errno
import gc
import ssl
import weakref
from pathlib import Path
from typing import Any

import pytest
from OpenSSL import SSL
from twisted.logger import capturedLogs, formatEvent

from gateway.connections.tls import Certificates
from gateway.process import StartError
from gateway.service import Gateway
from gateway.settings.config import Config
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import encode_command
from tests.gateway.certificates import Authority, Issued
from tests.gateway.conftest import MakeGateway
from tests.gateway.memory import MemoryGateway, TurnReactor, bodies
from tests.gateway.tls import TlsClient, careless, trusting

PROXY = b"PROXY TCP4 192.0.2.1 192.0.2.7 51000 9876\r\n"


@pytest.fixture(scope="module")
def authority() -> Authority:
    """An authority that signs certificates."""
    return Authority()


@pytest.fixture
def issued(authority: Authority, tmp_path: Path) -> Issued:
    """The gateway's certificate."""
    return authority.issue(tmp_path, "gateway")


def tls_settings(issued: Issued, **more: Any) -> dict[str, Any]:
    return {"tls_certificate": issued.certificate, "tls_key": issued.key, **more}


def name_of(client: TlsClient) -> str:
    """Return the name in the gateway's certificate."""
    certificate: Any = client.tls.getpeercert()
    return str(dict(part[0] for part in certificate["subject"])["commonName"])


def test_messages_over_tls(make_gateway: MakeGateway, issued: Issued, authority: Authority) -> None:
    gateway = make_gateway(**tls_settings(issued))
    client = TlsClient(gateway, trusting(authority))
    assert client.tls.version() in ("TLSv1.2", "TLSv1.3")
    body = "x" * 100_000
    assert client.send_message(body=body).code == ResponseCode.SUCCESS
    assert bodies(client.pull()) == [body]
    assert bodies(gateway.connect().pull()) == [body]


def test_a_waiting_pull_is_answered_over_tls(make_gateway: MakeGateway) -> None:
    gateway = make_gateway()
    client, other = TlsClient(gateway, careless()), gateway.connect()
    other.send_message(body="first")
    opaque = client.park(offset=1)
    other.send_message(body="second")
    answer = client.answer(opaque)
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS


def test_a_pull_that_waits_over_tls_is_answered_by_a_stopping_gateway(
    gateway: MemoryGateway,
) -> None:
    client = TlsClient(gateway, careless())
    client.send_message()
    opaque = client.park(offset=1)
    gateway.stop()
    answer = client.answer(opaque)
    assert answer is not None
    assert answer.code == ResponseCode.PULL_NOT_FOUND


def test_a_client_over_tls_that_does_not_read_is_not_read_from(make_gateway: MakeGateway) -> None:
    gateway = make_gateway()
    gateway.connect().send_message(body=b"x" * 200_000)
    client = TlsClient(gateway, careless())
    client.stop_reading()
    fields = client.pull_request()
    for number in range(3):
        frame = encode_command(RequestCode.PULL_MESSAGE, 100 + number, ext=fields)
        client.tls.write(frame)
        client.protocol.dataReceived(client._outgoing.read())
        gateway.settle()
    assert client.transport.producerState == "paused"
    client.transport.reads = True
    answers = client.take()
    assert [answer.code for answer in answers] == [0, 0, 0]
    assert client.transport.producerState == "producing"


def test_a_certificate_of_its_own_for_those_who_do_not_look(gateway: MemoryGateway) -> None:
    assert TlsClient(gateway, careless()).send_message().code == ResponseCode.SUCCESS
    with pytest.raises(ssl.SSLCertVerificationError):
        TlsClient(gateway, ssl.create_default_context())


def test_closing_says_goodbye(gateway: MemoryGateway) -> None:
    client = TlsClient(gateway, careless())
    client.protocol.close()
    client._exchange()
    assert client.tls.read(1) == b""  # the end, as TLS itself signals it
    assert not client.closed
    client.tls.unwrap()
    client._exchange()
    assert client.closed


def test_a_client_over_tls_that_leaves_is_forgotten(gateway: MemoryGateway) -> None:
    client = TlsClient(gateway, careless())
    client.heartbeat("one")
    client.disconnect()
    gateway.settle()
    assert gateway.service.broker.clients.consumer_group("consumers") is None


@pytest.mark.parametrize("in_handshake", [False, True])
def test_nothing_of_tls_is_left_of_who_goes_without_a_goodbye(
    gateway: MemoryGateway, in_handshake: bool
) -> None:
    """Python would look for cycles of objects later, perhaps much later."""
    if in_handshake:
        client = gateway.connect()
        client.raw(b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03" + b"x" * 16_000)
    else:
        client = TlsClient(gateway, careless())
    state = weakref.ref(client.protocol._layer._tlsConnection)
    gc.disable()
    try:
        client.disconnect()
        assert state() is None
    finally:
        gc.enable()


def test_no_buffers_are_kept_while_nothing_comes(gateway: MemoryGateway) -> None:
    context = Certificates(gateway.reactor, None, None, None)._context
    assert context.set_mode(0) & SSL.MODE_RELEASE_BUFFERS


def test_disabled(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(tls="disabled")
    with pytest.raises(AssertionError, match="does not end"):
        TlsClient(gateway, careless())
    client = gateway.connect()
    client.raw(b"\x16\x03\x01")
    assert client.closed
    assert gateway.connect().send_message().code == ResponseCode.SUCCESS


def test_enforcing(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(tls="enforcing")
    client = gateway.connect()
    client.send(RequestCode.HEART_BEAT)
    assert client.closed
    assert TlsClient(gateway, careless()).send_message().code == ResponseCode.SUCCESS


def test_what_only_looks_like_tls(gateway: MemoryGateway) -> None:
    client = gateway.connect()
    client.raw(b"\x16\x03\x01\x00\x05hello")
    assert client.closed


def test_old_tls_is_refused(gateway: MemoryGateway) -> None:
    context = careless()
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        context.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        TlsClient(gateway, context)


def test_a_new_certificate_without_a_restart(
    make_gateway: MakeGateway, authority: Authority, issued: Issued, tmp_path: Path
) -> None:
    gateway = make_gateway(**tls_settings(issued))
    first = TlsClient(gateway, trusting(authority))
    assert name_of(first) == "gateway"
    issued.replace(authority.issue(tmp_path, "renewed"))
    gateway.advance(2_000)
    assert name_of(TlsClient(gateway, trusting(authority))) == "renewed"
    assert first.send_message().code == ResponseCode.SUCCESS


def test_half_a_renewal_leaves_the_old_certificate(
    make_gateway: MakeGateway, authority: Authority, issued: Issued, tmp_path: Path
) -> None:
    gateway = make_gateway(**tls_settings(issued))
    renewed = authority.issue(tmp_path, "renewed")
    renewed.certificate.replace(issued.certificate)
    gateway.advance(2_000)
    assert name_of(TlsClient(gateway, trusting(authority))) == "gateway"
    renewed.key.replace(issued.key)
    gateway.advance(2_000)
    assert name_of(TlsClient(gateway, trusting(authority))) == "renewed"


def test_a_key_that_was_unreadable_at_first(
    make_gateway: MakeGateway,
    authority: Authority,
    issued: Issued,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who renews a certificate often forgets whom the key is for."""
    gateway = make_gateway(**tls_settings(issued))
    read = Path.read_bytes

    def read_as_another_user(file: Path) -> bytes:
        if file == issued.key and not file.stat().st_mode & 0o040:
            raise PermissionError(errno.EACCES, "Permission denied")
        return read(file)

    monkeypatch.setattr(Path, "read_bytes", read_as_another_user)
    renewed = authority.issue(tmp_path, "renewed")
    renewed.key.chmod(0o600)
    issued.replace(renewed)
    gateway.advance(2_000)
    assert name_of(TlsClient(gateway, trusting(authority))) == "gateway"
    issued.key.chmod(0o640)
    gateway.advance(2_000)
    assert name_of(TlsClient(gateway, trusting(authority))) == "renewed"


def test_a_certificate_that_has_expired_is_told(
    make_gateway: MakeGateway, authority: Authority, issued: Issued, tmp_path: Path
) -> None:
    """It is used: RocketMQ's clients do not look."""
    gateway = make_gateway(**tls_settings(issued))
    with capturedLogs() as events:
        issued.replace(authority.issue(tmp_path, "old", days=(-9, -2)))
        gateway.advance(2_000)
        assert TlsClient(gateway, careless()).send_message().code == ResponseCode.SUCCESS
    assert [event["file"] for event in events if "is valid from" in event["log_format"]] == [
        str(issued.certificate)
    ]


def test_a_key_that_is_too_short(
    make_gateway: MakeGateway, authority: Authority, issued: Issued, tmp_path: Path
) -> None:
    gateway = make_gateway(**tls_settings(issued))
    weak = authority.issue(tmp_path, "weak", rsa_bits=1024)
    config = Config(data=tmp_path / "another", **tls_settings(weak))
    with pytest.raises(StartError, match=r"tls_certificate = .*: ee key too small"):
        Gateway(config, TurnReactor()).start()  # type: ignore[no-untyped-call]
    issued.replace(weak)
    gateway.advance(2_000)
    assert name_of(TlsClient(gateway, trusting(authority))) == "gateway"


def test_a_chain_and_a_key_in_one_file(make_gateway: MakeGateway, tmp_path: Path) -> None:
    root = Authority("root")
    below = Authority("below", above=root)
    issued = below.issue(tmp_path, "gateway")
    both = tmp_path / "both.pem"
    parts = (issued.key.read_bytes(), issued.certificate.read_bytes(), below.pem)
    both.write_bytes(b"".join(parts))
    gateway = make_gateway(tls_certificate=both)
    assert name_of(TlsClient(gateway, trusting(root))) == "gateway"


@pytest.fixture
def choosy(
    make_gateway: MakeGateway, authority: Authority, issued: Issued, tmp_path: Path
) -> MemoryGateway:
    """A gateway that lets in only clients with a certificate of the authority."""
    trusted = tmp_path / "authority.crt"
    trusted.write_bytes(authority.pem)
    return make_gateway(**tls_settings(issued, tls_client_ca=trusted))


def test_clients_need_a_certificate_when_told_so(
    choosy: MemoryGateway, authority: Authority, tmp_path: Path
) -> None:
    context = trusting(authority)
    known = authority.issue(tmp_path, "client")
    context.load_cert_chain(known.certificate, known.key)
    assert TlsClient(choosy, context).send_message().code == ResponseCode.SUCCESS
    stranger = Authority("other").issue(tmp_path, "stranger")
    for certificate in (None, stranger):
        context = trusting(authority)
        if certificate is not None:
            context.load_cert_chain(certificate.certificate, certificate.key)
        with pytest.raises((ssl.SSLError, AssertionError)):
            TlsClient(choosy, context).send_message()


def test_why_a_certificate_of_a_client_is_refused_is_logged(
    choosy: MemoryGateway, authority: Authority, tmp_path: Path
) -> None:
    strange = Authority("other").issue(tmp_path, "strange")
    for certificate, reason in (
        (authority.issue(tmp_path, "old", days=(-9, -2)), "cert has expired"),
        (strange, "unable to get issuer cert locally"),
    ):
        context = trusting(authority)
        context.load_cert_chain(certificate.certificate, certificate.key)
        with capturedLogs() as events, pytest.raises((ssl.SSLError, AssertionError)):
            TlsClient(choosy, context).send_message()
        told = [formatEvent(event) for event in events]
        assert told[0] == f"the certificate of a client is refused: {reason}"
        assert told[1].endswith("failed: certificate verify failed")


@pytest.mark.parametrize("setting", ["tls_certificate", "tls_key", "tls_client_ca"])
def test_files_that_keep_a_gateway_from_starting(
    issued: Issued, tmp_path: Path, setting: str
) -> None:
    wrong = tmp_path / "wrong.pem"
    settings: dict[str, Any] = {**tls_settings(issued), setting: wrong}
    config = Config(data=tmp_path / "data", **settings)
    missing = "there is no private key" if setting == "tls_key" else "there is no certificate"
    for reason in ("No such file", f"cannot be used: {missing} in it"):
        with pytest.raises(StartError, match=reason) as error:
            Gateway(config, TurnReactor()).start()  # type: ignore[no-untyped-call]
        assert f"{setting} = {wrong}" in str(error.value)
        wrong.write_text("nothing")


def test_keys_that_do_not_fit(authority: Authority, issued: Issued, tmp_path: Path) -> None:
    other = authority.issue(tmp_path, "other")
    locked = authority.issue(tmp_path, "locked", password=b"secret")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"tls_certificate": issued.certificate, "tls_key": other.key}, "not that of"),
        (tls_settings(locked), "not given|no password"),
        (
            {"tls_certificate": issued.certificate},
            f"tls_certificate = {issued.certificate} cannot be used: .*; set tls_key to the file",
        ),
    ]
    for settings, reason in cases:
        config = Config(data=tmp_path / "data", **settings)
        with pytest.raises(StartError, match=reason):
            Gateway(config, TurnReactor()).start()  # type: ignore[no-untyped-call]
    with pytest.raises(ValueError, match="set tls_certificate too"):
        Config(data=tmp_path / "data", tls_key=other.key)


@pytest.mark.parametrize("size", [1, len(PROXY)], ids=["byte by byte", "whole"])
def test_a_balancer_tells_who_the_client_is(gateway: MemoryGateway, size: int) -> None:
    client = gateway.connect("203.0.113.9")
    for begin in range(0, len(PROXY), size):
        client.raw(PROXY[begin : begin + size])
    assert client.send_message().code == ResponseCode.SUCCESS
    assert client.protocol.address == "192.0.2.1:51000"
    (message,) = client.pull()
    assert message.born_host[:4] == bytes((203, 0, 113, 9))


def test_a_balancer_before_tls(gateway: MemoryGateway) -> None:
    client = TlsClient(gateway, careless(), begin=PROXY)
    assert client.send_message().code == ResponseCode.SUCCESS
    assert client.protocol.address == "192.0.2.1:51000"


def test_a_broken_header_closes_the_connection(gateway: MemoryGateway) -> None:
    client = gateway.connect()
    client.raw(b"PROXY nonsense\r\n")
    assert client.closed


def test_beginnings_count_as_unfinished(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(max_unfinished_bytes=1 << 20)
    head = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff"
    clients = [gateway.connect() for _ in range(20)]
    for client in clients:
        client.raw(head + bytes(60_000))
    assert any(client.closed for client in clients)
    assert gateway.connect().send_message().code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("host", "shown", "born"),
    [
        ("192.0.2.1", "192.0.2.1:", bytes((192, 0, 2, 1))),
        ("::ffff:192.0.2.1", "192.0.2.1:", bytes((192, 0, 2, 1))),
        ("2001:db8::1", "[2001:db8::1]:", bytes((127, 0, 0, 1))),
    ],
)
def test_addresses_of_clients(gateway: MemoryGateway, host: str, shown: str, born: bytes) -> None:
    client = gateway.connect(host)
    client.send_message()
    assert client.protocol.address.startswith(shown)
    (message,) = client.pull()
    assert message.born_host[:4] == born
