"""The partitions in a response to a share member, by topic, with leader hints for those led by another broker."""

from typing import Any

from moldau.broker.fetch.acknowledgements import SharesContext
from moldau.broker.requests.leader_hints import LeaderHints
from moldau.machines.shares.sessions import FetchedPartition
from moldau.model.errors import KafkaError
from moldau.model.ids import NO_EPOCH, NO_NODE


class ResponsePartitions:
    """Created on demand. ShareFetch and ShareAcknowledge name the parts of their responses alike."""

    def __init__(self, response: Any, topic: Any, partition: Any, context: SharesContext) -> None:
        """The arguments are the classes of the response and of its parts."""
        self._response = response
        self._topic = topic
        self._partition = partition
        self._context = context
        self._results: dict[FetchedPartition, Any] = {}
        self._hints: LeaderHints | None = None

    def get(self, fetched: FetchedPartition) -> Any:
        """The result of a partition."""
        found = self._results.get(fetched)
        if found is None:
            no_leader = self._response.LeaderIdAndEpoch(leader_id=NO_NODE, leader_epoch=NO_EPOCH)
            found = self._partition(partition_index=fetched.partition, current_leader=no_leader)
            self._results[fetched] = found
        return found

    def fail(self, fetched: FetchedPartition, error: KafkaError) -> None:
        """Set the error of a partition."""
        result = self.get(fetched)
        result.error_code = int(error.code)
        result.error_message = error.message
        self.hint(result, fetched, error)

    def hint(self, result: Any, fetched: FetchedPartition, error: KafkaError) -> None:
        """Name the leader if the error says that another broker leads the partition."""
        broker = self._context.broker
        if self._hints is None:
            self._hints = LeaderHints(broker.partitions, self._context.listener, self._response)
        name = broker.partitions.image.topic_name(fetched.topic_id) or ""
        self._hints.mark(result, name, fetched.partition, error)

    def topics(self) -> list[Any]:
        topics: dict[bytes, Any] = {}
        for fetched, result in self._results.items():
            topic = topics.get(fetched.topic_id)
            if topic is None:
                topic = topics[fetched.topic_id] = self._topic(topic_id=fetched.topic_id, partitions=[])
            topic.partitions.append(result)
        return list(topics.values())

    def endpoints(self) -> list[Any]:
        return [] if self._hints is None else list(self._hints.endpoints.values())
