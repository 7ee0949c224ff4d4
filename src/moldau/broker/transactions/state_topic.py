"""`__transaction_state`: how it is made when somebody first needs it."""

import logging
from typing import TYPE_CHECKING, Final

from moldau.broker.transactions.settings import SEGMENT_BYTES_MIN
from moldau.machines.metadata.topics import NewTopic

if TYPE_CHECKING:
    from moldau.broker.broker import Broker

logger = logging.getLogger(__name__)

STATE_TOPIC: Final = "__transaction_state"


def new_state_topic(broker: "Broker") -> NewTopic:
    """The topic as the settings want it, with as many replicas as there are brokers for."""
    settings = broker.settings
    wanted = settings.transaction_state_log_replication_factor
    brokers = sum(each.is_active for each in broker.image.brokers.values())
    replicas = max(1, min(wanted, brokers))
    if wanted > replicas:
        logger.warning(
            "%s is created with %d of %d replicas (transaction.state.log.replication.factor): "
            "there are no more brokers",
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
            # A replica that lacks what was answered would end transactions otherwise than they were ended.
            ("unclean.leader.election.enable", "false"),
            ("min.insync.replicas", str(min(settings.transaction_state_log_min_isr, replicas))),
            ("segment.bytes", str(max(settings.transaction_state_log_segment_bytes, SEGMENT_BYTES_MIN))),
        ],
    )
