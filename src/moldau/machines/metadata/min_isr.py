"""`min.insync.replicas` decides who is eligible to lead (KIP-966), so a change of it concerns partitions, too."""

from collections.abc import Iterator, Sequence

from moldau.machines.metadata.builder import ImageBuilder
from moldau.machines.metadata.configs import config_record
from moldau.machines.metadata.image import Resource, ResourceType, TopicImage
from moldau.machines.metadata.partition_draft import PartitionDraft
from moldau.machines.metadata.records import Record
from moldau.machines.metadata.settings import MetadataSettings
from moldau.machines.metadata.view import MIN_ISR, ClusterView
from moldau.wire import messages

ALL_BROKERS = Resource(ResourceType.BROKER, "")


def safety_records(view: ClusterView) -> list[Record]:
    """What makes eligible replicas safe: all brokers count by one number, and it stands in the metadata."""
    records: list[Record] = []
    if MIN_ISR not in view.image.broker_configs(None):
        records.append(config_record(ALL_BROKERS, MIN_ISR, str(view.settings.min_insync_replicas)))
    for resource, configs in view.image.configs.items():
        if resource.type == ResourceType.BROKER and resource != ALL_BROKERS and MIN_ISR in configs:
            records.append(config_record(resource, MIN_ISR, None))
    return records


def first_safety_records(settings: MetadataSettings) -> list[Record]:
    """The same for a cluster that has nothing yet."""
    return [config_record(ALL_BROKERS, MIN_ISR, str(settings.min_insync_replicas))]


def partition_changes(view: ClusterView, records: Sequence[Record]) -> list[Record]:
    """What changes of configs mean for partitions: to be written together with them.

    With a lower number a leader may acknowledge what those eligible lack: they cease to be. With a greater one,
    whoever leaves the ISR becomes eligible; a leader that does not know of it yet still counts by the old number, so
    every partition gets a new epoch, without which a leader cannot change its ISR.
    """
    if not view.image.has_elr or not any(_is_min_isr(record) for record in records):
        return []
    builder = ImageBuilder(view.image)
    for offset, record in enumerate(records, view.image.offset + 1):
        builder.apply(record, offset)
    later = ClusterView(builder.finish()[0], view.index, view.settings)
    return [*_ineligible(view, later), *_renewed(view, later)]


def _is_min_isr(record: Record) -> bool:
    return isinstance(record, messages.ConfigRecord) and record.name == MIN_ISR


def _ineligible(view: ClusterView, later: ClusterView) -> Iterator[Record]:
    for key in view.index.with_eligible:
        topic = later.topic(key)
        if later.min_isr(topic.name) < view.min_isr(topic.name):
            record = PartitionDraft(later, topic, key.partition).record()
            if record is not None:
                yield record


def _renewed(view: ClusterView, later: ClusterView) -> Iterator[Record]:
    for topic in later.image.topics.values():
        if later.min_isr(topic.name) > view.min_isr(topic.name):
            yield from _new_epochs(topic)


def _new_epochs(topic: TopicImage) -> Iterator[Record]:
    for index, partition in enumerate(topic.partitions):
        if len(partition.replicas) > 1:
            yield messages.PartitionChangeRecord(partition_id=index, topic_id=topic.topic_id, isr=list(partition.isr))
