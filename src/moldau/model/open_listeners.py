"""Listeners of a node that let anyone on the network in: bound beyond loopback, without authentication or ACLs."""

from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Final

from moldau.model.listeners import LOCALHOST, Listener, SecurityProtocol

ANONYMOUS: Final = "User:ANONYMOUS"
_AUTHORIZER: Final = "authorizer.class.name"
_SUPER_USERS: Final = "super.users"
_ALLOW_EVERYONE: Final = "allow.everyone.if.no.acl.found"
_CLIENT_AUTH: Final = "ssl.client.auth"


def open_listeners(bound: Iterable[Listener], texts: Mapping[str, str]) -> list[Listener]:
    """Return these listeners, by the settings of the node: `texts` has their values by name."""
    if _denies_anonymous(texts):
        return []
    return [each for each in bound if not is_loopback(each.address.host) and not _authenticates(each, texts)]


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect. A name other than localhost may be any address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == LOCALHOST


def _authenticates(listener: Listener, texts: Mapping[str, str]) -> bool:
    if listener.protocol is not SecurityProtocol.SSL:
        return listener.protocol.needs_sasl
    of_all = texts.get(_CLIENT_AUTH, "")
    return texts.get(f"listener.name.{listener.name.lower()}.{_CLIENT_AUTH}", of_all).strip().lower() == "required"


def _denies_anonymous(texts: Mapping[str, str]) -> bool:
    """Whether an authorizer denies what no ACL allows to clients without a name."""
    super_users = [each.strip() for each in texts.get(_SUPER_USERS, "").split(";")]
    allows_everyone = texts.get(_ALLOW_EVERYONE, "").strip().lower() == "true"
    return bool(texts.get(_AUTHORIZER, "").strip()) and not allows_everyone and ANONYMOUS not in super_users
