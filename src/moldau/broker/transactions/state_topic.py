"""The settings with which `__transaction_state` is created on first use."""

import logging

from moldau.broker.configs.transaction_settings import SEGMENT_BYTES_MIN
from moldau.broker.coordinators.host import ClusterView
from moldau.broker.internal_topics import STATE_TOPIC
from moldau.machines.metadata.topics import NewTopic

logger = logging.getLogger(__name__)


def new_state_topic(view: ClusterView) -> NewTopic:
    """The topic with the configured settings, and at most as many replicas as active brokers."""
    settings = view.settings
    wanted = settings.transaction_state_log_replication_factor
    brokers = sum(each.is_active for each in view.image.brokers.values())
    replicas = max(1, min(wanted, brokers))
    if wanted > replicas:
        logger.warning(
            "%s is created with %d of %d replicas (transaction.state.log.replication.factor): "
            "not enough active brokers",
            STATE_TOPIC,
            replicas,
            wanted,
        )
    return NewTopic(
        STATE_TOPIC,
        settings.transaction_state_log_num_partitions,
        replicas,
        configs=[
            ("cleanup.policy", "compact"),
            ("compression.type", "uncompressed"),
            # An out-of-sync leader could complete transactions differently from earlier responses.
            ("unclean.leader.election.enable", "false"),
            ("min.insync.replicas", str(min(settings.transaction_state_log_min_isr, replicas))),
            ("segment.bytes", str(max(settings.transaction_state_log_segment_bytes, SEGMENT_BYTES_MIN))),
        ],
    )
