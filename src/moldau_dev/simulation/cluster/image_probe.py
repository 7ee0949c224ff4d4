"""Check the committed metadata of partitions, image by image."""

from collections import Counter
from typing import NamedTuple

from moldau.machines.metadata.image import MetadataImage, PartitionImage, TopicImage
from moldau_dev.simulation.workload import Violation


class Changed(NamedTuple):
    """A partition that changed in the newest image."""

    folder: str
    partition: PartitionImage
    before: PartitionImage | None = None  # in the previous image

    @property
    def is_one_step(self) -> bool:
        """Whether a single record made the change: two images may be many records apart."""
        return self.before is not None and self.partition.partition_epoch == self.before.partition_epoch + 1

    @property
    def completes_reassignment(self) -> bool:
        """Whether a reassignment is complete: the last replica joins and the old ones leave in one step."""
        return self.before is not None and self.before.is_moving and not self.partition.is_moving


class ImageProbe:
    """Follows the newest committed image of any node; at one offset all nodes have the same image."""

    def __init__(self, tally: Counter[str]) -> None:
        self.newest = MetadataImage()
        self._tally = tally

    def check(self, image: MetadataImage) -> list[Changed]:
        if image is self.newest or image.offset <= self.newest.offset:
            return []
        before, self.newest = self.newest, image
        if image.topics is before.topics:
            return []
        return [each for topic in image.topics.values() for each in self._compare(before.topics.get(topic.name), topic)]

    def partition(self, folder: str) -> PartitionImage | None:
        topic, _, index = folder.rpartition("-")
        return self.newest.partition(topic, int(index))

    def _compare(self, before: TopicImage | None, now: TopicImage) -> list[Changed]:
        if now is before:
            return []
        old = before.partitions if before is not None and before.topic_id == now.topic_id else ()
        changed = []
        for index, partition in enumerate(now.partitions):
            known = old[index] if index < len(old) else None
            if partition is not known and partition != known:
                change = Changed(f"{now.name}-{index}", partition, known)
                _check(change.folder, partition)
                if known is not None:
                    _check_step(change.folder, known, partition)
                    self._count(known, partition)
                if change.is_one_step:
                    _check_election(change)
                changed.append(change)
        return changed

    def _count(self, before: PartitionImage, now: PartitionImage) -> None:
        if now.leader_epoch != before.leader_epoch and now.has_leader:
            self._tally["partition elections"] += 1
        if sorted(now.isr) != sorted(before.isr):
            self._tally["ISR changes"] += 1


def _check(folder: str, partition: PartitionImage) -> None:
    """Check what holds for a partition in every image."""
    if partition.has_leader and partition.leader not in partition.isr:
        raise Violation(f"{folder}: the leader {partition.leader} is not in the ISR {partition.isr}")
    if not set(partition.isr) <= set(partition.replicas):
        raise Violation(f"{folder}: the ISR {partition.isr} is not among the replicas {partition.replicas}")
    if set(partition.isr) & set(partition.eligible_leader_replicas):
        raise Violation(f"{folder}: {partition.eligible_leader_replicas} are eligible and in the ISR {partition.isr}")


def _check_step(folder: str, before: PartitionImage, now: PartitionImage) -> None:
    """Check what holds between two images."""
    if now.partition_epoch <= before.partition_epoch:
        raise Violation(f"{folder}: partition epoch {before.partition_epoch} became {now.partition_epoch}")
    if now.leader_epoch < before.leader_epoch:
        raise Violation(f"{folder}: leader epoch {before.leader_epoch} became {now.leader_epoch}")
    if now.leader != before.leader and now.has_leader and now.leader_epoch == before.leader_epoch:
        raise Violation(f"{folder}: {before.leader} and {now.leader} lead in epoch {now.leader_epoch}")


def _check_election(change: Changed) -> None:
    """Only replicas with all committed records are elected: unclean elections are off."""
    folder, now, before = change
    if before is None or not now.has_leader or now.leader == before.leader:
        return
    may_lead = (*before.isr, *before.eligible_leader_replicas, *(() if before.isr else before.last_known_elr))
    if change.completes_reassignment:
        may_lead = (*may_lead, *now.isr)  # `IsrProbe` checks that the leader has requested those
    if now.leader not in may_lead:
        raise Violation(f"{folder}: {now.leader} was elected, but only {may_lead} may lead")
