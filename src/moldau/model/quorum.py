"""The controllers of a cluster in a node's settings: `id@host:port,…` or bootstrap servers."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from moldau.model.errors import InvalidConfig
from moldau.model.ids import Address, NodeId
from moldau.model.listeners import LOCALHOST, Listeners, parse_address
from moldau.model.settings import INT_MAX, shorten

BROKER: Final = "broker"
CONTROLLER: Final = "controller"
ROLES: Final = (BROKER, CONTROLLER)
LOOPBACK: Final = (LOCALHOST, "127.0.0.1", "::1")
_VOTER: Final = re.compile(r"([0-9]{1,10})@(.+)")


@dataclass(frozen=True, slots=True)
class Quorum:
    """The configured controllers. `voters` is empty if the metadata log contains the voter set."""

    voters: Mapping[NodeId, Address] = field(default_factory=dict)
    bootstrap_servers: tuple[Address, ...] = ()
    is_standalone: bool = True  # a single-node cluster, which may format itself

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Addresses from which to discover the leader."""
        return tuple(dict.fromkeys((*self.voters.values(), *self.bootstrap_servers)))


def parse_voters(parts: Sequence[str]) -> dict[NodeId, Address]:
    """Parse `controller.quorum.voters`; each id may appear once."""
    voters: dict[NodeId, Address] = {}
    for part in parts:
        match = _VOTER.fullmatch(part.strip())
        if match is None or int(match[1]) > INT_MAX:
            raise InvalidConfig(
                f"'{shorten(part)}' in controller.quorum.voters is not id@host:port, such as 1@localhost:9093."
            )
        node_id = NodeId(int(match[1]))
        if node_id in voters:
            raise InvalidConfig(f"controller.quorum.voters names node {node_id} twice.")
        voters[node_id] = _peer_address(match[2], "controller.quorum.voters")
    return voters


def parse_bootstrap_servers(parts: Sequence[str]) -> tuple[Address, ...]:
    """Parse `controller.quorum.bootstrap.servers`."""
    return tuple(_peer_address(part, "controller.quorum.bootstrap.servers") for part in parts)


def _peer_address(text: str, setting: str) -> Address:
    try:
        address = parse_address(text)
    except InvalidConfig as error:
        raise InvalidConfig(f"{error} ({setting})") from None
    if not address.host or not address.port:
        raise InvalidConfig(
            f"'{shorten(text)}' in {setting} must have a host and a port that other nodes can connect to."
        )
    return address


def resolve_quorum(
    roles: Sequence[str], node_id: int, voters: Sequence[str], bootstrap_servers: Sequence[str], listeners: Listeners
) -> Quorum:
    """Resolve the quorum settings and check them against the roles and listeners of the node."""
    known, servers = parse_voters(voters), parse_bootstrap_servers(bootstrap_servers)
    _check_membership(roles, node_id, known)
    if not known and not servers and set(roles) != set(ROLES):
        raise InvalidConfig(
            "If process.roles is not broker,controller, either controller.quorum.bootstrap.servers or "
            "controller.quorum.voters must be set, so that this node finds its controllers."
        )
    is_standalone = set(roles) == set(ROLES) and _is_only_node(node_id, known, servers, listeners)
    if not is_standalone and not listeners.controllers:
        raise InvalidConfig(
            "controller.listener.names must contain at least one value: the controllers of a cluster communicate "
            "on a separate listener, such as CONTROLLER://:9093."
        )
    return Quorum(known, servers, is_standalone)


def _check_membership(roles: Sequence[str], node_id: int, voters: Mapping[NodeId, Address]) -> None:
    if not voters:
        return
    named = ",".join(str(each) for each in voters)
    if CONTROLLER in roles and node_id not in voters:
        raise InvalidConfig(
            f"If process.roles contains the 'controller' role, the node id {node_id} must be included in the set of "
            f"voters, and controller.quorum.voters names {named}."
        )
    if CONTROLLER not in roles and node_id in voters:
        raise InvalidConfig(
            f"If process.roles contains just the 'broker' role, the node id {node_id} must not be included in the set "
            f"of voters, and controller.quorum.voters names {named}."
        )


def _is_only_node(
    node_id: int, voters: Mapping[NodeId, Address], servers: Sequence[Address], listeners: Listeners
) -> bool:
    if any(each != node_id for each in voters):
        return False
    own = [each.address for each in (*listeners.for_controllers, *listeners.advertised)]
    ports = {each.port for each in own}
    hosts = {each.host for each in own} | set(LOOPBACK)
    return all(each.port in ports and each.host in hosts for each in servers)
