"""Where the controllers of a cluster are, as a node's settings say it: `id@host:port,…` or bootstrap servers."""

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
    """The controllers that the settings name. `voters` is empty where the metadata log itself says who votes."""

    voters: Mapping[NodeId, Address] = field(default_factory=dict)
    bootstrap_servers: tuple[Address, ...] = ()
    is_lone: bool = True  # this node is a cluster by itself, and may make itself one

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Where somebody who knows no leader yet may ask for one."""
        return tuple(dict.fromkeys((*self.voters.values(), *self.bootstrap_servers)))


def parse_voters(parts: Sequence[str]) -> dict[NodeId, Address]:
    """The voters in the parts of `controller.quorum.voters`, each id once."""
    voters: dict[NodeId, Address] = {}
    for part in parts:
        match = _VOTER.fullmatch(part.strip())
        if match is None or int(match[1]) > INT_MAX:
            raise InvalidConfig(
                f"'{shorten(part)}' in controller.quorum.voters is no id@host:port, such as 1@localhost:9093."
            )
        node_id = NodeId(int(match[1]))
        if node_id in voters:
            raise InvalidConfig(f"controller.quorum.voters names node {node_id} twice.")
        voters[node_id] = _peer_address(match[2], "controller.quorum.voters")
    return voters


def parse_bootstrap_servers(parts: Sequence[str]) -> tuple[Address, ...]:
    """The addresses in the parts of `controller.quorum.bootstrap.servers`."""
    return tuple(_peer_address(part, "controller.quorum.bootstrap.servers") for part in parts)


def _peer_address(text: str, setting: str) -> Address:
    try:
        address = parse_address(text)
    except InvalidConfig as refusal:
        raise InvalidConfig(f"{refusal} ({setting})") from None
    if not address.host or not address.port:
        raise InvalidConfig(f"'{shorten(text)}' in {setting} needs a host and a port that others can connect to.")
    return address


def resolve_quorum(
    roles: Sequence[str], node_id: int, voters: Sequence[str], bootstrap_servers: Sequence[str], listeners: Listeners
) -> Quorum:
    """The settings of the quorum, found consistent with this node's roles and listeners."""
    known, servers = parse_voters(voters), parse_bootstrap_servers(bootstrap_servers)
    _check_membership(roles, node_id, known)
    if not known and not servers and set(roles) != set(ROLES):
        raise InvalidConfig(
            "If process.roles is not broker,controller, either controller.quorum.bootstrap.servers or "
            "controller.quorum.voters must be set: this node has to find its controllers."
        )
    is_lone = set(roles) == set(ROLES) and _is_only_me(node_id, known, servers, listeners)
    if not is_lone and not listeners.controllers:
        raise InvalidConfig(
            "controller.listener.names must contain at least one value: the controllers of a cluster talk to each "
            "other on a listener of their own, such as CONTROLLER://:9093."
        )
    return Quorum(known, servers, is_lone)


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


def _is_only_me(
    node_id: int, voters: Mapping[NodeId, Address], servers: Sequence[Address], listeners: Listeners
) -> bool:
    if any(each != node_id for each in voters):
        return False
    mine = [each.address for each in (*listeners.for_controllers, *listeners.advertised)]
    ports = {each.port for each in mine}
    hosts = {each.host for each in mine} | set(LOOPBACK)
    return all(each.port in ports and each.host in hosts for each in servers)
