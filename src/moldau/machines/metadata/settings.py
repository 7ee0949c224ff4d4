"""What the metadata machine is told to do by default, and the bounds it sets on requests."""

from dataclasses import dataclass
from typing import Final

PARTITIONS_PER_REQUEST_MAX: Final = 10_000
RESOURCES_PER_REQUEST_MAX: Final = 5_000  # altered or deleted at once: everybody waits while that is decided
RECORDS_PER_DECISION_MAX: Final = 20_000
CONFIG_CHARACTERS_PER_DECISION_MAX: Final = 2_000_000  # a decision is one batch, and a batch fits into a segment


@dataclass(frozen=True, kw_only=True, slots=True)
class MetadataSettings:
    """What a topic gets that does not say, and whether topics may be deleted; `broker/settings.py` declares them."""

    num_partitions: int = 1
    default_replication_factor: int = 1
    delete_topic_enable: bool = True
