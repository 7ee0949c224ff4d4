"""Kafka's settings for TLS, SASL, delegation tokens and authorization that have no effect."""

from typing import Final

from moldau.model.kafka_settings.row import (
    BOOLEAN,
    CLASS,
    DOUBLE,
    INT,
    LIST,
    LONG,
    PASSWORD,
    PER_BROKER,
    SHORT,
    STRING,
    one_of_in_any_case,
    row,
)
from moldau.model.units import MINUTE_MS, SECOND_MS

TLS: Final = (
    row("ssl.allow.dn.changes", BOOLEAN, False, "Allow a renewed certificate to change its distinguished name."),
    row("ssl.allow.san.changes", BOOLEAN, False, "Allow a renewed certificate to change its alternative names."),
    row("ssl.engine.factory.class", CLASS, None, "Class of the TLS engine factory.", scope=PER_BROKER),
    row("ssl.keymanager.algorithm", STRING, "SunX509", "The key algorithm of the Java platform.", scope=PER_BROKER),
    row("ssl.protocol", STRING, "TLSv1.3", "The preferred TLS version.", scope=PER_BROKER),
    row("ssl.provider", STRING, None, "The TLS provider of the Java platform.", scope=PER_BROKER),
    row("ssl.secure.random.implementation", STRING, None, "The random source for TLS.", scope=PER_BROKER),
    row("ssl.trustmanager.algorithm", STRING, "PKIX", "The trust algorithm of the Java platform.", scope=PER_BROKER),
    row("security.providers", STRING, None, "Classes that provide security algorithms."),
)

SASL: Final = (
    row("sasl.client.callback.handler.class", CLASS, None, "Callback handler class of the client side."),
    row("sasl.login.callback.handler.class", CLASS, None, "Callback handler class of logins."),
    row("sasl.login.class", CLASS, None, "Login class."),
    row("sasl.login.connect.timeout.ms", INT, None, "Timeout of connecting to the token service."),
    row("sasl.login.read.timeout.ms", INT, None, "Timeout of reading a response of the token service."),
    row(
        "sasl.login.refresh.buffer.seconds",
        SHORT,
        300,
        "How long before its expiry a token is refreshed.",
        scope=PER_BROKER,
    ),
    row("sasl.login.refresh.min.period.seconds", SHORT, 60, "Minimum time between refreshes.", scope=PER_BROKER),
    row(
        "sasl.login.refresh.window.factor",
        DOUBLE,
        0.8,
        "Fraction of its lifetime after which a token is refreshed.",
        scope=PER_BROKER,
    ),
    row("sasl.login.refresh.window.jitter", DOUBLE, 0.05, "Jitter of the token refresh.", scope=PER_BROKER),
    row("sasl.login.retry.backoff.ms", LONG, 100, "Initial retry backoff of token requests."),
    row("sasl.login.retry.backoff.max.ms", LONG, 10 * SECOND_MS, "Maximum retry backoff of token requests."),
    row("sasl.kerberos.kinit.cmd", STRING, "/usr/bin/kinit", "Path of the kinit command.", scope=PER_BROKER),
    row(
        "sasl.kerberos.min.time.before.relogin",
        LONG,
        MINUTE_MS,
        "Minimum time between Kerberos logins.",
        scope=PER_BROKER,
    ),
    row(
        "sasl.kerberos.principal.to.local.rules",
        LIST,
        ("DEFAULT",),
        "Rules that map Kerberos principals to user names.",
        scope=PER_BROKER,
    ),
    row("sasl.kerberos.service.name", STRING, None, "The name of the Kerberos service.", scope=PER_BROKER),
    row("sasl.kerberos.ticket.renew.jitter", DOUBLE, 0.05, "Jitter of the ticket renewal.", scope=PER_BROKER),
    row(
        "sasl.kerberos.ticket.renew.window.factor",
        DOUBLE,
        0.8,
        "Fraction of its lifetime after which a ticket is renewed.",
        scope=PER_BROKER,
    ),
)

_TOKENS: Final = "sasl.oauthbearer"
OAUTH: Final = (
    row(
        f"{_TOKENS}.assertion.algorithm",
        STRING,
        "RS256",
        "Signature algorithm of assertions.",
        check=one_of_in_any_case("es256", "rs256"),
    ),
    row(f"{_TOKENS}.assertion.claim.aud", STRING, None, "The aud claim of assertions."),
    row(f"{_TOKENS}.assertion.claim.exp.seconds", INT, 300, "Lifetime of assertions.", at_least=0, at_most=86400),
    row(f"{_TOKENS}.assertion.claim.iss", STRING, None, "The iss claim of assertions."),
    row(f"{_TOKENS}.assertion.claim.jti.include", BOOLEAN, False, "Whether assertions have a jti claim."),
    row(
        f"{_TOKENS}.assertion.claim.nbf.seconds",
        INT,
        60,
        "How far the nbf claim of assertions is in the past.",
        at_least=0,
        at_most=3600,
    ),
    row(f"{_TOKENS}.assertion.claim.sub", STRING, None, "The sub claim of assertions."),
    row(f"{_TOKENS}.assertion.file", STRING, None, "File with a prepared assertion."),
    row(f"{_TOKENS}.assertion.private.key.file", STRING, None, "The file with the signing key."),
    row(f"{_TOKENS}.assertion.private.key.passphrase", PASSWORD, None, "The passphrase of the signing key."),
    row(f"{_TOKENS}.assertion.template.file", STRING, None, "File with additional claims."),
    row(f"{_TOKENS}.client.credentials.client.id", STRING, None, "The client's id at the token service."),
    row(f"{_TOKENS}.client.credentials.client.secret", PASSWORD, None, "The client's secret at the token service."),
    row(f"{_TOKENS}.jwks.endpoint.retry.backoff.ms", LONG, 100, "Initial retry backoff of key requests."),
    row(
        f"{_TOKENS}.jwks.endpoint.retry.backoff.max.ms", LONG, 10 * SECOND_MS, "Maximum retry backoff of key requests."
    ),
    row(
        f"{_TOKENS}.jwt.retriever.class",
        CLASS,
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever",
        "Class that retrieves tokens.",
    ),
    row(
        f"{_TOKENS}.jwt.validator.class",
        CLASS,
        "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator",
        "Class that validates tokens.",
    ),
    row(f"{_TOKENS}.scope", STRING, None, "Requested scope."),
    row(f"{_TOKENS}.token.endpoint.url", STRING, None, "URL of the token endpoint."),
)

ACCESS: Final = (
    row(
        "principal.builder.class",
        CLASS,
        "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
        "Class that determines the principal of a connection.",
        scope=PER_BROKER,
    ),
)

ROWS: Final = (*TLS, *SASL, *OAUTH, *ACCESS)
