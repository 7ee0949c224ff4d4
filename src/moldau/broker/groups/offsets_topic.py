"""The settings with which `__consumer_offsets` is created on first use."""

import logging
from typing import Final

from moldau.broker.coordinators.host import ClusterView
from moldau.broker.internal_topics import OFFSETS_TOPIC
from moldau.machines.groups.settings import DECISION_BYTES_MAX
from moldau.machines.metadata.topics import NewTopic

logger = logging.getLogger(__name__)

SEGMENT_BYTES_MIN: Final = 2 * DECISION_BYTES_MAX  # a batch must fit into a segment


def new_offsets_topic(view: ClusterView) -> NewTopic:
    """The topic with the configured settings, and at most as many replicas as active brokers."""
    settings = view.settings
    wanted = settings.offsets_topic_replication_factor
    brokers = sum(each.is_active for each in view.image.brokers.values())
    if wanted > brokers:
        logger.warning(
            "%s is created with %d of %d replicas (offsets.topic.replication.factor): not enough active brokers",
            OFFSETS_TOPIC,
            brokers,
            wanted,
        )
    return NewTopic(
        OFFSETS_TOPIC,
        settings.offsets_topic_num_partitions,
        max(1, min(wanted, brokers)),
        configs=[
            ("cleanup.policy", "compact"),
            ("compression.type", "producer"),
            ("segment.bytes", str(max(settings.offsets_topic_segment_bytes, SEGMENT_BYTES_MIN))),
        ],
    )
