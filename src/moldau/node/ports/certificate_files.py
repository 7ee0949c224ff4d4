"""Certificates and keys, read from PEM files, PKCS12 stores or the settings themselves."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from moldau.model.errors import InvalidConfig
from moldau.model.tls import JKS, PEM, PKCS12, CertificateStore, TlsSettings
from moldau.model.units import MiB

FILE_BYTES_MAX: Final = 4 * MiB  # the authorities of a whole operating system take a quarter of a MiB
_JKS_MAGIC: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_CERTIFICATE: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.S)
_KEY: Final = re.compile(r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----.+?-----END (?:[A-Z]+ )*PRIVATE KEY-----", re.S)


@dataclass(frozen=True, slots=True)
class Identity:
    """A private key and its certificate chain as PEM text."""

    pem: str = field(repr=False)
    password: str = field(repr=False)  # of the key, if it is encrypted
    origin: str  # for errors


def read_identity(settings: TlsSettings) -> Identity | None:
    """Return our key and certificates; None if the settings have none."""
    store = settings.keystore
    if store.is_empty:
        return None
    if store.key:
        return Identity(f"{_lines(store.key)}\n{_lines(store.certificates)}", settings.key_password, "ssl.keystore.key")
    data, kind = _read_store(store, "keystore")
    origin = f"ssl.keystore.location={store.location}"
    if kind == PKCS12:
        return Identity(_pkcs12_identity(data, store.password, origin), "", origin)
    text = _text(data, origin)
    if not _KEY.search(text):
        raise InvalidConfig(f"{origin} contains no private key: a PEM file needs the key and the certificate chain.")
    if not _CERTIFICATE.search(text):
        raise InvalidConfig(f"{origin} contains no certificate: a PEM file needs the key and the certificate chain.")
    return Identity(text, settings.key_password or store.password, origin)


def read_authorities(store: CertificateStore) -> tuple[str, str]:
    """Return the trusted certificates as PEM text, and where they come from."""
    if store.certificates:
        return _certificates(_lines(store.certificates), "ssl.truststore.certificates"), "ssl.truststore.certificates"
    data, kind = _read_store(store, "truststore")
    origin = f"ssl.truststore.location={store.location}"
    if kind == PKCS12:
        return _pkcs12_authorities(data, store.password, origin), origin
    return _certificates(_text(data, origin), origin), origin


def _lines(text: str) -> str:
    """PEM in a setting: a properties file has it on one line, with blanks or `\\n` for line ends."""
    text = text.replace("\\n", "\n")
    if "\n" in text.strip():
        return text
    return re.sub(
        r"(-----BEGIN [A-Z ]+-----)\s*(.+?)\s*(-----END [A-Z ]+-----)",
        lambda match: "\n".join([match[1], *match[2].split(), match[3], ""]),
        text,
    )


def _certificates(text: str, origin: str) -> str:
    found = _CERTIFICATE.findall(text)
    if not found:
        raise InvalidConfig(f"{origin} contains no certificate in PEM format.")
    return "\n".join(found)


def _text(data: bytes, origin: str) -> str:
    if b"-----BEGIN " not in data:
        raise InvalidConfig(f"{origin} is not a PEM file; set its type to PKCS12 if it is such a store.")
    return data.decode("ascii", "replace")  # comments between the certificates may be in any language


def _read_store(store: CertificateStore, what: str) -> tuple[bytes, str]:
    """Return the contents and the type, which for JKS, Kafka's default, is detected."""
    name = f"ssl.{what}.location"
    try:
        with open(store.location, "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidConfig(f"{name}={store.location} cannot be read: {error.strerror}.") from None
    if len(data) > FILE_BYTES_MAX:
        raise InvalidConfig(f"{name}={store.location} is larger than {FILE_BYTES_MAX} bytes.")
    kind = store.type
    if data.startswith(_JKS_MAGIC):
        raise InvalidConfig(
            f"{name}={store.location} is a JKS store, which only Java reads. Convert it with: keytool -importkeystore "
            f"-srckeystore {store.location} -destkeystore {what}.p12 -deststoretype PKCS12, and set "
            f"ssl.{what}.location={what}.p12 and ssl.{what}.type=PKCS12."
        )
    if kind == JKS:  # Java, too, reads a PKCS12 store where JKS is configured
        kind = PEM if b"-----BEGIN " in data else PKCS12
    return data, kind


def _pkcs12_identity(data: bytes, password: str, origin: str) -> str:
    store = _load_pkcs12(data, password, origin)
    if store.key is None or store.cert is None:
        raise InvalidConfig(f"{origin} contains no private key with its certificate.")
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    chain = [store.cert, *store.additional_certs]
    pem: bytes = key + b"".join(each.certificate.public_bytes(Encoding.PEM) for each in chain)
    return pem.decode()


def _pkcs12_authorities(data: bytes, password: str, origin: str) -> str:
    store = _load_pkcs12(data, password, origin)
    from cryptography.hazmat.primitives.serialization import Encoding

    found = [each for each in (store.cert, *store.additional_certs) if each is not None]
    if not found:
        raise InvalidConfig(f"{origin} contains no certificate.")
    return "".join(each.certificate.public_bytes(Encoding.PEM).decode() for each in found)


def _load_pkcs12(data: bytes, password: str, origin: str) -> Any:
    load = _pkcs12_loader(origin)
    try:
        return load(data, password.encode() if password else None)
    except ValueError as error:
        raise InvalidConfig(f"{origin} cannot be opened as PKCS12: {error} (is its password right?)") from None


def _pkcs12_loader(origin: str) -> Callable[[bytes, bytes | None], Any]:
    try:
        from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12
    except ImportError:
        raise InvalidConfig(
            f"{origin} is a PKCS12 store, which needs the package cryptography: install the extra moldau[security], "
            "or use a PEM file."
        ) from None
    return load_pkcs12
