"""Bound and advertised listeners of a node, in Kafka's syntax: `NAME://host:port,…`."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from moldau.model.errors import InvalidConfig
from moldau.model.ids import Address
from moldau.model.settings import shorten

LOCALHOST: Final = "localhost"
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_HOST: Final = re.compile(r"[A-Za-z0-9_.%-]{0,255}")
_PORT: Final = re.compile(r"[0-9]{1,5}")


class SecurityProtocol(Enum):
    """The security protocol of a listener, with Kafka's numbers."""

    PLAINTEXT = 0
    SSL = 1
    SASL_PLAINTEXT = 2
    SASL_SSL = 3

    @property
    def needs_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)

    @property
    def needs_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)


@dataclass(frozen=True, slots=True)
class Listener:
    """A named address. An empty host means all interfaces; port 0 lets the system choose."""

    name: str
    protocol: SecurityProtocol
    address: Address

    def __str__(self) -> str:
        return f"{self.name}://{self.address}"


@dataclass(frozen=True, slots=True)
class Listeners:
    """All listeners of a node: bound, advertised, for brokers and for controllers."""

    bound: tuple[Listener, ...]
    advertised: tuple[Listener, ...]
    inter_broker: str
    controllers: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def for_clients(self) -> tuple[Listener, ...]:
        """The bound listeners that serve clients and brokers."""
        return tuple(each for each in self.bound if each.name not in self.controllers)

    @property
    def for_controllers(self) -> tuple[Listener, ...]:
        """The bound listeners for controllers, and for requests of brokers to them."""
        return tuple(each for each in self.bound if each.name in self.controllers)

    def advertised_on(self, name: str, bound_ports: Mapping[str, int] | None = None) -> Address | None:
        """Return the address advertised on listener `name`; `bound_ports` replaces port 0."""
        for listener in self.advertised:
            if listener.name == name:
                port = listener.address.port or (bound_ports or {}).get(name, 0)
                return Address(listener.address.host, port)
        return None


def parse_address(text: str) -> Address:
    """Parse `host:port`; an IPv6 host is in brackets."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not _PORT.fullmatch(port) or int(port) > 65535:
        raise InvalidConfig(f"'{shorten(text)}' is not host:port with a port from 0 to 65535.")
    if host.startswith("[") and host.endswith("]"):
        return Address(_ipv6(host[1:-1], text), int(port))
    if ":" in host:
        raise InvalidConfig(f"'{shorten(text)}' has an IPv6 address: write it in brackets, as in [::1]:9092.")
    if not _HOST.fullmatch(host):
        raise InvalidConfig(f"'{shorten(text)}' has a host that is neither a name nor an address.")
    return Address(host, int(port))


def _ipv6(host: str, text: str) -> str:
    try:
        IPv6Address(host)
    except ValueError:
        raise InvalidConfig(f"'{shorten(text)}' has a host in brackets that is not an IPv6 address.") from None
    return host


def parse_protocol_map(text: str) -> dict[str, SecurityProtocol]:
    """Parse `NAME:PROTOCOL,…` by upper-case listener name; empty text maps each protocol's name to itself."""
    if not text.strip():
        return {protocol.name: protocol for protocol in SecurityProtocol}
    protocols: dict[str, SecurityProtocol] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, _, protocol = part.partition(":")
        key = name.strip().upper()
        if protocol.strip().upper() not in SecurityProtocol.__members__:
            known = ", ".join(SecurityProtocol.__members__)
            raise InvalidConfig(
                f"'{shorten(part)}' in listener.security.protocol.map is not NAME:PROTOCOL with one of {known}."
            )
        if key in protocols:
            raise InvalidConfig(f"listener.security.protocol.map has {key} twice.")
        protocols[key] = SecurityProtocol[protocol.strip().upper()]
    return protocols


def parse_listeners(setting: str, parts: Iterable[str], protocols: Mapping[str, SecurityProtocol]) -> list[Listener]:
    """Parse the listeners of `setting`; each name may appear once."""
    listeners = [_parse_listener(setting, part.strip(), protocols) for part in parts]
    names = [listener.name for listener in listeners]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidConfig(f"Each listener must have a different name, but {setting} has {twice} twice.")
    return listeners


def _parse_listener(setting: str, part: str, protocols: Mapping[str, SecurityProtocol]) -> Listener:
    name, separator, address = part.partition("://")
    if not separator or not _NAME.fullmatch(name):
        raise InvalidConfig(
            f"'{shorten(part)}' in {setting} is not NAME://host:port, such as PLAINTEXT://localhost:9092."
        )
    try:
        parsed = parse_address(address)
    except InvalidConfig as error:
        raise InvalidConfig(f"{error} ({setting}, listener {name})") from None
    protocol = protocols.get(name.upper())
    if protocol is None:
        raise InvalidConfig(
            f"No security protocol defined for listener {name}: add {name.upper()}:PLAINTEXT (or another protocol) "
            "to listener.security.protocol.map."
        )
    return Listener(name.upper(), protocol, parsed)


def resolve_listeners(
    listeners: Sequence[str],
    advertised: Sequence[str] = (),
    protocol_map: str = "",
    inter_broker: str = "",
    inter_broker_protocol: str = "PLAINTEXT",
    controllers: Sequence[str] = (),
    roles: Sequence[str] = ("broker", "controller"),
) -> Listeners:
    """Resolve all listener settings and check that they are consistent."""
    controller_names = tuple(name.upper() for name in controllers)
    protocols = parse_protocol_map(protocol_map)
    if not protocol_map.strip():
        # As in Kafka: a controller listener needs no entry unless the map is set.
        protocols = {**dict.fromkeys(controller_names, SecurityProtocol.PLAINTEXT), **protocols}
    bound = parse_listeners("listeners", listeners, protocols)
    _check_ports(bound)
    _check_controllers(controller_names, bound, roles)
    announced, warnings = _advertise(
        bound, parse_listeners("advertised.listeners", advertised, protocols), controller_names
    )
    used = ""
    if "broker" in roles:
        used = _inter_broker(inter_broker.upper(), SecurityProtocol[inter_broker_protocol], announced, controller_names)
    return Listeners(tuple(bound), tuple(announced), used, controller_names, tuple(warnings))


def _check_ports(bound: Sequence[Listener]) -> None:
    """A port may be used once, or by one IPv4 and one IPv6 address."""
    for index, one in enumerate(bound):
        for other in bound[index + 1 :]:
            if one.address.port and one.address.port == other.address.port and not _are_two_families(one, other):
                raise InvalidConfig(
                    f"Each listener must have a different port, but {one} and {other} in listeners share one."
                )


def _are_two_families(one: Listener, other: Listener) -> bool:
    return {type(_as_ip(one.address.host)), type(_as_ip(other.address.host))} == {IPv4Address, IPv6Address}


def _as_ip(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _check_controllers(names: Sequence[str], bound: Sequence[Listener], roles: Sequence[str]) -> None:
    """Check `controller.listener.names` against the roles of the process."""
    known = [listener.name for listener in bound]
    if "controller" not in roles:
        _check_broker_alone(names, known)
        return
    if (names or "broker" not in roles) and not set(names) & set(known):
        raise InvalidConfig(
            f"controller.listener.names has {', '.join(names) or 'no value'}, which listeners does not define: it must "
            "contain at least one value appearing in the 'listeners' configuration when running the controller role."
        )
    if "broker" not in roles and not set(known) <= set(names):
        others = ", ".join(name for name in known if name not in names)
        raise InvalidConfig(
            "The listeners config must only contain controller listeners from controller.listener.names when "
            f"process.roles=controller, and it has {others}."
        )
    if "broker" in roles and set(known) <= set(names):
        raise InvalidConfig("controller.listener.names contains every listener: none is left for clients.")


def _check_broker_alone(names: Sequence[str], known: Sequence[str]) -> None:
    if not names:
        raise InvalidConfig(
            "controller.listener.names must contain at least one value when running with just the broker role: the "
            "name of the listener that connects to the controllers."
        )
    if bound := [name for name in names if name in known]:
        raise InvalidConfig(
            f"controller.listener.names must not contain a value appearing in the 'listeners' configuration when "
            f"running with just the broker role, and it has {', '.join(bound)}."
        )


def _advertise(
    bound: Sequence[Listener], announced: list[Listener], controllers: Sequence[str]
) -> tuple[list[Listener], list[str]]:
    if announced:
        _check_advertised(bound, announced)
        names = [listener.name for listener in announced]
        # As in Kafka: a controller listener missing from advertised.listeners is advertised as bound.
        missing = [each for each in bound if each.name in controllers and each.name not in names]
        return [*announced, *map(_with_concrete_host, missing)], []
    advertised = [_with_concrete_host(listener) for listener in bound]
    warnings = [
        f"{listener} is advertised as {LOCALHOST}, which only clients on this machine can use: "
        "set advertised.listeners to an address that other machines can reach."
        for listener in bound
        if is_wildcard(listener.address.host) and listener.name not in controllers
    ]
    return advertised, warnings


def _check_advertised(bound: Sequence[Listener], announced: Sequence[Listener]) -> None:
    known = [listener.name for listener in bound]
    for listener in announced:
        if listener.name not in known:
            raise InvalidConfig(
                f"advertised.listeners has {listener.name}, which listeners does not define: it has {', '.join(known)}."
            )
        if is_wildcard(listener.address.host):
            raise InvalidConfig(
                f"advertised.listeners cannot use the nonroutable meta-address {listener.address.host or '(empty)'} "
                f"for {listener.name}. Use a routable IP address or a host name."
            )


def is_wildcard(host: str) -> bool:
    """Return whether the host means all interfaces, so that no client can connect to it."""
    ip = _as_ip(host)
    return not host or (ip is not None and ip.is_unspecified)


def _with_concrete_host(listener: Listener) -> Listener:
    if not is_wildcard(listener.address.host):
        return listener
    return Listener(listener.name, listener.protocol, Address(LOCALHOST, listener.address.port))


def _inter_broker(
    name: str, protocol: SecurityProtocol, announced: Sequence[Listener], controllers: Sequence[str]
) -> str:
    candidates = [listener for listener in announced if listener.name not in controllers]
    if name:
        if name not in [listener.name for listener in candidates]:
            raise InvalidConfig(
                f"inter.broker.listener.name is {name}, which must be a listener defined in advertised.listeners "
                "that is not for controllers."
            )
        return name
    # Kafka requires a listener with the protocol's name; a single node can use any client listener.
    matching = [listener.name for listener in candidates if listener.protocol is protocol]
    names = matching or [listener.name for listener in candidates]
    if not names:
        raise InvalidConfig("advertised.listeners has no listener for brokers and clients.")
    return names[0]
