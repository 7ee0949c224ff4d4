"""A partition on its way to its next state: who is in sync, who is eligible, who leads."""

from enum import Enum, auto
from typing import Final

from moldau.machines.metadata.builder import NO_LEADER_CHANGE, NO_RECOVERY_CHANGE
from moldau.machines.metadata.cluster_view import ClusterView
from moldau.machines.metadata.image import TopicImage
from moldau.machines.metadata.placement import default_directory
from moldau.model.ids import NO_NODE
from moldau.wire import messages

RECOVERED: Final = 0
RECOVERING: Final = 1


class Election(Enum):
    """How a leader is looked for."""

    CLEAN = auto()  # the present one if it can, else the first replica that has everything
    PREFERRED = auto()  # the first replica of all if it can
    UNCLEAN = auto()  # if nobody else can, anybody, at the price of lost records


class PartitionDraft:
    """Targets are set by whoever wants the change; `record` elects a leader and says what to write.

    Who left an ISR that was, or became, too small for acknowledged writes holds everything acknowledged, because the
    high watermark stands still then. Such replicas are eligible (KIP-966), and come after those in sync. When nobody
    is left in either, the last leader is remembered and waited for: it has most.
    """

    def __init__(
        self, view: ClusterView, topic: TopicImage, index: int, *, without: int = NO_NODE, having: int = NO_NODE
    ) -> None:
        """`without` and `having` name a broker that is about to stop, or to begin, being active."""
        self._view, self._topic, self._index = view, topic, index
        self._without, self._having = without, having
        self._old = old = topic.partitions[index]
        self.replicas, self.adding, self.removing = old.replicas, old.adding_replicas, old.removing_replicas
        self.isr, self._eligible, self._last_known = old.isr, old.eligible_leader_replicas, old.last_known_elr
        self.leader = old.leader
        self.recovery = old.leader_recovery_state
        self.lost: int = NO_NODE  # a replica that may lack what it had
        self.damaged: int = NO_NODE  # a replica whose copy is of no use at all, not even if nobody has a better one

    def record(self, election: Election = Election.CLEAN) -> messages.PartitionChangeRecord | None:
        """What leads from the partition as it is to this draft, or None if that is where it is."""
        self._complete_reassignment()
        self._settle_eligible()
        self._elect(election)
        self._complete_reassignment()  # who leads is in sync, and may have been the last of the plan who was not
        self._remember_leader()
        return self._difference()

    def _complete_reassignment(self) -> None:
        """All replicas of the plan have everything, those that were there before too: the others are let go."""
        target = tuple(each for each in self.replicas if each not in self.removing)
        if (self.adding or self.removing) and all(each in self.isr for each in target):
            self.isr = tuple(each for each in self.isr if each in target)
            self.replicas = target
            self.adding = self.removing = ()
            self._eligible = ()  # nobody is left who is not in sync

    def _settle_eligible(self) -> None:
        old = self._old
        if not self._view.image.has_elr:
            # The last member stays: it alone is known to have everything.
            self.isr = self.isr or tuple(each for each in old.isr if each in self.replicas)
            self._eligible = () if self.isr else self._of_use(old.eligible_leader_replicas)
            return
        self._eligible = () if self._is_isr_enough() else self._of_use((*old.isr, *old.eligible_leader_replicas))

    def _is_isr_enough(self) -> bool:
        """Whether it acknowledges writes, which others lack from then on."""
        return len(self.isr) >= min(self._view.min_isr(self._topic.name), len(self.replicas))

    def _of_use(self, had_all: tuple[int, ...]) -> tuple[int, ...]:
        """Those who had everything, and have it still."""
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
        if self.leader != NO_NODE:  # what it has is the truth from now on
            self.isr, self._eligible = (self.leader,), ()
            self.recovery = RECOVERING

    def _clean_leader(self, election: Election) -> int:
        candidates = [each for each in self.replicas if each in self.isr and self._is_able(each)]
        if election is Election.PREFERRED and self.replicas[0] in candidates:
            return self.replicas[0]
        if self._old.leader in candidates:
            return self._old.leader
        candidates += [each for each in self.replicas if each in self._eligible and self._is_able(each)]
        return candidates[0] if candidates else NO_NODE

    def _unclean_leader(self, election: Election) -> int:
        if not self.isr and not self._eligible and self._is_able_last_leader():
            return self._last_known[0]
        if election is Election.UNCLEAN:
            return next((each for each in self.replicas if self._is_able(each)), NO_NODE)
        return NO_NODE

    def _is_able_last_leader(self) -> bool:
        return (
            len(self._last_known) == 1 and self._last_known[0] in self.replicas and self._is_able(self._last_known[0])
        )

    def _is_able(self, broker_id: int) -> bool:
        return broker_id != self._without and (broker_id == self._having or self._view.image.is_active(broker_id))

    def _remember_leader(self) -> None:
        if self.isr:
            self._last_known = ()
        elif self._is_worth_waiting_for(self._old.leader):
            self._last_known = (self._old.leader,)
        elif not any(map(self._is_worth_waiting_for, self._last_known)):
            # Somebody must be waited for: those who had everything until now have most, the others perhaps nothing.
            best = (*self._eligible, *self._old.isr, *self._old.eligible_leader_replicas, *self.replicas)
            self._last_known = tuple(filter(self._is_worth_waiting_for, best))[:1]

    def _is_worth_waiting_for(self, broker_id: int) -> bool:
        return broker_id in self.replicas and broker_id != self.damaged

    # The record

    def _difference(self) -> messages.PartitionChangeRecord | None:
        if self._is_unchanged():
            return None
        old = self._old
        has_shed = any(each not in self.replicas for each in old.replicas)  # who is gone is fenced off by the epoch
        return messages.PartitionChangeRecord(
            partition_id=self._index,
            topic_id=self._topic.topic_id,
            isr=_news(self.isr, old.isr),
            leader=self.leader if self.leader != old.leader or has_shed else NO_LEADER_CHANGE,
            replicas=_news(self.replicas, old.replicas),
            removing_replicas=_news(self.removing, old.removing_replicas),
            adding_replicas=_news(self.adding, old.adding_replicas),
            leader_recovery_state=NO_RECOVERY_CHANGE if self.recovery == old.leader_recovery_state else self.recovery,
            directories=None if self.replicas == old.replicas else self._directories(),
            eligible_leader_replicas=_news(self._eligible, old.eligible_leader_replicas),
            last_known_elr=_news(self._last_known, old.last_known_elr),
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
            old[each] if each in old else default_directory(brokers[each]) if each in brokers else bytes(16)
            for each in self.replicas
        ]


def new_epoch(topic: TopicImage, index: int) -> messages.PartitionChangeRecord:
    """Everything as it is, in a new partition epoch: what was proposed in the old one comes too late."""
    isr = list(topic.partitions[index].isr)
    return messages.PartitionChangeRecord(partition_id=index, topic_id=topic.topic_id, isr=isr)


def _news(new: tuple[int, ...], old: tuple[int, ...]) -> list[int] | None:
    return None if new == old else list(new)
