"""Client security, from the settings of Kafka's Java clients: `security.protocol`, `ssl.…`, `sasl.…`."""

from collections.abc import Mapping
from typing import Final

from moldau.client.sasl import Login, RandomBytes, login
from moldau.client.security import PLAINTEXT, ClientSecurity
from moldau.model.errors import InvalidConfig
from moldau.model.jaas import parse_jaas
from moldau.model.listeners import SecurityProtocol
from moldau.model.settings import shorten
from moldau.model.tls import parse_tls

SECURITY_PROTOCOL: Final = "security.protocol"
MECHANISM: Final = "sasl.mechanism"
JAAS: Final = "sasl.jaas.config"
# librdkafka's names: a shorter form than a JAAS configuration.
USERNAME: Final = "sasl.username"
PASSWORD: Final = "sasl.password"
SECURITY_PREFIXES: Final = ("security.", "ssl.", "sasl.")


def parse_security(settings: Mapping[str, str], randbytes: RandomBytes) -> ClientSecurity:
    """Read the security settings among `settings`; `InvalidConfig` if they are invalid."""
    name = settings.get(SECURITY_PROTOCOL, SecurityProtocol.PLAINTEXT.name).strip().upper()
    try:
        protocol = SecurityProtocol[name]
    except KeyError:
        known = ", ".join(SecurityProtocol.__members__)
        raise InvalidConfig(f"{SECURITY_PROTOCOL} is {shorten(name)}; it must be one of {known}.") from None
    if protocol is SecurityProtocol.PLAINTEXT:
        return PLAINTEXT
    return ClientSecurity(
        protocol=protocol,
        tls=parse_tls(settings) if protocol.needs_tls else None,
        sasl=_login(settings, randbytes) if protocol.needs_sasl else None,
    )


def _login(settings: Mapping[str, str], randbytes: RandomBytes) -> Login:
    mechanism = settings.get(MECHANISM, "").strip()
    if not mechanism:
        raise InvalidConfig(f"{MECHANISM} must be set for this {SECURITY_PROTOCOL}: SCRAM-SHA-512, PLAIN, …")
    username, password, is_by_token = settings.get(USERNAME), settings.get(PASSWORD), False
    if username is None and settings.get(JAAS):
        jaas = parse_jaas(settings[JAAS])
        username, password = jaas.username, jaas.password
        is_by_token = jaas.options.get("tokenauth", "").lower() == "true"
    try:
        return login(mechanism, username, password, randbytes, is_by_token=is_by_token)
    except InvalidConfig as error:
        raise InvalidConfig(f"{error} Set {USERNAME} and {PASSWORD}, or {JAAS}.") from None
