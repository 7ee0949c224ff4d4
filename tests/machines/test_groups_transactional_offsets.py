"""Offsets committed in a transaction: who may commit, their visibility, and what waits for the end."""

import pytest
from consumer_scene import Consumer, ConsumerScene, settle
from groups_scene import Scene, deleted_topic

from moldau.machines.groups.settings import GroupSettings
from moldau.model.errors import ErrorCode, InvalidCommitOffsetSize
from moldau.model.units import DAY_MS
from moldau.wire import messages

FetchGroup = messages.OffsetFetchRequest.OffsetFetchRequestGroup
FetchTopic = messages.OffsetFetchRequest.OffsetFetchRequestTopics
NONE = ErrorCode.NONE


def fetched(scene: Scene, *, require_stable: bool, names: bool = True) -> list[tuple[int, ErrorCode]]:
    topics = [FetchTopic(name="t", partition_indexes=[0])] if names else None
    response = scene.machine.fetch_offsets(FetchGroup(group_id="g", topics=topics), require_stable=require_stable)
    return [
        (each.committed_offset, ErrorCode(each.error_code)) for topic in response.topics for each in topic.partitions
    ]


@pytest.mark.proves("P3")
def test_pending_offset_is_invisible_and_unstable() -> None:
    scene = Scene()
    scene.commit(3)
    assert scene.commit_in_transaction(5) is NONE
    assert fetched(scene, require_stable=False) == [(3, NONE)]
    for names in (True, False):
        assert fetched(scene, require_stable=True, names=names) == [(-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)]
    scene.end_transaction()
    assert fetched(scene, require_stable=True) == [(5, NONE)]


@pytest.mark.proves("P3")
def test_aborted_offset_has_no_effect() -> None:
    scene = Scene()
    scene.commit_in_transaction(5)
    scene.end_transaction(is_commit=False)
    assert scene.committed() is None
    assert fetched(scene, require_stable=True) == [(-1, NONE)]
    assert not scene.machine.state.pending
    scene.end_transaction(7)  # a transaction without offsets here


@pytest.mark.proves("P3")
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, NONE),  # as in the first versions, without members
        ({"generation": 1}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation": 1, "member_id": "mallory"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"instance_id": "one"}, ErrorCode.FENCED_INSTANCE_ID),
        ({"generation": 0, "member_id": "LEADER"}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation": 2, "member_id": "LEADER"}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation": 1, "member_id": "LEADER"}, NONE),
        ({"generation": 1, "member_id": "LEADER", "instance_id": "one"}, NONE),
    ],
)
def test_stale_member_cannot_commit_in_a_transaction(options: dict[str, str | int], error: ErrorCode) -> None:
    scene = Scene()
    leader, _ = scene.settle("one", None)
    known = {name: leader if value == "LEADER" else value for name, value in options.items()}
    assert scene.commit_in_transaction(5, **known) is error  # type: ignore[arg-type]
    assert bool(scene.machine.state.pending) == (error is NONE)


def test_transactional_commit_is_accepted_before_the_assignment() -> None:
    scene = Scene()
    member_id, ticket = scene.enter()
    scene.pass_time(scene.settings.group_initial_rebalance_delay_ms)
    generation = scene.responses[ticket].generation_id
    assert scene.commit(5, member_id=member_id, generation=generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert scene.commit_in_transaction(5, member_id=member_id, generation=generation) is NONE


def test_unknown_group_accepts_offsets_without_a_generation() -> None:
    scene = Scene()
    assert scene.commit_in_transaction(5, generation=3) is ErrorCode.ILLEGAL_GENERATION
    assert scene.commit_in_transaction(5) is NONE
    assert scene.commit_in_transaction(5, member_id="m") is NONE


def test_consumer_group_member_commits_in_its_epoch() -> None:
    scene = ConsumerScene(t=2)
    member = Consumer(scene, "m", "t").join()
    assert scene.commit_in_transaction(5, member_id="m", generation=member.epoch) is NONE
    stale = scene.commit_in_transaction(5, member_id="m", generation=member.epoch + 1)
    assert stale is ErrorCode.ILLEGAL_GENERATION
    assert scene.commit_in_transaction(5, member_id="n", generation=1) is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.proves("C2")
def test_commit_in_an_older_epoch_applies_to_partitions_owned_since() -> None:
    scene = ConsumerScene(t=1)
    member = Consumer(scene, "m", "t", "u").join()
    scene.add_topics(u=1)
    settle(member)
    assert member.epoch == 2
    assert scene.commit_in_transaction(5, member_id="m", generation=1) is NONE
    assert scene.commit_in_transaction(5, member_id="m", generation=1, topic="u") is ErrorCode.ILLEGAL_GENERATION
    scene.end_transaction()
    assert scene.committed() == 5


def test_oversized_metadata_and_too_many_offsets_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    note = "x" * (scene.settings.offset_metadata_max_bytes + 1)
    assert scene.commit_in_transaction(5, note=note) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert not scene.machine.state.pending
    monkeypatch.setattr("moldau.machines.groups.offsets.DECISION_BYTES_MAX", 50)
    assert scene.commit_in_transaction(5) is InvalidCommitOffsetSize.code


@pytest.mark.proves("P3")
def test_offsets_do_not_expire_while_a_transaction_is_pending() -> None:
    scene = Scene(GroupSettings(offsets_retention_minutes=60))
    scene.commit(3)
    scene.commit_in_transaction(5)
    scene.pass_time(2 * DAY_MS)
    assert scene.committed() == 3
    scene.end_transaction(is_commit=False)
    scene.pass_time(2 * DAY_MS)
    assert scene.committed() is None


def test_deleting_offsets_or_group_deletes_pending_offsets() -> None:
    scene = Scene()
    for delete in (scene.delete_offsets, scene.delete_group):
        scene.commit(3)
        scene.commit_in_transaction(5)
        assert delete() is NONE
        scene.end_transaction()
        assert scene.committed() is None


def test_pending_offset_is_removed_with_its_topic() -> None:
    scene = Scene()
    scene.commit_in_transaction(5)
    scene.commit_in_transaction(6, topic="u", producer_id=2)
    assert scene.run(lambda: scene.machine.decide_topics_deleted([deleted_topic(scene, "t")], now=scene.now))
    scene.end_transaction()
    scene.end_transaction(2)
    assert (scene.committed(), scene.committed("u")) == (None, 6)
