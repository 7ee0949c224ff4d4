"""A partition change under construction: target ISR, ELR, replicas and leader.

Callers set targets (`isr`, `replicas`, `lost`, …); `record` completes a reassignment if possible, settles the ELR,
elects a leader and returns the difference as a PartitionChangeRecord.
"""

from enum import Enum, auto
from typing import Final

from moldau.machines.metadata.builder import NO_LEADER_CHANGE, NO_RECOVERY_CHANGE
from moldau.machines.metadata.cluster_view import ClusterView
from moldau.machines.metadata.image import TopicImage
from moldau.machines.metadata.placement import default_directory
from moldau.model.ids import NO_DIRECTORY, NO_NODE
from moldau.wire import messages

RECOVERED: Final = 0
RECOVERING: Final = 1


class Election(Enum):
    """Election rules."""

    CLEAN = auto()  # keep the leader if possible, else the first ISR or ELR member
    PREFERRED = auto()  # the first replica, if possible
    UNCLEAN = auto()  # if no other can, any replica, at the cost of lost records


class PartitionDraft:
    """Builds a partition change; see the module.

    A replica that left an ISR below min ISR has every acknowledged record, because the high watermark does not advance
    in that state. Such replicas form the ELR (KIP-966) and rank after the ISR. If both are empty, the last known leader
    is awaited: it has the most records.
    """

    def __init__(
        self, view: ClusterView, topic: TopicImage, index: int, *, without: int = NO_NODE, having: int = NO_NODE
    ) -> None:
        """`without` and `having` name a broker that is about to become inactive, or active."""
        self._view, self._topic, self._index = view, topic, index
        self._without, self._having = without, having
        self._old = old = topic.partitions[index]
        self.replicas, self.adding, self.removing = old.replicas, old.adding_replicas, old.removing_replicas
        self.isr, self._eligible, self._last_known = old.isr, old.eligible_leader_replicas, old.last_known_elr
        self.leader = old.leader
        self.recovery = old.leader_recovery_state
        self.lost: int = NO_NODE  # a replica that may have lost records
        self.damaged: int = NO_NODE  # a replica with unusable data, not even for an unclean election

    def record(self, election: Election = Election.CLEAN) -> messages.PartitionChangeRecord | None:
        """Return the change record, or None if nothing changes."""
        self._complete_reassignment()
        self._update_elr()
        self._elect(election)
        self._complete_reassignment()  # the new leader is in sync, and may complete the target
        self._remember_leader()
        return self._difference()

    def _complete_reassignment(self) -> None:
        """Complete the reassignment once all target replicas are in sync: remove the others."""
        target = tuple(each for each in self.replicas if each not in self.removing)
        if (self.adding or self.removing) and all(each in self.isr for each in target):
            self.isr = tuple(each for each in self.isr if each in target)
            self.replicas = target
            self.adding = self.removing = ()
            self._eligible = ()  # no replica is out of sync

    def _update_elr(self) -> None:
        old = self._old
        if not self._view.image.has_elr:
            # The last member stays: it is the only one known to have all records.
            self.isr = self.isr or tuple(each for each in old.isr if each in self.replicas)
            self._eligible = () if self.isr else self._without_lost(old.eligible_leader_replicas)
            return
        self._eligible = () if self._is_isr_enough() else self._without_lost((*old.isr, *old.eligible_leader_replicas))

    def _is_isr_enough(self) -> bool:
        """Whether the ISR is large enough to acknowledge writes."""
        return len(self.isr) >= min(self._view.min_isr(self._topic.name), len(self.replicas))

    def _without_lost(self, had_all: tuple[int, ...]) -> tuple[int, ...]:
        """Filter out replicas that lost their records."""
        return tuple(each for each in self.replicas if each in had_all and each not in self.isr and each != self.lost)

    # Election

    def _elect(self, election: Election) -> None:
        leader = self._clean_leader(election)
        if leader != NO_NODE:
            self.leader = leader
            if leader not in self.isr:
                self.isr = tuple(each for each in self.replicas if each in self.isr or each == leader)
                others = tuple(each for each in self._eligible if each != leader)
                self._eligible = () if self._is_isr_enough() or not self._view.image.has_elr else others
            return
        self.leader = self._unclean_leader(election)
        if self.leader != NO_NODE:  # its log is authoritative from now on
            self.isr, self._eligible = (self.leader,), ()
            self.recovery = RECOVERING

    def _clean_leader(self, election: Election) -> int:
        candidates = [each for each in self.replicas if each in self.isr and self._can_lead(each)]
        if election is Election.PREFERRED and self.replicas[0] in candidates:
            return self.replicas[0]
        if self._old.leader in candidates:
            return self._old.leader
        candidates += [each for each in self.replicas if each in self._eligible and self._can_lead(each)]
        return candidates[0] if candidates else NO_NODE

    def _unclean_leader(self, election: Election) -> int:
        if not self.isr and not self._eligible and self._can_last_leader_lead():
            return self._last_known[0]
        if election is Election.UNCLEAN:
            return next((each for each in self.replicas if self._can_lead(each)), NO_NODE)
        return NO_NODE

    def _can_last_leader_lead(self) -> bool:
        return (
            len(self._last_known) == 1 and self._last_known[0] in self.replicas and self._can_lead(self._last_known[0])
        )

    def _can_lead(self, broker_id: int) -> bool:
        is_online = broker_id == self._having or self._view.image.is_online(broker_id, self._old)
        return broker_id != self._without and is_online

    def _remember_leader(self) -> None:
        if self.isr:
            self._last_known = ()
        elif self._is_worth_waiting_for(self._old.leader):
            self._last_known = (self._old.leader,)
        elif not any(map(self._is_worth_waiting_for, self._last_known)):
            # Wait for a replica that had all records until now: others may have none.
            best = (*self._eligible, *self._old.isr, *self._old.eligible_leader_replicas, *self.replicas)
            self._last_known = tuple(filter(self._is_worth_waiting_for, best))[:1]

    def _is_worth_waiting_for(self, broker_id: int) -> bool:
        return broker_id in self.replicas and broker_id != self.damaged

    # The record

    def _difference(self) -> messages.PartitionChangeRecord | None:
        if self._is_unchanged():
            return None
        old = self._old
        # Removed replicas are fenced by the new epoch
        has_removed = any(each not in self.replicas for each in old.replicas)
        return messages.PartitionChangeRecord(
            partition_id=self._index,
            topic_id=self._topic.topic_id,
            isr=_if_changed(self.isr, old.isr),
            leader=self.leader if self.leader != old.leader or has_removed else NO_LEADER_CHANGE,
            replicas=_if_changed(self.replicas, old.replicas),
            removing_replicas=_if_changed(self.removing, old.removing_replicas),
            adding_replicas=_if_changed(self.adding, old.adding_replicas),
            leader_recovery_state=NO_RECOVERY_CHANGE if self.recovery == old.leader_recovery_state else self.recovery,
            directories=None if self.replicas == old.replicas else self._directories(),
            eligible_leader_replicas=_if_changed(self._eligible, old.eligible_leader_replicas),
            last_known_elr=_if_changed(self._last_known, old.last_known_elr),
        )

    def _is_unchanged(self) -> bool:
        old = self._old
        return (
            (self.leader, self.isr, self._eligible) == (old.leader, old.isr, old.eligible_leader_replicas)
            and (self.replicas, self.adding, self.removing)
            == (old.replicas, old.adding_replicas, old.removing_replicas)
            and (self.recovery, self._last_known) == (old.leader_recovery_state, old.last_known_elr)
        )

    def _directories(self) -> list[bytes]:
        old = dict(zip(self._old.replicas, self._old.directories, strict=False))
        brokers = self._view.image.brokers
        return [
            old[each] if each in old else default_directory(brokers[each]) if each in brokers else NO_DIRECTORY
            for each in self.replicas
        ]


def new_epoch(topic: TopicImage, index: int) -> messages.PartitionChangeRecord:
    """Return a change that only bumps the partition epoch: it invalidates earlier proposals."""
    isr = list(topic.partitions[index].isr)
    return messages.PartitionChangeRecord(partition_id=index, topic_id=topic.topic_id, isr=isr)


def _if_changed(new: tuple[int, ...], old: tuple[int, ...]) -> list[int] | None:
    return None if new == old else list(new)
