"""Checks and conversions shared by the handlers of the metadata quorum's requests."""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.requests.context import ContextHost, RequestContext
from moldau.machines.raft import Endpoints, Leadership
from moldau.model.errors import InconsistentClusterId, InvalidRequest
from moldau.model.ids import Address
from moldau.model.protocol import METADATA_PARTITION, METADATA_TOPIC


class ClusterMember(ContextHost, Protocol):
    """This node as a member of its cluster."""

    @property
    def node_id(self) -> int: ...

    @property
    def cluster_id(self) -> str: ...


logger = logging.getLogger(__name__)


def check_member(cluster_id: str | None, context: RequestContext[ClusterMember]) -> None:
    """Reject unauthorized nodes and nodes of another cluster."""
    context.authorize(Operation.CLUSTER_ACTION, CLUSTER)
    check_cluster(cluster_id, context)


def check_cluster(cluster_id: str | None, context: RequestContext[ClusterMember]) -> None:
    known = context.broker.cluster_id
    if cluster_id is not None and cluster_id != known:
        message = f"Node {context.broker.node_id} belongs to cluster {known}, not to {cluster_id}."
        context.log_rejection("a member of another cluster", "the quorum", message)
        raise InconsistentClusterId(message)


def only_partition(topics: Sequence[Any]) -> Any:
    """The only partition of the metadata log."""
    partitions = [each for topic in topics for each in topic.partitions]
    names = [getattr(topic, "topic_name", None) or getattr(topic, "name", None) for topic in topics]
    if names != [METADATA_TOPIC] or len(partitions) != 1 or _index(partitions[0]) != METADATA_PARTITION:
        raise InvalidRequest(f"The metadata quorum has only partition {METADATA_TOPIC}-{METADATA_PARTITION}.")
    return partitions[0]


def _index(partition: Any) -> int:
    index: int = partition.partition if hasattr(partition, "partition") else partition.partition_index
    return index


def endpoints_in(listeners: Iterable[Any]) -> Endpoints:
    return tuple((each.name, Address(each.host, each.port)) for each in listeners)


def leader_endpoints(kind: Callable[..., Any], leadership: Leadership) -> list[Any]:
    """The leader as node endpoints of a response, if its address is known."""
    if not leadership.is_known or not leadership.endpoints:
        return []
    address = leadership.endpoints[0][1]
    return [kind(node_id=leadership.leader_id, host=address.host, port=address.port)]
