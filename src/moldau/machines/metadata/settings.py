"""Defaults of the metadata machine and limits on requests."""

from dataclasses import dataclass
from typing import Final

PARTITIONS_PER_REQUEST_MAX: Final = 10_000
RESOURCES_PER_REQUEST_MAX: Final = 5_000  # altered or deleted per request: a decision blocks the event loop
RECORDS_PER_DECISION_MAX: Final = 20_000
PARTITIONS_PER_DECISION_MAX: Final = 1_000  # changed per decision when a broker is fenced or unfenced; the rest follow
CONFIG_CHARACTERS_PER_DECISION_MAX: Final = 2_000_000  # a decision is one batch, which must fit into a segment


@dataclass(frozen=True, kw_only=True, slots=True)
class MetadataSettings:
    """Defaults for unset metadata; `broker/configs/broker_settings.py` declares most of them."""

    num_partitions: int = 1
    default_replication_factor: int = 1
    delete_topic_enable: bool = True
    min_insync_replicas: int = 1
    unclean_leader_election_enable: bool = False
    broker_session_timeout_ms: float = 9_000
    auto_leader_rebalance_enable: bool = True
    leader_imbalance_check_interval_ms: float = 300_000
