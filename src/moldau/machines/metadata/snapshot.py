"""An image as the minimal list of records that produces it: the contents of a snapshot file."""

from collections.abc import Iterator

from moldau.machines.metadata.acls import acl_record
from moldau.machines.metadata.brokers import record_of
from moldau.machines.metadata.client_quotas import quota_record
from moldau.machines.metadata.configs import config_record
from moldau.machines.metadata.controllers import record_of_controller
from moldau.machines.metadata.credentials import record_of_credential
from moldau.machines.metadata.delegation_tokens import record_of_token
from moldau.machines.metadata.image import MetadataImage, PartitionImage, TopicImage
from moldau.machines.metadata.records import Record
from moldau.wire import messages


def records_of(image: MetadataImage) -> Iterator[Record]:
    """Yield features first: they determine how to read what follows."""
    for name, level in sorted(image.features.items()):
        yield messages.FeatureLevelRecord(name=name, feature_level=level)
    for broker in image.brokers.values():
        yield record_of(broker)
    for controller in image.controllers.values():
        yield record_of_controller(controller)
    for topic in image.topics.values():
        yield messages.TopicRecord(name=topic.name, topic_id=topic.topic_id)
        for index, partition in enumerate(topic.partitions):
            yield _partition_record(topic, index, partition)
    for resource, configs in image.configs.items():
        for name, value in configs.items():
            yield config_record(resource, name, value)
    for entity, quotas in image.client_quotas.items():
        for key, quota in quotas.items():
            yield quota_record(entity, key, quota)
    for acl_id, acl in image.acls.items():
        yield acl_record(acl_id, acl)
    if image.next_producer_id:
        # The broker that requested the last block no longer matters.
        yield messages.ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=image.next_producer_id)
    for user, credential in image.scram_credentials.items():
        yield record_of_credential(user, credential)
    for token in image.delegation_tokens.values():
        yield record_of_token(token)


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
