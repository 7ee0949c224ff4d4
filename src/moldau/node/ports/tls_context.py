"""SSL contexts, made from TLS settings and made again when the files behind them change.

A context is built when it is first needed. The files are looked at again when a connection needs the context, at most
once a second. If the new files cannot be used (a key may be replaced before its certificate), connections keep the old
context until they can.
"""

import logging
import os
import re
import ssl
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Final

from moldau.model.errors import InvalidConfig
from moldau.model.tls import ClientAuth, TlsSettings
from moldau.node.ports.certificate_files import Identity, read_authorities, read_identity

logger = logging.getLogger(__name__)

CHECK_S: Final = 1.0  # between two looks at the files
CONTEXTS_MAX: Final = 64  # one per listener and client; settings that changed leave old ones behind
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_TLS13_SUITES: Final = frozenset(
    "TLS_AES_256_GCM_SHA384 TLS_CHACHA20_POLY1305_SHA256 TLS_AES_128_GCM_SHA256 "
    "TLS_AES_128_CCM_SHA256 TLS_AES_128_CCM_8_SHA256".split()
)
_CLIENT_AUTH: Final = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.REQUESTED: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
}

_Stamp = tuple[int, int, int]


@dataclass(slots=True)
class _Entry:
    context: ssl.SSLContext
    stamps: tuple[_Stamp | None, ...]
    checked_s: float


class TlsContexts:
    """The contexts of a network, by settings."""

    def __init__(self, now_s: Callable[[], float] = monotonic) -> None:
        self._now_s = now_s
        self._entries: dict[tuple[bool, TlsSettings], _Entry] = {}

    def server(self, settings: TlsSettings) -> ssl.SSLContext:
        """Return the context for a listener; `InvalidConfig` if there has been none and the settings are unusable."""
        return self._context(True, settings)

    def client(self, settings: TlsSettings) -> ssl.SSLContext:
        return self._context(False, settings)

    def _context(self, is_server: bool, settings: TlsSettings) -> ssl.SSLContext:
        key = is_server, settings
        now_s = self._now_s()
        entry = self._entries.get(key)
        if entry is None:
            stamps = _stamps(settings)
            entry = _Entry(_make(is_server, settings), stamps, now_s)
            self._entries[key] = entry
            if len(self._entries) > CONTEXTS_MAX:
                del self._entries[next(iter(self._entries))]
        elif now_s - entry.checked_s >= CHECK_S:
            entry.checked_s = now_s
            self._renew(entry, is_server, settings)
        return entry.context

    def _renew(self, entry: _Entry, is_server: bool, settings: TlsSettings) -> None:
        stamps = _stamps(settings)
        if stamps == entry.stamps:
            return
        entry.stamps = stamps
        try:
            entry.context = _make(is_server, settings)
        except InvalidConfig as error:
            logger.warning("TLS files changed but cannot be used, so the previous certificates stay in use: %s", error)
        else:
            logger.info("TLS files changed: new connections use %s", settings.keystore.location or "the new truststore")


class ListenerContext:
    """The context of a listener. Where changed settings cannot be used, it stays what it was."""

    def __init__(self, contexts: TlsContexts, settings: Callable[[], TlsSettings]) -> None:
        """`InvalidConfig` if the settings cannot be used from the start."""
        self._contexts = contexts
        self._settings = settings
        self._rejected: TlsSettings | None = None
        self._used = settings()
        contexts.server(self._used)

    def current(self) -> ssl.SSLContext:
        settings = self._settings()
        if settings != self._used and settings != self._rejected:
            try:
                context = self._contexts.server(settings)
            except InvalidConfig as error:
                self._rejected = settings
                logger.warning("TLS settings changed but cannot be used, so the previous ones stay in use: %s", error)
            else:
                self._used = settings
                return context
        return self._contexts.server(self._used)


def _stamps(settings: TlsSettings) -> tuple[_Stamp | None, ...]:
    locations = (settings.keystore.location, settings.truststore.location)
    return tuple(_stamp(location) for location in locations if location)


def _stamp(location: str) -> _Stamp | None:
    try:
        status = os.stat(location)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _make(is_server: bool, settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    # As in Java, any certificate of the truststore is an anchor, be it an intermediate or the peer's own.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    _limit(context, settings)
    if is_server:
        # Every handshake verifies the client: a resumed session would outlive its certificate. Besides, a ticket that
        # a client never reads turns its close into a reset, in which data can be lost.
        context.options |= ssl.OP_NO_TICKET | ssl.OP_CIPHER_SERVER_PREFERENCE
        context.num_tickets = 0
        context.verify_mode = _CLIENT_AUTH[settings.client_auth]
    else:
        context.check_hostname = settings.verifies_hostname
    identity = read_identity(settings)
    if identity is not None:
        _load_identity(context, identity)
    elif is_server:
        raise InvalidConfig("A listener with TLS needs a certificate: set ssl.keystore.location (or ssl.keystore.key).")
    if not is_server or settings.client_auth is not ClientAuth.NONE:
        _load_authorities(context, settings, is_server)
    return context


def _load_identity(context: ssl.SSLContext, identity: Identity) -> None:
    """The standard library loads keys from files only; ours may come from a setting or from a PKCS12 store."""
    with tempfile.TemporaryFile() if not hasattr(os, "memfd_create") else os.fdopen(_memory_file(), "wb") as file:
        file.write(identity.pem.encode())
        file.flush()
        try:
            context.load_cert_chain(f"/dev/fd/{file.fileno()}", password=lambda: identity.password)
        except ssl.SSLError as error:
            raise InvalidConfig(f"{identity.origin}: {_explain_identity(error)}") from None
        except OSError as error:
            raise InvalidConfig(f"{identity.origin}: {error.strerror}") from None


def _memory_file() -> int:
    return os.memfd_create("moldau-identity", os.MFD_CLOEXEC)


def _explain_identity(error: ssl.SSLError) -> str:
    reason = (error.reason or str(error)).replace("_", " ").lower()
    match reason:
        case "key values mismatch":
            return "the private key does not belong to the first certificate."
        case "bad decrypt" | "bad password read" | "problems getting password" | "bad key" | "maybe wrong password":
            return "the private key cannot be decrypted: check ssl.key.password."
        case "ee key too small" | "ca key too small" | "ca md too weak":
            return f"OpenSSL rejects the certificate as too weak ({reason})."
    return f"the key and certificates cannot be loaded ({reason})."


def _load_authorities(context: ssl.SSLContext, settings: TlsSettings, is_server: bool) -> None:
    if settings.truststore.is_empty:
        if is_server:
            raise InvalidConfig(
                f"ssl.client.auth={settings.client_auth.value} needs ssl.truststore.location (or "
                "ssl.truststore.certificates): the authorities that issue client certificates."
            )
        context.load_default_certs()
        return
    text, origin = read_authorities(settings.truststore)
    try:
        context.load_verify_locations(cadata=text)
    except ssl.SSLError as error:
        reason = (error.reason or str(error)).replace("_", " ").lower()
        raise InvalidConfig(f"{origin}: the certificates cannot be loaded ({reason}).") from None


def _limit(context: ssl.SSLContext, settings: TlsSettings) -> None:
    """Set versions and cipher suites."""
    versions = [_VERSIONS[version] for version in settings.versions]
    suites = settings.cipher_suites
    if suites:
        has_13 = any(suite in _TLS13_SUITES for suite in suites)
        legacy = [_openssl_name(suite) for suite in suites if suite not in _TLS13_SUITES]
        # As in Java, the list governs both versions: a version none of whose suites is listed is off.
        versions = [version for version in versions if (has_13 if version is ssl.TLSVersion.TLSv1_3 else bool(legacy))]
        if not versions:
            raise InvalidConfig("ssl.cipher.suites has no suite of a version in ssl.enabled.protocols.")
        _set_ciphers(context, legacy)
    context.minimum_version, context.maximum_version = min(versions), max(versions)


def _set_ciphers(context: ssl.SSLContext, names: list[str]) -> None:
    if not names:
        return
    for name in names:
        try:
            context.set_ciphers(name)
        except ssl.SSLError:
            raise InvalidConfig(f"ssl.cipher.suites has {name}, which this OpenSSL does not support.") from None
    context.set_ciphers(":".join(names))


_SUITE: Final = re.compile(r"TLS_(\w+?)_WITH_(\w+)")


def _openssl_name(suite: str) -> str:
    """Translate an IANA name (TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256) to OpenSSL's (ECDHE-RSA-AES128-GCM-SHA256)."""
    match = _SUITE.fullmatch(suite)
    if match is None:
        if not re.fullmatch(r"[A-Z0-9-]+", suite):
            raise InvalidConfig("ssl.cipher.suites must be a list of cipher suite names.")
        return suite
    exchange = "" if match[1] == "RSA" else match[1].replace("_", "-") + "-"
    cipher = re.sub(r"AES_(\d+)_CBC", r"AES\1", match[2])
    cipher = re.sub(r"AES_(\d+)", r"AES\1", cipher).replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    return exchange + cipher.replace("_", "-")
