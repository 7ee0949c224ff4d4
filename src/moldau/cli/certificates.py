"""Certificates for development: an authority, and certificates of nodes and clients that it issues.

They are made with the package `cryptography`, which is imported on first use.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from moldau.cli.files import write_private

AUTHORITY: Final = "Moldau development CA"
AUTHORITY_FILE: Final = "ca.pem"
AUTHORITY_KEY_FILE: Final = "ca-key.pem"
NODE_NAME: Final = "node"
DAYS: Final = 365
LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
_CLOCK_SKEW: Final = timedelta(hours=1)


class CertificateError(Exception):
    """A certificate cannot be made; the message says why."""


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority for development. Its key is kept in a file, and suffices to issue certificates."""

    certificate: Any  # x509.Certificate
    key: Any

    @classmethod
    def create(cls, name: str = AUTHORITY, days: int = DAYS) -> "Authority":
        key = _new_key()
        certificate = _sign(_subject(name), key.public_key(), None, key, days=days, is_authority=True)
        return cls(certificate, key)

    @classmethod
    def load(cls, directory: Path) -> "Authority":
        x509, serialization = _x509(), _serialization()
        try:
            certificate = x509.load_pem_x509_certificate((directory / AUTHORITY_FILE).read_bytes())
            key = serialization.load_pem_private_key((directory / AUTHORITY_KEY_FILE).read_bytes(), None)
        except (OSError, ValueError) as error:
            raise CertificateError(f"The authority in {directory} cannot be read: {error}") from None
        return cls(certificate, key)

    @property
    def pem(self) -> str:
        """The certificate: what a truststore contains."""
        return _pem(self.certificate)

    def save(self, directory: Path) -> None:
        write_private(directory / AUTHORITY_KEY_FILE, _key_pem(self.key))
        (directory / AUTHORITY_FILE).write_text(self.pem)

    def issue(self, name: str, hosts: Sequence[str] = (), *, days: float = DAYS, starts_in_days: float = 0) -> str:
        """Return key and certificate chain as PEM; a certificate with `hosts` serves as a node's and a client's."""
        key = _new_key()
        certificate = _sign(
            _subject(name), key.public_key(), self, None, hosts=hosts, days=days, starts_in_days=starts_in_days
        )
        return _key_pem(key) + _pem(certificate) + self.pem


def _new_key() -> Any:
    _x509()
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _subject(name: str) -> Any:
    x509 = _x509()
    try:
        return x509.Name([x509.NameAttribute(_name_oid().COMMON_NAME, name)])
    except ValueError as error:
        raise CertificateError(f"{name!r} cannot be the name of a certificate: {error}") from None


def _sign(
    subject: Any,
    public_key: Any,
    issuer: Authority | None,
    own_key: Any,
    *,
    hosts: Sequence[str] = (),
    days: float,
    starts_in_days: float = 0,
    is_authority: bool = False,
) -> Any:
    x509 = _x509()
    from cryptography.hazmat.primitives import hashes

    now = datetime.now(UTC)
    start = now - _CLOCK_SKEW + timedelta(days=starts_in_days)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.certificate.subject)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(start, now + timedelta(days=days) - _CLOCK_SKEW))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(_usage(is_authority), critical=True)
    )
    if not is_authority:
        from cryptography.x509.oid import ExtendedKeyUsageOID

        purposes = x509.ExtendedKeyUsage(
            [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
        )
        builder = builder.add_extension(purposes, critical=False)
    if issuer is not None:
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.key.public_key())
        builder = builder.add_extension(authority, critical=False)
    if hosts:
        names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(own_key if issuer is None else issuer.key, hashes.SHA256())


def _usage(is_authority: bool) -> Any:
    return _x509().KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> Any:
    x509 = _x509()
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise CertificateError(f"{host!r} is neither a host name nor an address: {error}") from None


def _pem(certificate: Any) -> str:
    text: bytes = certificate.public_bytes(_serialization().Encoding.PEM)
    return text.decode()


def _key_pem(key: Any) -> str:
    serialization = _serialization()
    text: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return text.decode()


def _x509() -> Any:
    try:
        from cryptography import x509
    except ImportError:
        raise CertificateError(
            "Certificates need the package cryptography: install the extra moldau[security]."
        ) from None
    return x509


def _name_oid() -> Any:
    from cryptography.x509.oid import NameOID

    return NameOID


def _serialization() -> Any:
    from cryptography.hazmat.primitives import serialization

    return serialization
