"""TLS: certificates, versions, and how the certificate of a client becomes its principal. Per listener, and reloadable.

`listener.name.NAME.ssl.…` overrides `ssl.…` for one listener. Both may change while the broker runs, by AlterConfigs on
this broker; new connections use what is in effect then.
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from moldau.broker.access import ANONYMOUS
from moldau.broker.configs.principal_rules import PrincipalRules
from moldau.model.errors import InvalidConfig
from moldau.model.settings import Kind, Scope, setting
from moldau.model.tls import HTTPS, JKS, STORE_TYPES, TLS_VERSIONS, ClientAuth, TlsSettings, parse_tls

LISTENER_PREFIX: Final = "listener.name."
METRICS_LISTENER: Final = "metrics"  # whose ssl settings the metrics page uses
RULES: Final = "ssl.principal.mapping.rules"


def _rules(text: str) -> str | None:
    try:
        PrincipalRules.parse(text)
    except InvalidConfig as error:
        return str(error)
    return None


def _store_type(text: str) -> str | None:
    return None if text.upper() in STORE_TYPES else f"it must be one of {', '.join(STORE_TYPES)}"


def _algorithm(text: str) -> str | None:
    return None if text.strip().lower() in ("", HTTPS) else "it must be https, or empty"


@dataclass(frozen=True, kw_only=True)
class TlsListenerSettings:
    """TLS of all listeners that do not override it, and of the connections to other nodes."""

    ssl_keystore_type: str = setting(
        "ssl.keystore.type",
        JKS,
        check=_store_type,
        scope=Scope.PER_BROKER,
        doc="The format of the keystore: PEM or PKCS12; with JKS, Kafka's default, it is detected.",
    )
    ssl_keystore_location: str | None = setting(
        "ssl.keystore.location",
        None,
        scope=Scope.PER_BROKER,
        doc="The file with the private key and its certificate chain; changes of the file take effect by themselves.",
    )
    ssl_keystore_password: str | None = setting(
        "ssl.keystore.password",
        None,
        kind=Kind.PASSWORD,
        scope=Scope.PER_BROKER,
        doc="The password of a PKCS12 keystore.",
    )
    ssl_keystore_key: str | None = setting(
        "ssl.keystore.key",
        None,
        kind=Kind.PASSWORD,
        scope=Scope.PER_BROKER,
        doc="The private key as PEM text, with ssl.keystore.type=PEM and ssl.keystore.certificate.chain.",
    )
    ssl_keystore_certificate_chain: str | None = setting(
        "ssl.keystore.certificate.chain",
        None,
        kind=Kind.PASSWORD,
        scope=Scope.PER_BROKER,
        doc="The certificate and those of its intermediate authorities as PEM text.",
    )
    ssl_key_password: str | None = setting(
        "ssl.key.password",
        None,
        kind=Kind.PASSWORD,
        scope=Scope.PER_BROKER,
        doc="The password of an encrypted PEM key.",
    )
    ssl_truststore_type: str = setting(
        "ssl.truststore.type",
        JKS,
        check=_store_type,
        scope=Scope.PER_BROKER,
        doc="The format of the truststore: PEM or PKCS12; with JKS, Kafka's default, it is detected.",
    )
    ssl_truststore_location: str | None = setting(
        "ssl.truststore.location",
        None,
        scope=Scope.PER_BROKER,
        doc="The file with the trusted authorities; changes of the file take effect by themselves.",
    )
    ssl_truststore_password: str | None = setting(
        "ssl.truststore.password",
        None,
        kind=Kind.PASSWORD,
        scope=Scope.PER_BROKER,
        doc="The password of a PKCS12 truststore.",
    )
    ssl_truststore_certificates: str | None = setting(
        "ssl.truststore.certificates",
        None,
        kind=Kind.PASSWORD,
        scope=Scope.PER_BROKER,
        doc="The trusted authorities as PEM text, with ssl.truststore.type=PEM.",
    )
    ssl_client_auth: str = setting(
        "ssl.client.auth",
        ClientAuth.NONE.value,
        one_of=tuple(each.value for each in ClientAuth),
        scope=Scope.PER_BROKER,
        doc="Whether clients must present a certificate (required), may (requested), or are not requested to (none).",
    )
    ssl_enabled_protocols: tuple[str, ...] = setting(
        "ssl.enabled.protocols",
        TLS_VERSIONS,
        one_of=TLS_VERSIONS,
        scope=Scope.PER_BROKER,
        doc="The TLS versions that are accepted.",
    )
    ssl_cipher_suites: tuple[str, ...] = setting(
        "ssl.cipher.suites",
        (),
        scope=Scope.PER_BROKER,
        doc="The accepted cipher suites by their IANA names; by default OpenSSL's. Those of TLS 1.3 only all together.",
    )
    ssl_endpoint_identification_algorithm: str = setting(
        "ssl.endpoint.identification.algorithm",
        HTTPS,
        check=_algorithm,
        scope=Scope.PER_BROKER,
        doc="Whether connections to other nodes verify their host names (https) or not (empty).",
    )
    ssl_principal_mapping_rules: str = setting(
        RULES,
        "DEFAULT",
        check=_rules,
        doc="Rules RULE:pattern/replacement/[LU] that turn the subject of a certificate into a user name; the first "
        "match counts. Patterns are RE2's.",
    )


def listener_values(texts: Mapping[str, str], listener: str, prefix: str = "ssl.") -> dict[str, str]:
    """The settings under `prefix` for one listener: its own where it has them, the general ones elsewhere."""
    own = f"{LISTENER_PREFIX}{listener.lower()}."
    values = {name: text for name, text in texts.items() if name.startswith(prefix)}
    for name, text in texts.items():
        if name.startswith(own + prefix):
            values[name.removeprefix(own)] = text
    return values


def listener_tls(texts: Mapping[str, str], listener: str) -> TlsSettings:
    """The TLS settings of a listener, which also serve for connections to that listener of other nodes."""
    try:
        return parse_tls(listener_values(texts, listener))
    except InvalidConfig as error:
        raise InvalidConfig(f"Listener {listener}: {error}") from None


class ListenerTls:
    """TLS of one listener, as the settings have it now."""

    def __init__(
        self, listener: str, texts: Callable[[], Mapping[str, str]], *, identifies_clients: bool = True
    ) -> None:
        """`texts` returns the same object until a setting changes. SASL identifies clients in place of certificates."""
        self.identifies_clients = identifies_clients
        self._listener = listener
        self._texts = texts
        self._read = texts()
        self._settings = listener_tls(self._read, listener)
        rules = listener_values(self._read, listener).get(RULES, "DEFAULT")
        self._rules = PrincipalRules.parse(rules)

    def settings(self) -> TlsSettings:
        """The settings for a new connection; those before, if the new ones contradict each other."""
        texts = self._texts()
        if texts is not self._read:
            self._read = texts
            with contextlib.suppress(InvalidConfig):  # reported where broker settings are updated
                self._settings = listener_tls(texts, self._listener)
        return self._settings

    def principal(self, subject: str | None) -> str:
        """The principal of a client by its certificate; `InvalidConfig` if no rule applies."""
        return ANONYMOUS if subject is None else f"User:{self._rules.apply(subject)}"
