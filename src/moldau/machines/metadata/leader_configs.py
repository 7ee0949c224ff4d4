"""Configs that affect leader election, and the partition changes that follow from altering them.

`min.insync.replicas` determines the ELR (KIP-966), `unclean.leader.election.enable` whether an out-of-sync replica can
be elected.
"""

from collections.abc import Iterator, Sequence

from moldau.machines.metadata.builder import ImageBuilder
from moldau.machines.metadata.cluster_view import MIN_ISR, UNCLEAN, ClusterView
from moldau.machines.metadata.configs import config_record
from moldau.machines.metadata.elections import Change, changes_of_leaderless
from moldau.machines.metadata.image import Resource, ResourceType, TopicImage
from moldau.machines.metadata.partition_draft import PartitionDraft, new_epoch
from moldau.machines.metadata.records import Record
from moldau.machines.metadata.settings import MetadataSettings
from moldau.wire import messages

ALL_BROKERS = Resource(ResourceType.BROKER, "")


def safety_records(view: ClusterView) -> list[Record]:
    """Return the records that make the ELR safe: one cluster-wide min ISR, written to the metadata."""
    records: list[Record] = []
    if MIN_ISR not in view.image.broker_configs(None):
        records.append(config_record(ALL_BROKERS, MIN_ISR, str(view.settings.min_insync_replicas)))
    for resource, configs in view.image.configs.items():
        if resource.type == ResourceType.BROKER and resource != ALL_BROKERS and MIN_ISR in configs:
            records.append(config_record(resource, MIN_ISR, None))
    return records


def switching_records(view: ClusterView, is_on: bool) -> list[Record]:
    """Return the records for enabling or disabling the ELR feature.

    On: leaders must know the common min ISR before they change an ISR. Off: the ELRs are no longer maintained, so only
    partitions waiting for an ELR member keep theirs.
    """
    if is_on == view.image.has_elr:
        return []
    if is_on:
        return [*safety_records(view), *(each for topic in view.image.topics.values() for each in _new_epochs(topic))]
    return [
        messages.PartitionChangeRecord(
            partition_id=key.partition, topic_id=key.topic_id, eligible_leader_replicas=[], last_known_elr=[]
        )
        for key in view.index.with_eligible
        if view.topic(key).partitions[key.partition].isr
    ]


def first_safety_records(settings: MetadataSettings) -> list[Record]:
    """Return the same for a new cluster."""
    return [config_record(ALL_BROKERS, MIN_ISR, str(settings.min_insync_replicas))]


def partition_changes(view: ClusterView, records: Sequence[Record]) -> list[Record]:
    """Return the partition changes that config changes require, to be written together with them.

    With a lower min ISR a leader may acknowledge records that ELR members lack: the ELR is cleared. With a higher one,
    replicas leaving the ISR join the ELR; a leader that does not know yet still uses the old value, so every partition
    gets a new partition epoch, which invalidates ISR changes in flight.
    """
    names = {record.name for record in records if isinstance(record, messages.ConfigRecord)}
    if UNCLEAN not in names and not (MIN_ISR in names and view.image.has_elr):
        return []
    builder = ImageBuilder(view.image)
    for offset, record in enumerate(records, view.image.offset + 1):
        builder.apply(record, offset)
    later = ClusterView(builder.finish()[0], view.index, view.settings)
    elected = changes_of_leaderless(later) if UNCLEAN in names else []
    if MIN_ISR not in names or not view.image.has_elr:
        return list(elected)
    done = {(change.topic_id, change.partition_id) for change in elected}
    changes = (*_ineligible(view, later), *_renewed(view, later))
    return [*elected, *(change for change in changes if (change.topic_id, change.partition_id) not in done)]


def _ineligible(view: ClusterView, later: ClusterView) -> Iterator[Change]:
    for key in view.index.with_eligible:
        topic = later.topic(key)
        if later.min_isr(topic.name) < view.min_isr(topic.name):
            record = PartitionDraft(later, topic, key.partition).record()
            if record is not None:
                yield record


def _renewed(view: ClusterView, later: ClusterView) -> Iterator[Change]:
    for topic in later.image.topics.values():
        if later.min_isr(topic.name) > view.min_isr(topic.name):
            yield from _new_epochs(topic)


def _new_epochs(topic: TopicImage) -> Iterator[Change]:
    for index, partition in enumerate(topic.partitions):
        if len(partition.replicas) > 1:
            yield new_epoch(topic, index)
