"""Committed offsets of groups: who may commit, fetch and delete them."""

import pytest
from groups_scene import Scene, subscription

from moldau.machines.groups import record_version
from moldau.model.errors import ErrorCode, InvalidCommitOffsetSize
from moldau.wire import messages

FetchGroup = messages.OffsetFetchRequest.OffsetFetchRequestGroup
FetchTopic = messages.OffsetFetchRequest.OffsetFetchRequestTopics


def fetched(scene: Scene, group_id: str = "g") -> dict[tuple[str, int], int]:
    """Return everything that the group has committed."""
    response = scene.machine.fetch_offsets(FetchGroup(group_id=group_id, topics=None))
    assert response.error_code == ErrorCode.NONE
    return {
        (topic.name, each.partition_index): each.committed_offset
        for topic in response.topics
        for each in topic.partitions
    }


def test_member_commits_in_its_generation() -> None:
    scene = Scene()
    leader, _ = scene.settle(None, None)
    assert scene.commit(5, member_id=leader, generation=1) == ErrorCode.NONE
    assert scene.commit(3, member_id=leader, generation=1) == ErrorCode.NONE  # offsets may go back
    assert fetched(scene) == {("t", 0): 3}


def test_records_equal_those_of_kafka() -> None:
    scene = Scene()
    topic_id = bytes(range(16))
    scene.commit(5, note="n", topic="t", topic_id=topic_id, partition=7)
    value = scene.machine.state.offset("g", "t", 7)
    assert value == messages.OffsetCommitValue(
        offset=5, leader_epoch=3, metadata="n", commit_timestamp=scene.wall_ms, expire_timestamp=-1, topic_id=topic_id
    )
    assert (scene.log[0][0], record_version(value)) == (b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x07", 4)


@pytest.mark.proves("C3")
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation": 1}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation": 1, "member_id": "mallory"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "mallory"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"instance_id": "three"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"instance_id": "one"}, ErrorCode.FENCED_INSTANCE_ID),
        ({"instance_id": "one", "generation": 1, "member_id": "mallory"}, ErrorCode.FENCED_INSTANCE_ID),
        ({"generation": 0, "member_id": "LEADER"}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation": 2, "member_id": "LEADER"}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation": -1, "member_id": "LEADER"}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation": 1, "member_id": "LEADER"}, ErrorCode.NONE),
        ({"generation": 1, "member_id": "LEADER", "instance_id": "one"}, ErrorCode.NONE),
    ],
)
def test_commit_that_does_not_fit_the_generation_is_rejected(options: dict[str, object], error: ErrorCode) -> None:
    scene = Scene()
    leader, _ = scene.settle("one", "two")
    if options.get("member_id") == "LEADER":
        options = {**options, "member_id": leader}
    assert scene.commit(5, **options) == error  # type: ignore[arg-type]
    assert (scene.committed() == 5) == (error == ErrorCode.NONE)


@pytest.mark.proves("C3")
def test_member_of_an_earlier_generation_cannot_commit() -> None:
    scene = Scene()
    leader, follower = scene.settle(None, None)
    scene.commit(5, member_id=follower, generation=1)
    for each in (leader, follower):
        ticket = scene.send_join(each, protocols=[("range", b"other")])
    scene.send_sync(scene.responses[ticket].leader, 2)
    assert scene.commit(4, member_id=follower, generation=1) == ErrorCode.ILLEGAL_GENERATION
    scene.leave((follower, None))
    assert scene.commit(4, member_id=follower, generation=2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert scene.committed() == 5


def test_commit_is_accepted_while_members_join() -> None:
    scene = Scene()
    leader, follower = scene.settle(None, None)
    scene.send_join(leader)
    assert scene.commit(5, member_id=follower, generation=1) == ErrorCode.NONE


def test_commits_are_rejected_between_join_and_assignment() -> None:
    scene = Scene()
    member_id, _ = scene.enter()
    scene.pass_time(3_000)
    assert scene.commit(5, member_id=member_id, generation=1) == ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("is_gathering", [False, True])
def test_commit_extends_the_session(is_gathering: bool) -> None:
    scene = Scene()
    leader, follower = scene.settle(None, None)
    if is_gathering:
        scene.send_join(leader)
    scene.pass_time(9_999)
    scene.commit(5, member_id=follower, generation=1)
    scene.pass_time(9_999)
    assert follower in scene.group().members


class TestWithoutMembers:
    def test_commit_without_member_id_is_valid(self) -> None:
        scene = Scene()
        assert scene.commit(5) == ErrorCode.NONE
        assert scene.commit(6) == ErrorCode.NONE
        assert fetched(scene) == {("t", 0): 6}
        (listed,) = scene.machine.list_groups()
        assert (listed.group_id, listed.group_state, listed.protocol_type) == ("g", "Empty", "")

    def test_commit_without_member_id_is_valid_once_all_have_left(self) -> None:
        scene = Scene()
        (member_id,) = scene.settle()
        scene.leave((member_id, None))
        assert scene.commit(5) == ErrorCode.NONE
        assert scene.commit(5, member_id=member_id, generation=2) == ErrorCode.UNKNOWN_MEMBER_ID

    def test_group_id_may_be_empty(self) -> None:
        scene = Scene()
        assert scene.commit(5, group_id="") == ErrorCode.NONE

    @pytest.mark.parametrize(
        ("version", "error"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)]
    )
    def test_commit_with_a_generation_to_an_unknown_group_is_rejected(self, version: int, error: ErrorCode) -> None:
        assert Scene().commit(5, member_id="m", generation=1, version=version) == error


def test_oversized_offset_metadata_is_rejected_per_partition() -> None:
    scene = Scene()
    partition = messages.OffsetCommitRequest.OffsetCommitRequestPartition
    partitions = [
        partition(partition_index=0, committed_offset=1, committed_metadata="x" * 4096),
        partition(partition_index=1, committed_offset=1, committed_metadata="x" * 4097),
        partition(partition_index=2, committed_offset=1, committed_metadata=None),
    ]
    topic = messages.OffsetCommitRequest.OffsetCommitRequestTopic(name="t", topic_id=b"i" * 16, partitions=partitions)
    request = messages.OffsetCommitRequest(
        group_id="g", generation_id_or_member_epoch=-1, retention_time_ms=-1, topics=[topic]
    )
    (response,) = scene.run(lambda: scene.machine.decide_commit_offsets(request, api_version=9, now=scene.now)).topics
    assert [each.error_code for each in response.partitions] == [0, ErrorCode.OFFSET_METADATA_TOO_LARGE, 0]
    assert (response.name, response.topic_id) == ("t", b"i" * 16)
    assert fetched(scene) == {("t", 0): 1, ("t", 2): 1}


def test_commit_that_the_log_could_not_hold_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moldau.machines.groups.offsets.DECISION_BYTES_MAX", 100)
    scene = Scene()
    assert scene.commit(5, note="x" * 100) == InvalidCommitOffsetSize.code
    assert scene.commit(5) == ErrorCode.NONE


class TestFetching:
    def test_partition_without_a_commit_has_no_offset(self) -> None:
        scene = Scene()
        scene.commit(5, note="n")
        request = FetchGroup(group_id="g", topics=[FetchTopic(name="t", topic_id=b"i" * 16, partition_indexes=[0, 1])])
        (topic,) = scene.machine.fetch_offsets(request).topics
        assert (topic.name, topic.topic_id) == ("t", b"i" * 16)
        found, missing = topic.partitions
        assert (found.committed_offset, found.committed_leader_epoch, found.metadata) == (5, 3, "n")
        assert (missing.committed_offset, missing.committed_leader_epoch, missing.metadata) == (-1, -1, "")
        assert missing.error_code == ErrorCode.NONE

    def test_unknown_group_has_no_offsets(self) -> None:
        scene = Scene()
        request = FetchGroup(group_id="g", topics=[FetchTopic(name="t", partition_indexes=[0])])
        (topic,) = scene.machine.fetch_offsets(request, require_stable=True).topics
        assert topic.partitions[0].committed_offset == -1
        assert fetched(scene) == {}

    def test_fetch_of_all_topics_returns_only_the_groups_own(self) -> None:
        scene = Scene()
        scene.commit(1, topic="a")
        scene.commit(2, topic="b", partition=1)
        scene.commit(3, topic="a", group_id="other")
        assert fetched(scene) == {("a", 0): 1, ("b", 1): 2}


class TestDeleting:
    def test_offsets_of_an_empty_group_are_deleted(self) -> None:
        scene = Scene()
        scene.commit(5)
        scene.commit(6, partition=1)
        assert scene.delete_offsets() == ErrorCode.NONE
        assert fetched(scene) == {("t", 1): 6}
        assert scene.delete_offsets(partition=1) == ErrorCode.NONE
        assert scene.machine.group("g") is None

    def test_delete_of_missing_offsets_writes_no_record(self) -> None:
        scene = Scene()
        scene.commit(5)
        before = len(scene.log)
        assert scene.delete_offsets("other") == ErrorCode.NONE
        assert scene.delete_offsets(partition=9) == ErrorCode.NONE
        assert len(scene.log) == before

    def test_delete_rejects_subscribed_topics(self) -> None:
        scene = Scene()
        scene.commit(1, topic="read")
        scene.commit(1, topic="left")
        scene.settle(None, None, protocols=[("range", subscription("read", "more"))])
        assert scene.delete_offsets("read") == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        assert scene.delete_offsets("left") == ErrorCode.NONE
        assert fetched(scene) == {("read", 0): 1}

    @pytest.mark.parametrize("metadata", [b"", b"\x00", b"\x00\x00\x00\x00\x00\xff"])
    def test_delete_is_rejected_when_a_subscription_is_malformed(self, metadata: bytes) -> None:
        scene = Scene()
        scene.commit(1)
        scene.settle(protocols=[("range", metadata)])
        assert scene.delete_offsets() == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC

    def test_subscription_of_a_restarted_static_member_counts(self) -> None:
        scene = Scene()
        scene.commit(1)
        scene.settle("one", protocols=[("range", subscription("other"))])
        assert not scene.group().is_subscribed("t")
        scene.send_join(instance_id="one", protocols=[("range", subscription("t"))])
        assert scene.delete_offsets() == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC

    def test_live_group_of_another_type_is_rejected(self) -> None:
        scene = Scene()
        scene.commit(1)
        scene.settle(protocol_type="connect")
        assert scene.delete_offsets() == ErrorCode.NON_EMPTY_GROUP

    def test_delete_of_an_unknown_group_is_not_found(self) -> None:
        scene = Scene()
        assert scene.delete_offsets() == ErrorCode.GROUP_ID_NOT_FOUND
        assert scene.delete_offsets(group_id="") == ErrorCode.INVALID_GROUP_ID


def test_offsets_survive_a_failover() -> None:
    scene = Scene()
    leader, _ = scene.settle(None, None)
    for offset in range(5):
        scene.commit(offset, member_id=leader, generation=1)
    scene.elect()
    assert scene.committed() == 4
    assert scene.commit(5, member_id=leader, generation=1) == ErrorCode.NONE
