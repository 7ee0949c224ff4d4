"""Translates the TLS and SASL settings of Java clients to librdkafka."""

import logging
import re
from collections.abc import Mapping
from typing import Final

from pyspark_moldau.options.offset_limits import OptionError

log = logging.getLogger("pyspark_moldau")

_AS_THEY_ARE: Final = {
    "sasl.mechanism": "sasl.mechanism",
    "sasl.kerberos.service.name": "sasl.kerberos.service.name",
    "sasl.kerberos.kinit.cmd": "sasl.kerberos.kinit.cmd",
    "sasl.oauthbearer.token.endpoint.url": "sasl.oauthbearer.token.endpoint.url",
    "ssl.cipher.suites": "ssl.cipher.suites",
    "ssl.key.password": "ssl.key.password",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.truststore.certificates": "ssl.ca.pem",
}
# Translated in combination with other settings.
_COMPOSED: Final = frozenset(
    "sasl.jaas.config ssl.endpoint.identification.algorithm ssl.keystore.location ssl.keystore.password "
    "ssl.keystore.type ssl.truststore.location ssl.truststore.password ssl.truststore.type".split()
)
_CLASSES: Final = frozenset(
    "sasl.client.callback.handler.class sasl.login.callback.handler.class sasl.login.class "
    "ssl.engine.factory.class".split()
)
_IGNORED: Final = frozenset(
    "sasl.kerberos.min.time.before.relogin sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor "
    "sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds "
    "sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor sasl.login.refresh.window.jitter "
    "sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms sasl.oauthbearer.clock.skew.seconds "
    "sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer sasl.oauthbearer.scope.claim.name "
    "sasl.oauthbearer.sub.claim.name ssl.enabled.protocols ssl.keymanager.algorithm ssl.protocol ssl.provider "
    "ssl.secure.random.implementation ssl.trustmanager.algorithm".split()
)
SECURITY_NAMES: Final = frozenset(_AS_THEY_ARE) | _COMPOSED | _CLASSES | _IGNORED

_PEM: Final = "PEM"
_JAAS_LOGIN: Final = re.compile(r"([\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(.*);", re.S | re.I)
_JAAS_OPTION: Final = re.compile(r"""([\w.]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""")


def security_settings(java: Mapping[str, str]) -> dict[str, str]:
    """Return librdkafka's settings; raises OptionError with a remedy for settings that have no equivalent."""
    for name in java:
        if name in _CLASSES:
            raise OptionError(f"Option 'kafka.{name}' names a Java class, which is not supported.")
        if name in _IGNORED:
            log.warning("Option 'kafka.%s' has no effect here and is ignored.", name)
    settings = {_AS_THEY_ARE[name]: value for name, value in java.items() if name in _AS_THEY_ARE}
    settings |= _trust(java) | _identity(java)
    if "ssl.endpoint.identification.algorithm" in java:
        settings["ssl.endpoint.identification.algorithm"] = java["ssl.endpoint.identification.algorithm"] or "none"
    if "sasl.jaas.config" in java:
        settings |= jaas_settings(java["sasl.jaas.config"])
    return settings


def _kind(java: Mapping[str, str], store: str) -> str:
    """The type of a store. Without one, a file NAME.pem is PEM, as for Moldau's own client; Java's default is JKS."""
    by_name = _PEM if java[f"{store}.location"].lower().endswith(".pem") else "JKS"
    return java.get(f"{store}.type", by_name).upper()


def _trust(java: Mapping[str, str]) -> dict[str, str]:
    location = java.get("ssl.truststore.location")
    if location is None:
        return {}
    kind = _kind(java, "ssl.truststore")
    if kind != _PEM:
        raise OptionError(
            f"Option 'kafka.ssl.truststore.location' is a {kind} store, readable only by Java. Export the certificates "
            "(keytool -exportcert -rfc) and set 'kafka.ssl.truststore.type' to PEM."
        )
    return {"ssl.ca.location": location}


def _identity(java: Mapping[str, str]) -> dict[str, str]:
    location = java.get("ssl.keystore.location")
    if location is None:
        return {}
    match _kind(java, "ssl.keystore"):
        case "PEM":
            return {"ssl.certificate.location": location, "ssl.key.location": location}
        case "PKCS12":
            return {"ssl.keystore.location": location, "ssl.keystore.password": java.get("ssl.keystore.password", "")}
        case kind:
            raise OptionError(
                f"Option 'kafka.ssl.keystore.location' is a {kind} store, which only Java can read. Convert it "
                "(keytool -importkeystore -deststoretype PKCS12) and set 'kafka.ssl.keystore.type' to PKCS12."
            )


def jaas_settings(text: str) -> dict[str, str]:
    """`org…PlainLoginModule required username="alice" password="secret";`"""
    found = _JAAS_LOGIN.search(text)
    if found is None:
        raise OptionError("Option 'kafka.sasl.jaas.config' is not of the form: <login module> required <options>;")
    module = found[1].rsplit(".", 1)[-1]
    given = {each[1]: _unescaped(each[2] or each[3] or each[4] or "") for each in _JAAS_OPTION.finditer(found[2])}
    match module:
        case "PlainLoginModule" | "ScramLoginModule":
            return _renamed(module, given, {"username": "sasl.username", "password": "sasl.password"})
        case "OAuthBearerLoginModule":
            return {"sasl.oauthbearer.method": "oidc"} | _renamed(
                module,
                given,
                {"clientId": "sasl.oauthbearer.client.id", "clientSecret": "sasl.oauthbearer.client.secret"},
                {"scope": "sasl.oauthbearer.scope"},
            )
        case "Krb5LoginModule":
            return _renamed(
                module,
                given,
                {"principal": "sasl.kerberos.principal", "keyTab": "sasl.kerberos.keytab"},
                {"serviceName": "sasl.kerberos.service.name"},
            )
        case _:
            raise OptionError(f"Option 'kafka.sasl.jaas.config' names {found[1]}, which is not supported.")


def _renamed(
    module: str, given: Mapping[str, str], needed: Mapping[str, str], optional: Mapping[str, str] | None = None
) -> dict[str, str]:
    missing = [name for name in needed if name not in given]
    if missing:
        raise OptionError(f"Option 'kafka.sasl.jaas.config': {module} needs {' and '.join(missing)}.")
    return {new: given[old] for old, new in {**needed, **(optional or {})}.items() if old in given}


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)
