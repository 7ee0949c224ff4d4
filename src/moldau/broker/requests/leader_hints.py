"""Leader hints (KIP-951): a NOT_LEADER_OR_FOLLOWER response names the current leader and its endpoint."""

from typing import Any

from moldau.broker.partitions.table import Partitions
from moldau.model.errors import FencedLeaderEpoch, KafkaError, NotLeaderOrFollower


class LeaderHints:
    """The leader hints of one response. Created on demand, because hardly any response has one."""

    __slots__ = ("_listener", "_partitions", "_response", "endpoints")

    def __init__(self, partitions: Partitions, listener: str, response: Any) -> None:
        """`response` is the response class; the classes that carry hints name their parts alike."""
        self._partitions = partitions
        self._listener = listener
        self._response = response
        self.endpoints: dict[int, Any] = {}

    def mark(self, result: Any, topic: str, index: int, error: KafkaError) -> None:
        """Set the current leader in the result of one partition, if it is known.

        A broker that has given up a leadership may not know the new leader: by the old one, itself, librdkafka would
        be content with it, and look up no other.
        """
        if not isinstance(error, NotLeaderOrFollower | FencedLeaderEpoch):
            return
        image = self._partitions.image
        partition = image.partition(topic, index)
        if partition is None or not partition.has_leader:
            return
        if partition.leader == self._partitions.node_id and isinstance(error, NotLeaderOrFollower):
            return
        result.current_leader = self._response.LeaderIdAndEpoch(
            leader_id=partition.leader, leader_epoch=partition.leader_epoch
        )
        leader = image.brokers.get(partition.leader)
        address = None if leader is None else leader.address(self._listener)
        if leader is not None and address is not None:
            self.endpoints[partition.leader] = self._response.NodeEndpoint(
                node_id=partition.leader, host=address.host, port=address.port, rack=leader.rack
            )
