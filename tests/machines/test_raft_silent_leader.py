"""A silent leader: its followers must not make each other wait for it."""

import pytest
from raft_scene import Scene, every, leads

from moldau.machines.raft import effects as do
from moldau.machines.raft import events as on
from moldau.machines.raft.roles import RoleName
from moldau.model.errors import ErrorCode


@pytest.mark.proves("H6")
def test_granted_pre_vote_that_names_the_silent_leader_counts() -> None:
    scene = Scene()
    fetch = scene.follow(2, epoch=1)
    scene.fetched(fetch)
    scene.wait_for_deadline()
    requested = [each for each in every(scene.effects, do.SendVote) if each.is_pre_vote and each.to.node_id == 3]
    scene.receive(on.VoteResponseReceived(requested[-1], ErrorCode.NONE, leads(2, 1), True))
    assert scene.machine.role is RoleName.CANDIDATE
    assert scene.machine.epoch == 2


def test_leader_named_in_rejected_pre_vote_is_followed() -> None:
    scene = Scene()
    fetch = scene.follow(2, epoch=1)
    scene.fetched(fetch)
    scene.wait_for_deadline()
    requested = [each for each in every(scene.effects, do.SendVote) if each.is_pre_vote and each.to.node_id == 3]
    scene.receive(on.VoteResponseReceived(requested[-1], ErrorCode.NONE, leads(2, 1), False))
    assert scene.machine.role is RoleName.FOLLOWER
