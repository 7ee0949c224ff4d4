"""Check the controller: an ISR grows only by a request of its leader, and only by a current one."""

from moldau.machines.metadata.image import MetadataImage, PartitionImage
from moldau.model.ids import NO_EPOCH
from moldau_dev.simulation.cluster.image_probe import Changed
from moldau_dev.simulation.cluster.node_state import Replica
from moldau_dev.simulation.workload import Violation

State = tuple[str, int, int]  # folder, leader epoch, partition epoch


class IsrProbe:
    """Records the ISRs that leaders request, per state, and compares them with every new ISR."""

    def __init__(self) -> None:
        self.checks = 0
        self._proposals: dict[State, list[dict[int, int]]] = {}  # member to broker epoch, one per request

    def proposed(self, folder: str, leader: Replica) -> None:
        if leader.proposed:
            proposals = self._proposals.setdefault((folder, leader.leader_epoch, leader.proposed_in), [])
            proposals.append(dict(leader.proposed))

    def take(self, change: Changed, image: MetadataImage) -> None:
        """Check a change made by one record that elects no leader, unless it completes a reassignment."""
        folder, now, before = change
        if before is None or not change.is_one_step or not now.has_leader:
            return
        if now.leader_epoch != before.leader_epoch and not change.completes_reassignment:
            return
        joined = [each for each in now.isr if each not in before.isr]
        if not joined and not _is_same(before, now):
            return  # a member has left: fenced, shut down, or removed by the leader
        self.checks += 1
        proposals = self._proposals.get((folder, before.leader_epoch, before.partition_epoch), [])
        left = before.removing_replicas if change.completes_reassignment else ()
        fitting = [each for each in proposals if sorted(set(each).difference(left)) == sorted(now.isr)]
        if not fitting:
            raise Violation(f"{folder}: {before} became {now}, but its leader requested {proposals}")
        if not any(_has_current_epochs(each, joined, image) for each in fitting):
            raise Violation(f"{folder}: {joined} joined by requests with old broker epochs: {fitting}")


def _is_same(before: PartitionImage, now: PartitionImage) -> bool:
    """Whether only the partition epoch has changed."""
    return (
        (sorted(before.isr), before.eligible_leader_replicas) == (sorted(now.isr), now.eligible_leader_replicas)
        and (before.replicas, before.adding_replicas) == (now.replicas, now.adding_replicas)
        and (before.removing_replicas, before.last_known_elr) == (now.removing_replicas, now.last_known_elr)
        and before.leader_recovery_state == now.leader_recovery_state
    )


def _has_current_epochs(proposal: dict[int, int], joined: list[int], image: MetadataImage) -> bool:
    """Whether joined members have the broker epochs of the request: a restarted broker first leaves the ISR."""
    return all(
        proposal[each] == NO_EPOCH or (each in image.brokers and proposal[each] == image.brokers[each].epoch)
        for each in joined
    )
