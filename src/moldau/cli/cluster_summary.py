"""`moldau cluster info`: what a cluster consists of."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from moldau.cli.features import features_as_json, show_features
from moldau.cli.output import note, show_json, show_table
from moldau.cli.partial_results import RESPONSES_WAIT_MS, fail_if_unresponsive
from moldau.client.async_client import AsyncClient
from moldau.client.features import METADATA_VERSION, Features, describe_features, release_of
from moldau.client.groups import Groups
from moldau.client.health import CONTROLLER_MS_MAX
from moldau.client.metadata import TopicView
from moldau.client.quorum import Quorum, QuorumView
from moldau.client.types import ClusterView
from moldau.model.errors import ClusterAuthorizationFailed, RequestTimedOut, UnsupportedVersion
from moldau.model.ids import Address

COLUMNS: Final = ("node", "address", "rack", "state", "roles", "release")


@dataclass(frozen=True, slots=True)
class ClusterSummary:
    """Brokers, controllers, features and counts of a cluster."""

    cluster: ClusterView
    quorum: QuorumView | None  # None if unsupported, not authorized, or timed out
    features: Features
    topics: Sequence[TopicView]
    groups: Mapping[str, int]  # by protocol
    silent: frozenset[int]  # brokers whose groups or features are missing

    @property
    def controller(self) -> int | None:
        leader = self.cluster.controller if self.quorum is None else self.quorum.leader_id
        return int(leader) if leader >= 0 else None

    @property
    def nodes(self) -> "list[Node]":
        """The brokers, and the controllers that are no brokers."""
        voters = {each.node_id: each.listeners for each in self.quorum.voters} if self.quorum else {}
        brokers = {int(each.node_id) for each in self.cluster.brokers}
        found = [
            Node(
                int(each.node_id),
                Address(each.host, each.port) if each.host else None,
                each.rack,
                each.is_fenced,
                ("broker", "controller") if each.node_id in voters else ("broker",),
                self._metadata_level(int(each.node_id)),
            )
            for each in self.cluster.brokers
        ]
        found += [
            Node(node, listeners[0][1] if listeners else None, None, None, ("controller",), None)
            for node, listeners in voters.items()
            if node not in brokers
        ]
        return sorted(found, key=lambda each: each.node_id)

    def _metadata_level(self, broker: int) -> int | None:
        levels = self.features.supported.get(broker, {}).get(METADATA_VERSION)
        return None if levels is None else levels.highest


@dataclass(frozen=True, slots=True)
class Node:
    """A broker or controller. What is not known is None."""

    node_id: int
    address: Address | None
    rack: str | None
    is_fenced: bool | None
    roles: tuple[str, ...]
    metadata_level: int | None  # the highest that it supports

    @property
    def release(self) -> str | None:
        """The release of Kafka that introduced its highest metadata.version."""
        return None if self.metadata_level is None else release_of(self.metadata_level)


async def collect(client: AsyncClient) -> ClusterSummary:
    """Collect everything; the controllers last, because they may time out."""
    cluster = await client.describe_cluster(with_fenced=True)
    topics = await client.describe_topics()
    features = await describe_features(client)
    groups, failures = await Groups(client).list_reachable(RESPONSES_WAIT_MS)
    return ClusterSummary(
        cluster,
        await _quorum(client),
        features,
        topics,
        Counter(each.protocol for each in groups),
        frozenset({*failures, *features.unreachable}),
    )


async def _quorum(client: AsyncClient) -> QuorumView | None:
    try:
        async with asyncio.timeout(CONTROLLER_MS_MAX / 1000):
            return await Quorum(client).describe()
    except (TimeoutError, RequestTimedOut, UnsupportedVersion, ClusterAuthorizationFailed):
        return None


def show_summary(info: ClusterSummary, *, json: bool) -> None:
    """Print it; an error names brokers whose groups and features are missing."""
    if json:
        show_json(_as_json(info))
    else:
        _show(info)
    if info.quorum is None:
        note("controllers are not shown: the cluster did not describe its quorum")
    fail_if_unresponsive(info.silent, "groups and features")


def _show(info: ClusterSummary) -> None:
    counts = _counts(info)
    groups = ", ".join(f"{count} {protocol}" for protocol, count in sorted(info.groups.items()))
    print(f"cluster     {info.cluster.cluster_id or '-'}")
    print(f"controller  {'-' if info.controller is None else info.controller}")
    print(f"topics      {counts['topics']} and {counts['internal_topics']} internal")
    print(f"partitions  {counts['partitions']} with {counts['replicas']} replicas")
    print(f"groups      {counts['groups']}{f' ({groups})' if groups else ''}\n")
    show_table(COLUMNS, [_row(each) for each in info.nodes], numbers=("node",))
    if info.features.names:
        print()
        show_features(info.features)


def _row(node: Node) -> tuple[object, ...]:
    state = None if node.is_fenced is None else "fenced" if node.is_fenced else "registered"
    address = None if node.address is None else str(node.address)
    return node.node_id, address, node.rack, state, node.roles, node.release


def _counts(info: ClusterSummary) -> dict[str, int]:
    """Count topics by kind; partitions and replicas are those of all of them."""
    partitions = [each for topic in info.topics for each in topic.partitions]
    internal = sum(each.is_internal for each in info.topics)
    return {
        "topics": len(info.topics) - internal,
        "internal_topics": internal,
        "partitions": len(partitions),
        "replicas": sum(len(each.replicas) for each in partitions),
        "groups": sum(info.groups.values()),
    }


def _as_json(info: ClusterSummary) -> dict[str, Any]:
    return {
        "cluster_id": info.cluster.cluster_id,
        "controller": info.controller,
        **_counts(info),
        "groups_by_protocol": dict(sorted(info.groups.items())),
        "nodes": [
            {
                "id": each.node_id,
                "host": each.address.host if each.address else None,
                "port": each.address.port if each.address else None,
                "rack": each.rack,
                "is_fenced": each.is_fenced,
                "roles": list(each.roles),
                "metadata_version_max": each.metadata_level,
                "release": each.release,
            }
            for each in info.nodes
        ],
        "features": features_as_json(info.features),
    }
