"""`__consumer_offsets`: how it is made when somebody first needs it, and which of its partitions keeps a group."""

import logging
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from moldau.machines.groups.settings import DECISION_BYTES_MAX
from moldau.machines.metadata.topics import NewTopic

if TYPE_CHECKING:
    from moldau.broker.broker import Broker

logger = logging.getLogger(__name__)

OFFSETS_TOPIC: Final = "__consumer_offsets"
HASHES_KEPT: Final = 1 << 16
KEPT_CHARACTERS_MAX: Final = 256  # an id may have a hundred times as many
SEGMENT_BYTES_MIN: Final = 2 * DECISION_BYTES_MAX  # a batch must fit into a segment
_INT_BITS: Final = 0xFFFF_FFFF
_INT_MIN: Final = 0x8000_0000


def _spread(group_id: str) -> int:
    return _kept_hash(group_id) if len(group_id) <= KEPT_CHARACTERS_MAX else _hash(group_id)


@lru_cache(HASHES_KEPT)
def _kept_hash(group_id: str) -> int:
    return _hash(group_id)


def _hash(group_id: str) -> int:
    """Java's hash of a string, made positive as Kafka does: its tools must find a group in the same partition."""
    hashed = 0
    units = group_id.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        hashed = (31 * hashed + (high << 8 | low)) & _INT_BITS
    return 0 if hashed == _INT_MIN else hashed if hashed < _INT_MIN else _INT_BITS + 1 - hashed


def partition_for(group_id: str, partitions: int) -> int:
    """Which partition of the offsets topic keeps a group."""
    return _spread(group_id) % partitions


def new_offsets_topic(broker: "Broker") -> NewTopic:
    """The topic as the settings want it, with as many replicas as there are brokers for."""
    settings = broker.settings
    wanted = settings.offsets_topic_replication_factor
    brokers = sum(each.is_active for each in broker.image.brokers.values())
    if wanted > brokers:
        logger.warning(
            "%s is created with %d of %d replicas (offsets.topic.replication.factor): there are no more brokers",
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
