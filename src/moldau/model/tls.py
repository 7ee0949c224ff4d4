"""The TLS settings of a listener or of a client: plain values. `node/ports/tls_context.py` makes contexts of them.

The values come under Kafka's names (`ssl.keystore.location`, …) from a broker's configuration or a client's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from moldau.model.errors import InvalidConfig
from moldau.model.settings import shorten

TLS_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
PEM: Final = "PEM"
PKCS12: Final = "PKCS12"
JKS: Final = "JKS"
STORE_TYPES: Final = (PEM, PKCS12, JKS)
HTTPS: Final = "https"


class ClientAuth(Enum):
    """Whether a server asks its clients for certificates."""

    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateStore:
    """Where certificates, and a key, come from: a file, or PEM text in the settings themselves."""

    type: str = PEM
    location: str = ""
    password: str = field(default="", repr=False)
    certificates: str = field(default="", repr=False)  # PEM text
    key: str = field(default="", repr=False)  # PEM text

    @property
    def is_empty(self) -> bool:
        return not (self.location or self.certificates or self.key)


EMPTY_STORE: Final = CertificateStore()


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """The TLS configuration of one side of a connection."""

    keystore: CertificateStore = EMPTY_STORE  # our certificate and its key; a client may have none
    truststore: CertificateStore = EMPTY_STORE  # the trusted authorities; empty: those of the system
    key_password: str = field(default="", repr=False)
    client_auth: ClientAuth = ClientAuth.NONE  # of a server
    versions: tuple[str, ...] = TLS_VERSIONS
    cipher_suites: tuple[str, ...] = ()  # empty: OpenSSL's default
    verifies_hostname: bool = True  # of a client


def parse_tls(values: Mapping[str, str]) -> TlsSettings:
    """Read the `ssl.*` settings; missing ones have Kafka's defaults."""

    def text(name: str) -> str:
        return values.get(f"ssl.{name}", "").strip()

    keystore = _store("ssl.keystore", values, certificates=text("keystore.certificate.chain"), key=text("keystore.key"))
    truststore = _store("ssl.truststore", values, certificates=text("truststore.certificates"), key="")
    if bool(keystore.certificates) != bool(keystore.key):
        raise InvalidConfig("ssl.keystore.certificate.chain and ssl.keystore.key must be set together.")
    return TlsSettings(
        keystore=keystore,
        truststore=truststore,
        key_password=text("key.password"),
        client_auth=_client_auth(text("client.auth") or ClientAuth.NONE.value),
        versions=_versions(text("enabled.protocols")),
        cipher_suites=tuple(part.strip() for part in text("cipher.suites").split(",") if part.strip()),
        verifies_hostname=_verifies_hostname(values.get("ssl.endpoint.identification.algorithm", HTTPS)),
    )


def _store(prefix: str, values: Mapping[str, str], *, certificates: str, key: str) -> CertificateStore:
    location = values.get(f"{prefix}.location", "").strip()
    kind = values.get(f"{prefix}.type", "").strip().upper()
    if kind and kind not in STORE_TYPES:
        raise InvalidConfig(f"{prefix}.type is {shorten(kind)}; it must be one of {', '.join(STORE_TYPES)}.")
    if certificates or key:
        if kind != PEM:
            raise InvalidConfig(f"{prefix}.type must be PEM where certificates are given as text.")
        if location:
            raise InvalidConfig(f"{prefix}.location must not be set where certificates are given as text.")
    return CertificateStore(
        type=kind or JKS,
        location=location,
        password=values.get(f"{prefix}.password", ""),
        certificates=certificates,
        key=key,
    )


def _client_auth(text: str) -> ClientAuth:
    try:
        return ClientAuth(text.lower())
    except ValueError:
        known = ", ".join(each.value for each in ClientAuth)
        raise InvalidConfig(f"ssl.client.auth is {shorten(text)}; it must be one of {known}.") from None


def _versions(text: str) -> tuple[str, ...]:
    versions = tuple(part.strip() for part in text.split(",") if part.strip()) or TLS_VERSIONS
    for version in versions:
        if version not in TLS_VERSIONS:
            raise InvalidConfig(
                f"ssl.enabled.protocols has {shorten(version)}; supported are {' and '.join(TLS_VERSIONS)}."
            )
    return versions


def _verifies_hostname(algorithm: str) -> bool:
    if algorithm.strip().lower() not in ("", HTTPS):
        raise InvalidConfig(
            f"ssl.endpoint.identification.algorithm is {shorten(algorithm)}; it must be https, "
            "or empty to accept a certificate for any host name."
        )
    return bool(algorithm.strip())
