"""SASL: mechanisms, sessions, and what an unauthenticated connection may use."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from moldau.model.errors import InvalidConfig
from moldau.model.jaas import JaasConfig, parse_jaas
from moldau.model.settings import Kind, Scope, parse_settings, setting
from moldau.model.units import DAY_MS, HOUR_MS, SECOND_MS, KiB

JAAS: Final = "sasl.jaas.config"
LISTENER_PREFIX: Final = "listener.name."
VALIDATOR: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"


def _jaas(text: str | None) -> str | None:
    try:
        if text is not None:
            parse_jaas(text)
    except InvalidConfig as error:
        return str(error)
    return None


def _validator(name: str | None) -> str | None:
    if name in (None, "", VALIDATOR):
        return None
    return f"it must be {VALIDATOR}, for OAUTHBEARER: other classes cannot be loaded here"


@dataclass(frozen=True, kw_only=True)
class SaslSettings:
    """Authentication by SASL. Most may be set for one listener, or for one mechanism of a listener."""

    sasl_enabled_mechanisms: tuple[str, ...] = setting(
        "sasl.enabled.mechanisms",
        ("GSSAPI",),
        scope=Scope.PER_BROKER,
        doc="The mechanisms offered to clients: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER.",
    )
    sasl_mechanism_inter_broker: str = setting(
        "sasl.mechanism.inter.broker.protocol",
        "GSSAPI",
        scope=Scope.PER_BROKER,
        doc="The mechanism by which this broker logs in at others.",
    )
    sasl_mechanism_controller: str = setting(
        "sasl.mechanism.controller.protocol",
        "GSSAPI",
        doc="The mechanism by which this node logs in at controllers.",
    )
    sasl_jaas_config: str | None = setting(
        JAAS,
        None,
        kind=Kind.PASSWORD,
        check=_jaas,
        scope=Scope.PER_BROKER,
        doc="Credentials, as listener.name.NAME.MECHANISM.sasl.jaas.config: user_NAME for PLAIN, username and password "
        "for logging in at other nodes.",
    )
    sasl_server_callback_handler_class: str | None = setting(
        "sasl.server.callback.handler.class",
        None,
        kind=Kind.CLASS,
        check=_validator,
        doc="The class that checks credentials; only Kafka's validator of OAUTHBEARER tokens is known.",
    )
    sasl_server_max_receive_size: int = setting(
        "sasl.server.max.receive.size",
        512 * KiB,
        kind=Kind.INT,
        at_least=1,
        doc="A larger request closes a connection that is not authenticated yet.",
    )
    connection_failed_authentication_delay_ms: int = setting(
        "connection.failed.authentication.delay.ms",
        100,
        kind=Kind.INT,
        at_least=0,
        doc="The response to a failed authentication is sent after this delay, and the connection is closed.",
    )
    connections_max_reauth_ms: int = setting(
        "connections.max.reauth.ms",
        0,
        doc="A client must authenticate again within this time, or its connection is closed; 0 sets no limit.",
    )
    authentication_timeout_ms: int = setting(
        "moldau.authentication.timeout.ms",
        30 * SECOND_MS,
        at_least=100,
        doc="A connection to a SASL listener that has not authenticated within this time is closed.",
    )


_OAUTH: Final = "sasl.oauthbearer"


@dataclass(frozen=True, kw_only=True)
class OAuthSettings:
    """Tokens of OAUTHBEARER: JSON Web Tokens of one issuer."""

    jwks_url: str | None = setting(
        f"{_OAUTH}.jwks.endpoint.url", None, doc="The URL of the issuer's keys, which begins with https:// or file:///."
    )
    jwks_refresh_ms: int = setting(
        f"{_OAUTH}.jwks.endpoint.refresh.ms", HOUR_MS, doc="The issuer's keys are fetched again after this time."
    )
    issuer: str | None = setting(f"{_OAUTH}.expected.issuer", None, doc="The accepted issuer; unset accepts any.")
    audience: tuple[str, ...] = setting(
        f"{_OAUTH}.expected.audience", (), doc="The accepted audiences; empty accepts any."
    )
    clock_skew_seconds: int = setting(
        f"{_OAUTH}.clock.skew.seconds", 30, kind=Kind.INT, doc="How far the clock of the issuer may differ."
    )
    scope_claim: str = setting(f"{_OAUTH}.scope.claim.name", "scope", doc="The claim with the scope of a token.")
    sub_claim: str = setting(f"{_OAUTH}.sub.claim.name", "sub", doc="The claim with the name of the user.")
    unsecured_tokens: bool = setting(
        "moldau.sasl.oauthbearer.unsecured.tokens",
        False,
        doc="Accept tokens without signature, and no others: any client can make them. For development only.",
    )


@dataclass(frozen=True, kw_only=True)
class TokenSettings:
    """Delegation tokens (KIP-48)."""

    delegation_token_secret_key: str | None = setting(
        "delegation.token.secret.key",
        None,
        kind=Kind.PASSWORD,
        doc="The key that signs delegation tokens, the same on all nodes; without it there are no tokens.",
    )
    delegation_token_max_lifetime_ms: int = setting(
        "delegation.token.max.lifetime.ms",
        7 * DAY_MS,
        at_least=1,
        doc="A delegation token cannot be renewed beyond this time.",
    )
    delegation_token_expiry_time_ms: int = setting(
        "delegation.token.expiry.time.ms",
        DAY_MS,
        at_least=1,
        doc="A delegation token that is not renewed expires after this time.",
    )
    delegation_token_expiry_check_interval_ms: int = setting(
        "delegation.token.expiry.check.interval.ms",
        HOUR_MS,
        at_least=1,
        doc="Expired delegation tokens are removed in this interval.",
    )


def listener_texts(texts: Mapping[str, str], listener: str, mechanism: str = "") -> dict[str, str]:
    """Return the settings that apply to a listener, or to one of its mechanisms: the more specific ones win."""
    prefix = f"{LISTENER_PREFIX}{listener.lower()}."
    own = {name[len(prefix) :]: text for name, text in texts.items() if name.lower().startswith(prefix)}
    narrow = f"{mechanism.lower()}."
    narrowest = {name[len(narrow) :]: text for name, text in own.items() if name.lower().startswith(narrow)}
    return {**texts, **own, **(narrowest if mechanism else {})}


def sasl_settings_of(texts: Mapping[str, str], listener: str, mechanism: str = "") -> SaslSettings:
    """Return the SASL settings of a listener, or of one of its mechanisms."""
    return parse_settings(SaslSettings, listener_texts(texts, listener, mechanism))


def jaas_of(texts: Mapping[str, str], listener: str, mechanism: str) -> JaasConfig | None:
    """Return the login configuration of a listener's mechanism: as in Kafka, its own or none."""
    narrow = {name: text for name, text in texts.items() if name != JAAS}
    text = listener_texts(narrow, listener, mechanism).get(JAAS)
    return None if text is None else parse_jaas(text)


def oauth_settings_of(texts: Mapping[str, str], listener: str) -> OAuthSettings:
    """Return the settings for OAUTHBEARER of a listener."""
    return parse_settings(OAuthSettings, listener_texts(texts, listener, "oauthbearer"))
