"""The client's metadata cache: brokers, topics, partition leaders and their age."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from moldau.client.errors import error_of
from moldau.model.errors import ErrorCode, KafkaError, LeaderNotAvailable, UnknownTopicOrPartition
from moldau.model.ids import NO_EPOCH, NO_NODE, NO_TOPIC_ID, Address, NodeId, TopicId
from moldau.wire import messages

TOPICS_MAX: Final = 200_000  # the oldest topics are dropped beyond it


class NoSuchPartition(UnknownTopicOrPartition):
    """The topic exists but has fewer partitions."""


@dataclass(frozen=True, slots=True)
class BrokerView:
    """A broker in the cluster metadata."""

    node_id: NodeId
    address: Address
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A partition in the cluster metadata."""

    index: int
    leader: NodeId
    leader_epoch: int = NO_EPOCH
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()
    error: KafkaError | None = None


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic in the cluster metadata; with an error, it has no usable partitions."""

    name: str
    topic_id: TopicId
    partitions: tuple[PartitionView, ...] = ()
    is_internal: bool = False
    error: KafkaError | None = None
    known_since_ms: float = 0.0
    source: Address | None = None

    def partition(self, index: int) -> PartitionView | None:
        # Sorted, and nearly always 0, 1, 2 …
        if 0 <= index < len(self.partitions) and self.partitions[index].index == index:
            return self.partitions[index]
        return next((each for each in self.partitions if each.index == index), None)


@dataclass(slots=True)
class Metadata:
    """The cache. It never returns to an older leader epoch of the same topic, even if the topic was invalidated: a
    broker that is cut off may still consider itself the leader and serve a stale log.
    """

    cluster_id: str | None = None
    controller: NodeId = NO_NODE
    brokers: dict[NodeId, BrokerView] = field(default_factory=dict)
    topics: dict[str, TopicView] = field(default_factory=dict)
    _names: dict[TopicId, str] = field(default_factory=dict)
    _stale: dict[str, TopicView] = field(default_factory=dict)  # invalidated, but kept to ignore older leader epochs

    def update(
        self, response: "messages.MetadataResponse", now_ms: float, source: Address | None = None
    ) -> list[TopicView]:
        """Apply a MetadataResponse; return its topics as cached now, errors included."""
        self.cluster_id = response.cluster_id or self.cluster_id
        self.controller = NodeId(response.controller_id)
        brokers = {
            NodeId(each.node_id): BrokerView(NodeId(each.node_id), Address(each.host, each.port), each.rack)
            for each in response.brokers
        }
        self.brokers = brokers or self.brokers  # a starting broker may not know any broker yet
        return [self._learn(_topic_from(each, now_ms, source)) for each in response.topics or ()]

    def forget(self, name: str, view: TopicView | None = None) -> None:
        """Invalidate a topic; given a view, only if it is the cached one."""
        topic = self.topics.get(name)
        if topic is not None and (view is None or view is topic):
            del self.topics[name]
            self._names.pop(topic.topic_id, None)
            self._mark_stale(topic)

    def forget_except(self, names: Iterable[str]) -> None:
        """Forget the topics that a full listing did not include."""
        for gone in set(self.topics).difference(names):
            self.forget(gone)

    def fresh(self, name: str, now_ms: float, max_age_ms: float) -> TopicView | None:
        """Return the cached topic if it has no error and has not expired."""
        topic = self.topics.get(name)
        if topic is None or topic.error is not None or now_ms - topic.known_since_ms > max_age_ms:
            return None
        return topic

    def name_of(self, topic_id: TopicId) -> str | None:
        return self._names.get(topic_id)

    def leader(self, name: str, index: int) -> PartitionView:
        """Return the partition with its leader; KafkaError if it has none."""
        topic = self.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"topic {name} is unknown")
        return self.leader_in(topic, index)

    def leader_in(self, topic: TopicView, index: int) -> PartitionView:
        """Look up the leader in a view, which may have been invalidated meanwhile."""
        if topic.error is not None:
            raise topic.error
        partition = topic.partition(index)
        if partition is None:
            raise NoSuchPartition(
                f"topic {topic.name} has {len(topic.partitions)} partitions, partition {index} does not exist"
            )
        if partition.leader not in self.brokers:
            raise LeaderNotAvailable(f"partition {index} of topic {topic.name} has no leader at the moment")
        return partition

    def _learn(self, topic: TopicView) -> TopicView:
        if not topic.name:
            return topic
        self.forget(topic.name)
        before = self._stale.get(topic.name)
        if before is not None and topic.error is None:
            del self._stale[topic.name]
            topic = _newest(topic, before)
        self.topics[topic.name] = topic
        if topic.topic_id != NO_TOPIC_ID:
            self._names[topic.topic_id] = topic.name
        if len(self.topics) > TOPICS_MAX:
            self.forget(next(iter(self.topics)))
        return topic

    def _mark_stale(self, topic: TopicView) -> None:
        if topic.error is None:
            self._stale.pop(topic.name, None)
            self._stale[topic.name] = topic
        if len(self._stale) > TOPICS_MAX:
            del self._stale[next(iter(self._stale))]


def _newest(topic: TopicView, before: TopicView) -> TopicView:
    """Keep the cached leader of a partition if a lagging broker returns an older leader epoch."""
    if topic.topic_id != before.topic_id or topic.topic_id == NO_TOPIC_ID:
        return topic  # a recreated topic, or a broker too old to return ids
    kept = (_newer(each, before.partition(each.index)) for each in topic.partitions)
    return replace(topic, partitions=tuple(kept))


def _newer(update: PartitionView, known: PartitionView | None) -> PartitionView:
    return known if known is not None and known.leader_epoch > update.leader_epoch else update


def _topic_from(
    topic: "messages.MetadataResponse.MetadataResponseTopic", now_ms: float, source: Address | None
) -> TopicView:
    # A leader election in one partition must not hide the leaders of the others.
    is_usable = topic.error_code in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE) and bool(topic.partitions)
    error = None if is_usable else _error(topic.error_code or ErrorCode.LEADER_NOT_AVAILABLE, f"topic {topic.name}")
    partitions = sorted((_partition_from(each) for each in topic.partitions), key=lambda each: each.index)
    topic_id = TopicId(topic.topic_id)
    return TopicView(topic.name or "", topic_id, tuple(partitions), topic.is_internal, error, now_ms, source)


def _partition_from(partition: "messages.MetadataResponse.MetadataResponsePartition") -> PartitionView:
    return PartitionView(
        partition.partition_index,
        NodeId(partition.leader_id),
        partition.leader_epoch,
        tuple(partition.replica_nodes),
        tuple(partition.isr_nodes),
        tuple(partition.offline_replicas),
        None if partition.error_code == ErrorCode.NONE else _error(partition.error_code, "partition"),
    )


def _error(code: int, about: str) -> KafkaError:
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return UnknownTopicOrPartition(f"{about} does not exist")
    error = error_of(code)
    return type(error)(f"{about}: {error.message}")
