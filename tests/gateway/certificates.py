"""Makes certificates for tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

PEM = (Encoding.PEM, PrivateFormat.PKCS8)

_Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


class Authority:
    """A certificate that signs others."""

    def __init__(self, name: str = "authority", above: Authority | None = None) -> None:
        self._key = _curve_key()
        self._name = _name(name)
        self.certificate = self._sign(self._name, self._key, above or self, is_authority=True)
        self.pem = self.certificate.public_bytes(Encoding.PEM)

    def issue(
        self,
        folder: Path,
        name: str,
        *,
        password: bytes | None = None,
        rsa_bits: int | None = None,
        days: tuple[int, int] = (-1, 1),
    ) -> Issued:
        """Return a certificate for this machine, as two files. Its key is an elliptic-curve key unless `rsa_bits` is
        given.

        :param days: when it begins and ends to be valid, counted from today.
        """
        key = rsa.generate_private_key(65_537, rsa_bits) if rsa_bits else _curve_key()
        certificate = self._sign(_name(name), key, self, days, is_authority=False)
        lock = BestAvailableEncryption(password) if password else NoEncryption()
        issued = Issued(folder / f"{name}.crt", folder / f"{name}.key")
        issued.certificate.write_bytes(certificate.public_bytes(Encoding.PEM))
        issued.key.write_bytes(key.private_bytes(*PEM, lock))
        return issued

    @staticmethod
    def _sign(
        name: x509.Name,
        key: _Key,
        by: Authority,
        days: tuple[int, int] = (-1, 1),
        *,
        is_authority: bool,
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(by._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + timedelta(days=days[0]))
            .not_valid_after(now + timedelta(days=days[1]))
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
            # Clients on Python 3.13 and newer insist on these (VERIFY_X509_STRICT).
            .add_extension(_usage(is_authority=is_authority), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(by._key.public_key()),
                critical=False,
            )
            .sign(by._key, hashes.SHA256())
        )


class Issued:
    """A certificate and its key, as PEM files."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self.certificate = certificate
        self.key = key

    def replace(self, other: Issued) -> None:
        """Put another certificate into the same files."""
        other.certificate.replace(self.certificate)
        other.key.replace(self.key)


def _curve_key() -> _Key:
    return ec.generate_private_key(ec.SECP256R1())


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
