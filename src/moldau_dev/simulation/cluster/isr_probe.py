"""The promise of the controller: an ISR grows by the word of its leader alone, and that about what is the case now."""

from moldau.machines.metadata.image import MetadataImage, PartitionImage
from moldau.model.ids import NO_EPOCH
from moldau_dev.simulation.cluster.image_probe import Changed
from moldau_dev.simulation.cluster.node_state import Replica
from moldau_dev.simulation.workload import Violation

State = tuple[str, int, int]  # the folder, the leader epoch and the partition epoch


class IsrProbe:
    """Remembers what leaders have asked for, in which state, and compares every ISR that comes with it."""

    def __init__(self) -> None:
        self.looks = 0
        self._proposals: dict[State, list[dict[int, int]]] = {}  # each by member, with its broker epoch

    def proposed(self, folder: str, leader: Replica) -> None:
        if leader.proposed:
            proposals = self._proposals.setdefault((folder, leader.leader_epoch, leader.proposed_in), [])
            proposals.append(dict(leader.proposed))

    def take(self, change: Changed, image: MetadataImage) -> None:
        """Where one record made a partition what it is, and no leader came or went by it but at the end of a move."""
        folder, now, before = change
        if before is None or not change.is_one_step or not now.has_leader:
            return
        if now.leader_epoch != before.leader_epoch and not change.has_arrived:
            return
        joined = [each for each in now.isr if each not in before.isr]
        if not joined and not _is_same(before, now):
            return  # somebody has left: fenced, stopped, or by the leader's word
        self.looks += 1
        made = self._proposals.get((folder, before.leader_epoch, before.partition_epoch), [])
        left = before.removing_replicas if change.has_arrived else ()
        fitting = [each for each in made if sorted(set(each).difference(left)) == sorted(now.isr)]
        if not fitting:
            raise Violation(f"{folder}: {before} became {now}, but its leader has asked for {made}")
        if not any(_is_of_these_lives(each, joined, image) for each in fitting):
            raise Violation(f"{folder}: {joined} joined by the word of former lives: {fitting}")


def _is_same(before: PartitionImage, now: PartitionImage) -> bool:
    """Nothing but the partition epoch is new."""
    return (
        (sorted(before.isr), before.eligible_leader_replicas) == (sorted(now.isr), now.eligible_leader_replicas)
        and (before.replicas, before.adding_replicas) == (now.replicas, now.adding_replicas)
        and (before.removing_replicas, before.last_known_elr) == (now.removing_replicas, now.last_known_elr)
        and before.leader_recovery_state == now.leader_recovery_state
    )


def _is_of_these_lives(proposal: dict[int, int], joined: list[int], image: MetadataImage) -> bool:
    """Whoever begins a new life leaves the ISR, so those who are in it live the lives in which they joined."""
    return all(
        proposal[each] == NO_EPOCH or (each in image.brokers and proposal[each] == image.brokers[each].epoch)
        for each in joined
    )
