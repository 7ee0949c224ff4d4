"""The settings that the metadata machine obeys, and the bounds it sets on requests."""

from dataclasses import dataclass
from typing import Final

from moldau.model.settings import Kind, setting

PARTITIONS_PER_REQUEST_MAX: Final = 10_000
RECORDS_PER_DECISION_MAX: Final = 20_000
REPLICAS_PER_PARTITION_MAX: Final = 32_767


@dataclass(frozen=True, kw_only=True, slots=True)
class MetadataSettings:
    """What a topic gets that does not say, and whether topics may be deleted."""

    num_partitions: int = setting(
        "num.partitions",
        1,
        kind=Kind.INT,
        at_least=1,
        doc="The partitions of a topic that is created without a number.",
    )
    default_replication_factor: int = setting(
        "default.replication.factor",
        1,
        kind=Kind.INT,
        at_least=1,
        at_most=REPLICAS_PER_PARTITION_MAX,
        doc="The replicas of each partition of a topic that is created without a number.",
    )
    delete_topic_enable: bool = setting(
        "delete.topic.enable", True, doc="Whether topics can be deleted; if not, the request is refused."
    )
