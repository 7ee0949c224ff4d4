"""The security of our own client, from the settings of Kafka's Java clients: `security.protocol`, `ssl.…`, `sasl.…`."""

from collections.abc import Mapping
from typing import Final

from moldau.client.security import PLAINTEXT, ClientSecurity
from moldau.model.errors import InvalidConfig
from moldau.model.listeners import SecurityProtocol
from moldau.model.settings import shorten
from moldau.model.tls import parse_tls

SECURITY_PROTOCOL: Final = "security.protocol"
SECURITY_PREFIXES: Final = ("security.", "ssl.", "sasl.")


def parse_security(settings: Mapping[str, str]) -> ClientSecurity:
    """Read the security settings among `settings`; `InvalidConfig` says what is wrong with them."""
    name = settings.get(SECURITY_PROTOCOL, SecurityProtocol.PLAINTEXT.name).strip().upper()
    try:
        protocol = SecurityProtocol[name]
    except KeyError:
        known = ", ".join(SecurityProtocol.__members__)
        raise InvalidConfig(f"{SECURITY_PROTOCOL} is {shorten(name)}; it must be one of {known}.") from None
    if protocol is SecurityProtocol.PLAINTEXT:
        return PLAINTEXT
    if protocol is not SecurityProtocol.SSL:
        raise InvalidConfig(f"{SECURITY_PROTOCOL}={protocol.name} is not supported by this client yet.")
    return ClientSecurity(protocol=protocol, tls=parse_tls(settings))
