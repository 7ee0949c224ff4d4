"""Input of decisions about leaders and replicas: the image, its index and the settings."""

from dataclasses import dataclass
from typing import Final

from moldau.machines.metadata.image import MetadataImage, TopicImage
from moldau.machines.metadata.partition_index import PartitionIndex, PartitionKey
from moldau.machines.metadata.settings import MetadataSettings

MIN_ISR: Final = "min.insync.replicas"
UNCLEAN: Final = "unclean.leader.election.enable"


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The state at one moment; decisions only read it."""

    image: MetadataImage
    index: PartitionIndex
    settings: MetadataSettings

    def topic(self, key: PartitionKey) -> TopicImage:
        return self.image.topics_by_id[key.topic_id]

    def min_isr(self, topic: str) -> int:
        return int(self._setting(topic, MIN_ISR) or self.settings.min_insync_replicas)

    def allows_unclean(self, topic: str) -> bool:
        """Whether an out-of-sync replica may be elected if no other can."""
        text = self._setting(topic, UNCLEAN)
        return self.settings.unclean_leader_election_enable if text is None else text.strip().lower() == "true"

    def _setting(self, topic: str, name: str) -> str | None:
        own = self.image.topic_configs(topic).get(name)
        return own if own is not None else self.image.broker_configs(None).get(name)
