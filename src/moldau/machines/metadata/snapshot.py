"""An image as the shortest list of records that leads to it: what a snapshot file holds."""

from collections.abc import Iterator

from moldau.machines.metadata.brokers import record_of
from moldau.machines.metadata.configs import config_record
from moldau.machines.metadata.image import ControllerImage, MetadataImage, PartitionImage, TopicImage
from moldau.machines.metadata.records import Record
from moldau.wire import messages


def records_of(image: MetadataImage) -> Iterator[Record]:
    """Features first: a reader must know how to read what follows."""
    for name, level in sorted(image.features.items()):
        yield messages.FeatureLevelRecord(name=name, feature_level=level)
    for broker in image.brokers.values():
        yield record_of(broker)
    for controller in image.controllers.values():
        yield _controller_record(controller)
    for topic in image.topics.values():
        yield messages.TopicRecord(name=topic.name, topic_id=topic.topic_id)
        for index, partition in enumerate(topic.partitions):
            yield _partition_record(topic, index, partition)
    for resource, configs in image.configs.items():
        for name, value in configs.items():
            yield config_record(resource, name, value)
    if image.next_producer_id:
        # Who asked for the last block no longer matters, so nobody is named.
        yield messages.ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=image.next_producer_id)


def _controller_record(controller: ControllerImage) -> messages.RegisterControllerRecord:
    return messages.RegisterControllerRecord(
        controller_id=controller.controller_id,
        incarnation_id=controller.incarnation_id,
        end_points=[
            messages.RegisterControllerRecord.ControllerEndpoint(
                name=each.name,
                host=each.address.host,
                port=each.address.port,
                security_protocol=each.security_protocol,
            )
            for each in controller.listeners
        ],
        features=[
            messages.RegisterControllerRecord.ControllerFeature(
                name=name, min_supported_version=supported.lowest, max_supported_version=supported.highest
            )
            for name, supported in sorted(controller.features.items())
        ],
    )


def _partition_record(topic: TopicImage, index: int, partition: PartitionImage) -> messages.PartitionRecord:
    return messages.PartitionRecord(
        partition_id=index,
        topic_id=topic.topic_id,
        replicas=list(partition.replicas),
        isr=list(partition.isr),
        removing_replicas=list(partition.removing_replicas),
        adding_replicas=list(partition.adding_replicas),
        leader=partition.leader,
        leader_recovery_state=partition.leader_recovery_state,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        directories=list(partition.directories),
        eligible_leader_replicas=list(partition.eligible_leader_replicas) or None,
        last_known_elr=list(partition.last_known_elr) or None,
    )
