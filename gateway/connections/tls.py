"""TLS for clients: the certificate, its reload, and the layer between a connection's bytes and its frames."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import load_pem_x509_certificates
from cryptography.x509.oid import NameOID
from OpenSSL import SSL, crypto
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from twisted.internet.protocol import Factory, Protocol, connectionDone
from twisted.logger import Logger
from twisted.protocols.tls import (
    BufferingTLSTransport,
    TLSMemoryBIOFactory,
    TLSMemoryBIOProtocol,
)
from twisted.python.failure import Failure
from zope.interface import implementer  # type: ignore[import-untyped]

from gateway.reactor import Reactor

LOOK_SECONDS = 1.0
"""Seconds between two checks by new connections whether the files have changed."""

SELF_SIGNED_DAYS = 3_650
CLOCKS_APART = timedelta(days=1)
"""How far a client's clock may be behind."""

_VERDICTS = {
    code: name.removeprefix("ERR_").replace("_", " ").lower()
    for name, code in vars(SSL.X509VerificationCodes).items()
    if name.startswith("ERR_")
}
"""Why OpenSSL refuses a certificate, by its number for that."""

_Key = (
    rsa.RSAPrivateKey
    | ec.EllipticCurvePrivateKey
    | ed25519.Ed25519PrivateKey
    | ed448.Ed448PrivateKey
)
_Parsed = TypeVar("_Parsed")


class TlsError(Exception):
    """A certificate that cannot be used; the text is one line that says why."""


@implementer(IOpenSSLServerConnectionCreator)
class Certificates:
    """Makes the TLS end of each connection, from files that may be replaced at any time.

    :param certificate: PEM file with the certificate and its chain of issuers. Without one, a certificate is made that
        no authority has signed: it hides the traffic only from those who listen without interfering.
    :param key: PEM file with the certificate's key; without one, the key is in the certificate's file.
    :param clients: PEM file with authorities; one of them must have signed each client's certificate. Without one,
        clients need no certificate.
    :raises TlsError: when the files cannot be used.
    """

    log = Logger()

    def __init__(
        self, reactor: Reactor, certificate: Path | None, key: Path | None, clients: Path | None
    ) -> None:
        self._reactor = reactor
        self._certificate = certificate
        self._key = key or certificate
        self._clients = clients
        self._files = [one for one in {certificate, self._key, clients} if one is not None]
        self._seen = self._look()
        self._context = self._load()
        self._next_look = 0.0

    def serverConnectionForTLS(self, _: object) -> SSL.Connection:
        """Return the TLS state of a new connection; Twisted calls this."""
        now = self._reactor.seconds()
        if self._files and now >= self._next_look:
            self._next_look = now + LOOK_SECONDS
            self._renew()
        return SSL.Connection(self._context, None)

    def _renew(self) -> None:
        """Read the files again if they changed. While they do not fit together, keep using what was read before."""
        seen = self._look()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._context = self._load()
        except TlsError as error:
            self.log.error(
                "the changed certificate cannot be used, and the old one stays in use: {error}",
                error=str(error),
            )
        else:
            self.log.info("read the certificate again: its files have changed")

    def _look(self) -> list[tuple[int, int, int] | None]:
        """Return the state of the files; it differs when they, or who may read them, have changed."""
        return [_state(file) for file in self._files]

    def _load(self) -> SSL.Context:
        context = SSL.Context(SSL.TLS_SERVER_METHOD)
        context.set_min_proto_version(SSL.TLS1_2_VERSION)
        context.set_options(SSL.OP_NO_COMPRESSION | SSL.OP_NO_RENEGOTIATION)
        # Otherwise each connection that is open keeps 22 KB more, most of the time for nothing.
        context.set_mode(SSL.MODE_RELEASE_BUFFERS)
        context.set_session_id(b"tidegate")
        if self._certificate is None or self._key is None:
            chain, key = _self_signed()
        else:
            chain = _read(self._certificate, _certificates, "tls_certificate")
            holder = "tls_certificate" if self._key == self._certificate else "tls_key"
            key = _read(self._key, _private_key, holder)
            if chain[0].public_key() != key.public_key():
                raise TlsError(
                    f"the key in {self._key} is not that of the certificate in {self._certificate}"
                )
        try:
            context.use_certificate(chain[0])
            context.use_privatekey(key)
            for above in chain[1:]:
                context.add_extra_chain_cert(above)
        except SSL.Error as error:  # such as a key that is too short for OpenSSL's security level
            raise TlsError(
                f"tls_certificate = {self._certificate} cannot be used: {_reason(error)}"
            ) from error
        self._warn_of_times(chain[0])
        if self._clients is not None:
            trusted = context.get_cert_store()
            for authority in _read(self._clients, _certificates, "tls_client_ca"):
                if trusted is not None:
                    trusted.add_cert(crypto.X509.from_cryptography(authority))
            context.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, self._judged)
        return context

    def _judged(self, _: object, certificate: object, code: int, depth: int, is_good: int) -> bool:
        """Log why a client's certificate is refused; OpenSSL, which calls this, says afterwards only that it is."""
        if not is_good:
            self.log.info(
                "the certificate of a client is refused: {reason}", reason=_VERDICTS.get(code, code)
            )
        return bool(is_good)

    def _warn_of_times(self, certificate: x509.Certificate) -> None:
        """Log if a certificate is not valid now. It is used all the same: RocketMQ's clients do not look by default."""
        begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        if not begin <= datetime.now(UTC) <= end:
            self.log.warn(
                "tls_certificate = {file} is valid from {begin} to {end} only: clients that check it refuse it",
                file=str(self._certificate),
                begin=begin.isoformat(),
                end=end.isoformat(),
            )


class TlsLayers:
    """Makes TLS layers, which decrypt what a connection receives and encrypt what it sends."""

    def __init__(self, reactor: Any, certificates: Certificates) -> None:
        self._reactor = reactor
        # Its interfaces cannot be checked without a plugin.
        self._certificates: Any = certificates
        # Only its layers are used; it never makes a connection itself.
        self._factory = self.around(Factory.forProtocol(Protocol))

    def around(self, factory: Any) -> TLSMemoryBIOFactory:
        """Wrap a factory so that its connections speak only TLS."""
        layers = TLSMemoryBIOFactory(self._certificates, False, factory, clock=self._reactor)
        layers.protocol = _Layer
        return layers

    def layer(self, peer: str, received: Callable[[bytes], None]) -> TLSMemoryBIOProtocol:
        """Return a layer: the transport for what is inside, and the protocol for what is outside.

        :param received: called with the decrypted bytes.
        """
        return self._factory.protocol(self._factory, _Inside(peer, received))


class _Layer(BufferingTLSTransport):
    """A layer that frees what OpenSSL keeps for it, 50 KB and more, once the connection is lost. The error by which TLS
    ends, as when a client is gone without a goodbye, has that in its traceback, in a cycle of objects: it would stay in
    memory until Python looks for cycles, which may take hours."""

    def _tlsShutdownFinished(self, reason: Any) -> None:
        if reason is not None:
            reason.cleanFailure()
        super()._tlsShutdownFinished(reason)  # type: ignore[no-untyped-call]


class _Inside(Protocol):
    """The gateway's end of a TLS layer."""

    log = Logger()

    def __init__(self, peer: str, received: Callable[[bytes], None]) -> None:
        self._peer = peer
        self._received = received

    def dataReceived(self, data: bytes) -> None:
        self._received(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        log_failed_tls(self.log, self._peer, reason)


def log_failed_tls(log: Logger, peer: str, reason: Failure) -> None:
    """Log that a connection has ended because TLS failed, if that is its reason."""
    if isinstance(reason.value, SSL.Error):
        log.info("TLS with {peer} failed: {reason}", peer=peer, reason=_reason(reason.value))


def _state(file: Path) -> tuple[int, int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ctime_ns, status.st_size, status.st_ino


def _read(file: Path, parse: Callable[[bytes], _Parsed], setting: str) -> _Parsed:
    """Return the parsed content of a file."""
    try:
        return parse(file.read_bytes())
    except OSError as error:
        raise TlsError(f"cannot read {setting} = {file}: {error.strerror}") from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        reason = " ".join(str(error).split())[:200]
        raise TlsError(f"{setting} = {file} cannot be used: {reason}") from error


def _certificates(data: bytes) -> list[x509.Certificate]:
    """Return the certificates of a PEM file."""
    if b" CERTIFICATE-----" not in data:
        raise ValueError("there is no certificate in it")
    return load_pem_x509_certificates(data)


def _private_key(data: bytes) -> _Key:
    """Return the key of a PEM file."""
    if b"PRIVATE KEY" not in data:
        raise ValueError("there is no private key in it; set tls_key to the file of the key")
    key = load_pem_private_key(data, password=None)
    if not isinstance(key, _Key):
        raise ValueError("TLS needs an RSA, elliptic curve or Edwards curve key")
    return key


def _self_signed() -> tuple[list[x509.Certificate], _Key]:
    """Make a certificate that no authority has signed, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tidegate")])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCKS_APART)
        .not_valid_after(now + timedelta(days=SELF_SIGNED_DAYS))
    )
    return [builder.sign(key, hashes.SHA256())], key


def _reason(error: SSL.Error) -> str:
    """Return OpenSSL's reason, without its library and function names."""
    entries = error.args[0] if error.args else ()
    if isinstance(entries, list | tuple) and entries:
        return str(entries[-1][-1])
    return type(error).__name__
