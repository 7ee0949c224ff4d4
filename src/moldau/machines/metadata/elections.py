"""Who leads a partition when a broker leaves or comes back."""

from collections.abc import Iterator

from moldau.machines.metadata.builder import NO_LEADER_CHANGE
from moldau.machines.metadata.image import MetadataImage, PartitionImage
from moldau.model.ids import NO_NODE, TopicId
from moldau.wire import messages


def changes_without(image: MetadataImage, broker_id: int) -> list[messages.PartitionChangeRecord]:
    """What changes when this broker leads nothing and is in sync nowhere any more."""
    changes = []
    for topic_id, index, partition in _partitions(image):
        if broker_id not in partition.isr:
            continue
        # The last member stays in the ISR: it alone is known to have everything.
        isr = tuple(each for each in partition.isr if each != broker_id) or partition.isr
        leader = partition.leader
        if leader == broker_id:
            leader = _best_leader(image, partition, unlike=broker_id)
        change = _change(topic_id, index, partition, leader, isr)
        if change is not None:
            changes.append(change)
    return changes


def changes_with(image: MetadataImage, broker_id: int) -> list[messages.PartitionChangeRecord]:
    """What changes when this broker may lead again: partitions without a leader that it has in full."""
    changes = []
    for topic_id, index, partition in _partitions(image):
        if not partition.has_leader and broker_id in partition.isr:
            change = _change(topic_id, index, partition, broker_id, partition.isr)
            if change is not None:
                changes.append(change)
    return changes


def _partitions(image: MetadataImage) -> Iterator[tuple[TopicId, int, PartitionImage]]:
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            yield topic.topic_id, index, partition


def _best_leader(image: MetadataImage, partition: PartitionImage, *, unlike: int) -> int:
    for broker_id in partition.replicas:
        if broker_id != unlike and broker_id in partition.isr and image.is_active(broker_id):
            return broker_id
    return NO_NODE


def _change(
    topic_id: TopicId, index: int, partition: PartitionImage, leader: int, isr: tuple[int, ...]
) -> messages.PartitionChangeRecord | None:
    if leader == partition.leader and isr == partition.isr:
        return None
    return messages.PartitionChangeRecord(
        partition_id=index,
        topic_id=topic_id,
        isr=None if isr == partition.isr else list(isr),
        leader=NO_LEADER_CHANGE if leader == partition.leader else leader,
    )
