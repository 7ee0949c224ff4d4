"""A leader role commits nothing after the end of its epoch."""

from types import SimpleNamespace
from typing import Any

import pytest

from moldau.broker.partitions.leader_role import LeaderRole
from moldau.machines.replication import LeaderMachine, ProposeIsr
from moldau.model.ids import TopicPartition


class Scene:
    """A leader alone in the ISR with uncommitted records, and a follower that has all of them."""

    def __init__(self) -> None:
        self.committed: list[int] = []
        self.proposed: list[ProposeIsr] = []
        self.partition: Any = SimpleNamespace(
            name=TopicPartition("t", 0),
            followers={},
            role=SimpleNamespace(),
            high_watermark=10,
            committed_to=lambda offset, _: self.committed.append(offset),
        )
        self.leading = self.partition.role.leading = self.new_leading()

    def new_leading(self) -> LeaderRole:
        clock: Any = SimpleNamespace(monotonic_ms=lambda: 0.0)
        machine = LeaderMachine(
            1,
            leader_epoch=5,
            partition_epoch=1,
            replicas=(1, 2, 3),
            isr=(1,),
            end_offset=12,
            high_watermark=10,
            min_isr=2,
            lag_max_ms=1000,
            broker_epoch_of=lambda _: 70,
            now_ms=0.0,
        )
        return LeaderRole(self.partition, machine, clock, lambda _, proposal: self.proposed.append(proposal))

    def join(self) -> ProposeIsr:
        proposal = self.leading.machine.follower_fetched(2, 70, 12, 0.0, 0)
        assert proposal is not None
        return proposal


@pytest.mark.proves("H1", part="the high watermark")
def test_isr_response_after_the_end_of_the_epoch_commits_nothing() -> None:
    scene = Scene()
    proposal = scene.join()
    scene.partition.role.leading = scene.new_leading()
    scene.leading.isr_accepted(proposal, 2, (1, 2))
    assert scene.committed == []
    assert scene.proposed == []


def test_isr_response_within_the_epoch_commits_what_both_replicas_have() -> None:
    scene = Scene()
    scene.leading.isr_accepted(scene.join(), 2, (1, 2))
    assert scene.committed == [12]
