"""`__share_group_state`: the settings with which it is created on first use, and which partition has which state."""

import logging
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from typing import Final

from moldau.broker.configs.share_settings import SEGMENT_BYTES_MIN
from moldau.broker.coordinators.host import ClusterView
from moldau.broker.internal_topics import SHARE_STATE_TOPIC
from moldau.broker.shares.persister import SharePartitionKey
from moldau.machines.metadata.topics import NewTopic
from moldau.model.errors import InvalidRequest
from moldau.model.ids import UUID_BYTES, TopicId

logger = logging.getLogger(__name__)

PARTITION_DIGITS_MAX: Final = 10


def new_share_state_topic(view: ClusterView) -> NewTopic:
    """The topic with the configured settings, and at most as many replicas as active brokers."""
    settings = view.settings
    wanted = settings.share_coordinator_state_topic_replication_factor
    brokers = sum(each.is_active for each in view.image.brokers.values())
    replicas = max(1, min(wanted, brokers))
    if wanted > replicas:
        logger.warning(
            "%s is created with %d of %d replicas (share.coordinator.state.topic.replication.factor): "
            "not enough active brokers",
            SHARE_STATE_TOPIC,
            replicas,
            wanted,
        )
    return NewTopic(
        SHARE_STATE_TOPIC,
        settings.share_coordinator_state_topic_num_partitions,
        replicas,
        configs=[
            ("cleanup.policy", "delete"),  # the coordinator deletes the records before its snapshots
            ("retention.ms", "-1"),
            ("compression.type", "producer"),
            ("min.insync.replicas", str(min(settings.share_coordinator_state_topic_min_isr, replicas))),
            ("segment.bytes", str(max(settings.share_coordinator_state_topic_segment_bytes, SEGMENT_BYTES_MIN))),
        ],
    )


def coordinator_key(key: SharePartitionKey) -> str:
    """Return the key whose hash selects the partition, in Kafka's form: group, topic id and partition."""
    topic_id = urlsafe_b64encode(key.topic_id).rstrip(b"=").decode()
    return f"{key.group_id}:{topic_id}:{key.partition}"


def parse_coordinator_key(text: str) -> SharePartitionKey:
    """Parse the key of a FindCoordinator request."""
    group_id, topic, partition = ["", "", *text.rsplit(":", 2)][-3:]
    try:
        topic_id = urlsafe_b64decode(f"{topic}==")
    except (Base64Error, ValueError):
        topic_id = b""
    is_number = partition.isascii() and partition.isdigit() and len(partition) <= PARTITION_DIGITS_MAX
    if not group_id or len(topic_id) != UUID_BYTES or not is_number:
        raise InvalidRequest(f"Invalid share coordinator key {text[:100]}: it must be groupId:topicId:partition.")
    return SharePartitionKey(group_id, TopicId(topic_id), int(partition))
