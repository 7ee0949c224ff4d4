"""Who leads instead (KIP-951): a client that asked the wrong broker is told in the same answer whom to ask."""

from typing import Any

from moldau.broker.partitions.table import Partitions
from moldau.model.errors import FencedLeaderEpoch, KafkaError, NotLeaderOrFollower


class LeaderHints:
    """What one answer tells of leaders. Made when it is first needed: nearly every answer tells nothing."""

    __slots__ = ("_listener", "_partitions", "_response", "endpoints")

    def __init__(self, partitions: Partitions, listener: str, response: Any) -> None:
        """`response` is the class of the answer; its parts have the same names in all that carry hints."""
        self._partitions = partitions
        self._listener = listener
        self._response = response
        self.endpoints: dict[int, Any] = {}

    def mark(self, answer: Any, topic: str, index: int, error: KafkaError) -> None:
        """Name the leader in the answer about one partition, if another broker leads it."""
        if not isinstance(error, NotLeaderOrFollower | FencedLeaderEpoch):
            return
        image = self._partitions.image
        where = image.partition(topic, index)
        if where is None or not where.has_leader:
            return
        answer.current_leader = self._response.LeaderIdAndEpoch(leader_id=where.leader, leader_epoch=where.leader_epoch)
        leader = image.brokers.get(where.leader)
        address = None if leader is None else leader.address(self._listener)
        if leader is not None and address is not None:
            self.endpoints[where.leader] = self._response.NodeEndpoint(
                node_id=where.leader, host=address.host, port=address.port, rack=leader.rack
            )
