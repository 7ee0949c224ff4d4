"""Identifiers of nodes, topics, partitions and producers."""

from typing import Final, NamedTuple, NewType

NodeId = NewType("NodeId", int)
TopicId = NewType("TopicId", bytes)  # the 16 bytes of a UUID, as on the wire
DirectoryId = NewType("DirectoryId", bytes)
ProducerId = NewType("ProducerId", int)

UUID_BYTES: Final = 16

NO_TOPIC_ID: Final = TopicId(bytes(UUID_BYTES))
NO_DIRECTORY: Final = DirectoryId(bytes(UUID_BYTES))
UNASSIGNED_DIRECTORY: Final = DirectoryId((1).to_bytes(UUID_BYTES, "big"))  # Kafka's: the broker will choose
LOST_DIRECTORY: Final = DirectoryId((2).to_bytes(UUID_BYTES, "big"))  # Kafka's id of an offline directory
NO_NODE: Final = NodeId(-1)
NO_PRODUCER_ID: Final = ProducerId(-1)
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_OFFSET: Final = -1
NO_EPOCH: Final = -1
NO_TIMESTAMP: Final = -1


class TopicPartition(NamedTuple):
    """One partition of one topic, by name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Address(NamedTuple):
    """A host and port. An IPv6 host is stored without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
