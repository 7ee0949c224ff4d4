"""Online migration between the classic and the consumer protocol."""

from dataclasses import replace
from typing import Any

import pytest
from consumer_scene import JOIN, ClassicConsumer, Consumer, ConsumerScene, owned_subscription, settle
from groups_scene import SESSION_MS

from moldau.machines.groups import GroupSettings
from moldau.machines.groups.classic.group import Phase
from moldau.machines.groups.consumer.consumer_protocol import read_assignment
from moldau.machines.groups.consumer.member import ClassicTraits
from moldau.machines.groups.consumer.records import member_record
from moldau.model.errors import ErrorCode
from moldau.wire import messages
from moldau.wire.data_records import encode_versioned


def assignment(**topics: list[int]) -> bytes:
    """Return the assignment that a leader gives to a consumer."""
    parts = [
        messages.ConsumerProtocolAssignment.TopicPartition(topic=name, partitions=indexes)
        for name, indexes in topics.items()
    ]
    return encode_versioned(messages.ConsumerProtocolAssignment(assigned_partitions=parts), 1)


def stable_classic_group(scene: ConsumerScene, *instance_ids: str | None) -> list[str]:
    """A classic group of consumers of topic `a`; the first gets partitions 0 and 1, the second 2 and 3."""
    protocols = (("range", owned_subscription("a")),)
    shares = [assignment(a=[0, 1]), assignment(a=[2, 3])]
    tickets = {}
    for instance_id in instance_ids:
        if instance_id is None:
            _, ticket = scene.enter(protocols=protocols)
        else:
            ticket = scene.send_join(instance_id=instance_id, protocols=protocols)
        tickets[ticket] = instance_id
    while scene.waiting:
        scene.pass_time(500)
    joined = [scene.responses[ticket] for ticket in tickets]
    (leader,) = {each.leader for each in joined}
    ids = sorted((each.member_id for each in joined), key=lambda each: each != leader)
    for member_id in ids[1:]:
        scene.send_sync(member_id, joined[0].generation_id)
    scene.send_sync(leader, joined[0].generation_id, zip(ids, shares, strict=False))
    assert scene.group().phase is Phase.STABLE
    return ids


def classic_members_that_share(scene: ConsumerScene) -> tuple[list[str], int]:
    """A classic group in which the first member, with all of topic `a`, is to revoke 2 and 3 for a second one.

    As with cooperative members, the second gets them once the first has rejoined without them.
    """
    first, ticket = scene.enter(protocols=(("range", owned_subscription("a")),))
    scene.pass_time(3_000)
    scene.send_sync(first, scene.responses[ticket].generation_id, [(first, assignment(a=[0, 1, 2, 3]))])
    second, _ = scene.enter(protocols=(("range", owned_subscription("a")),))
    ticket = scene.send_join(first, protocols=(("range", owned_subscription("a", owned={"a": [0, 1, 2, 3]})),))
    generation = scene.responses[ticket].generation_id
    scene.send_sync(first, generation, [(first, assignment(a=[0, 1])), (second, assignment())])
    assert scene.group().phase is Phase.STABLE
    return [first, second], generation


class TestUpgrade:
    @pytest.mark.proves("C2")
    def test_joining_consumer_upgrades_a_classic_group(self) -> None:
        scene = ConsumerScene(a=4)
        ids = stable_classic_group(scene, None, None)
        assert scene.commit(7, member_id=ids[0], generation=1, topic="a") == ErrorCode.NONE
        consumer = Consumer(scene, "m", "a").join()
        group = scene.consumer_group()
        assert list(group.members) == [*ids, "m"]
        assert "g" not in scene.machine.state.classic
        assert [group.members[each].epoch for each in ids] == [1, 1]
        assert sum(len(held) for each in ids for held in group.members[each].assigned.values()) == 4
        assert consumer.owned == {}
        assert scene.committed("a") == 7

    def test_unaffected_members_keep_their_partitions(self) -> None:
        scene = ConsumerScene(a=4)
        ids = stable_classic_group(scene, None, None)
        consumer = Consumer(scene, "m", "a").join()
        members = []
        for member_id, owned in zip(ids, ([0, 1], [2, 3]), strict=True):
            classic = ClassicConsumer(scene, "a")
            classic.member_id, classic.generation, classic.owned = member_id, 1, {"a": owned}
            members.append(classic)
        settle(consumer, *members)
        assert consumer.count == 1
        assert sorted(len(each.owned["a"]) for each in members) == [1, 2]

    @pytest.mark.proves("C2")
    def test_partition_is_not_assigned_before_its_owner_revoked_it(self) -> None:
        scene = ConsumerScene(a=4)
        ids, generation = classic_members_that_share(scene)
        consumer = Consumer(scene, "m", "a").join()
        assert consumer.owned == {}
        first, second = (ClassicConsumer(scene, "a") for _ in ids)
        first.member_id, first.generation, first.owned = ids[0], generation, {"a": [0, 1, 2, 3]}
        second.member_id, second.generation = ids[1], generation
        assert first.sync() == ErrorCode.NONE
        assert first.owned == {"a": [0, 1]}
        assert not consumer.beat()
        settle(first, second, consumer)
        assert sorted(index for each in (first, second, consumer) for index in each.owned["a"]) == [0, 1, 2, 3]

    def test_waiting_members_must_rejoin(self) -> None:
        scene = ConsumerScene(a=4)
        stable_classic_group(scene, None)
        _, ticket = scene.enter(protocols=(("range", owned_subscription("a")),))
        assert ticket in scene.waiting
        Consumer(scene, "m", "a").join()
        assert scene.error(ticket) == ErrorCode.REBALANCE_IN_PROGRESS
        assert not [event for event in scene.timers if "classic" in type(event).__module__]

    def test_group_without_a_generation_can_be_upgraded(self) -> None:
        scene = ConsumerScene(a=4)
        member_id, ticket = scene.enter(protocols=(("range", owned_subscription("a")),))
        consumer = Consumer(scene, "m", "a").join()
        assert scene.error(ticket) == ErrorCode.REBALANCE_IN_PROGRESS
        assert scene.member(member_id).topics == {"a"}
        assert consumer.epoch == 1

    def test_static_classic_member_may_return_as_a_consumer(self) -> None:
        scene = ConsumerScene(a=4)
        stable_classic_group(scene, "i")
        consumer = Consumer(scene, "m", "a", instance_id="i").join()
        assert list(scene.consumer_group().members) == ["m"]
        assert consumer.count == 4

    def test_metadata_of_unchosen_assignor_may_be_malformed(self) -> None:
        scene = ConsumerScene(a=4)
        protocols = (("custom", b""), ("range", owned_subscription("a")))
        first, _ = scene.enter(protocols=protocols)
        second, _ = scene.enter(protocols=protocols[1:])
        while scene.waiting:
            scene.pass_time(500)
        scene.send_sync(second, 1)
        scene.send_sync(first, 1, [(first, assignment(a=[0, 1])), (second, assignment(a=[2, 3]))])
        Consumer(scene, "m", "a").join()
        scene.beat("m", -1)
        assert read_assignment(scene.group().members[first].assignment).assigned_partitions[0].topic == "a"

    @pytest.mark.proves("C2")
    def test_librdkafka_leader_assignment_can_be_upgraded(self) -> None:
        scene = ConsumerScene(a=4)
        member_id, _ = scene.enter(protocols=(("cooperative-sticky", owned_subscription("a")),))
        scene.pass_time(5_000)
        part = messages.ConsumerProtocolAssignment.TopicPartition(topic="a", partitions=[0, 1, 2, 3])
        share = messages.ConsumerProtocolAssignment(assigned_partitions=[part], user_data=b"what it had before")
        assignments = [(member_id, encode_versioned(share, 1))]
        scene.send_sync(member_id, 1, assignments, protocol_name="cooperative-sticky")
        assert Consumer(scene, "m", "a").join().owned == {}
        assert sorted(scene.member(member_id).assigned[scene.id_of("a")]) == [0, 1, 2, 3]

    def test_empty_classic_group_is_replaced(self) -> None:
        scene = ConsumerScene(a=4)
        (member_id,) = stable_classic_group(scene, None)
        scene.leave((member_id, None))
        assert "g" in scene.machine.state.classic
        consumer = Consumer(scene, "m", "a").join()
        assert (consumer.count, consumer.epoch) == (4, 1)
        assert "g" not in scene.machine.state.classic

    def test_group_with_only_offsets_becomes_a_consumer_group(self) -> None:
        scene = ConsumerScene(a=4)
        scene.commit(5, topic="a")
        assert Consumer(scene, "m", "a").join().count == 4
        assert list(scene.machine.group_ids()) == ["g"]

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            (GroupSettings(group_consumer_migration_policy="disabled"), "online upgrade is disabled."),
            (GroupSettings(group_consumer_migration_policy="downgrade"), "online upgrade is disabled."),
            (GroupSettings(group_consumer_max_size=1), "the group size exceeds the consumer group maximum size."),
        ],
    )
    def test_downgrade_can_be_disabled(self, settings: GroupSettings, words: str) -> None:
        scene = ConsumerScene(settings, a=4)
        stable_classic_group(scene, None, None)
        assert scene.rejection("m", 0, **JOIN) == (
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"Cannot upgrade classic group g to consumer group because {words}",
        )
        assert scene.group().phase is Phase.STABLE

    def test_member_metadata_may_exceed_the_batch_size(self, monkeypatch: pytest.MonkeyPatch) -> None:
        scene = ConsumerScene(a=4)
        stable_classic_group(scene, None, None)
        said_bytes = 2 * len(owned_subscription("a"))
        monkeypatch.setattr("moldau.machines.groups.consumer.migration.DECISION_BYTES_MAX", said_bytes - 1)
        assert scene.rejection("m", 0, **JOIN)[0] == ErrorCode.GROUP_ID_NOT_FOUND
        monkeypatch.setattr("moldau.machines.groups.consumer.migration.DECISION_BYTES_MAX", said_bytes)
        assert scene.rejection("m", 0, **JOIN)[0] == ErrorCode.NONE

    @pytest.mark.parametrize(
        ("options", "share", "words"),
        [
            ({"protocol_type": "connect"}, b"", "the group does not use the consumer embedded protocol."),
            ({}, assignment(a=[0])[:-1], "the embedded consumer protocol is malformed."),
            ({"protocols": (("range", b"\0"),)}, b"", "the embedded consumer protocol is malformed."),
            (
                {},
                encode_versioned(messages.ConsumerProtocolAssignment(user_data=b"x"), 1),
                "an unsupported custom assignor is in use. Please refer to the documentation or switch to a default "
                "assignor before re-attempting the upgrade.",
            ),
        ],
    )
    def test_members_with_another_protocol_prevent_the_upgrade(
        self, options: dict[str, Any], share: bytes, words: str
    ) -> None:
        scene = ConsumerScene(a=4)
        options = {"protocols": (("range", owned_subscription("a")),), **options}
        member_id, _ = scene.enter(**options)
        scene.pass_time(5_000)
        scene.send_sync(member_id, 1, [(member_id, share)], protocol_type=None)
        assert scene.rejection("m", 0, **JOIN)[1].endswith(words)
        assert scene.group().phase is Phase.STABLE

    def test_partition_assigned_twice_has_one_owner(self) -> None:
        scene = ConsumerScene(a=4)
        protocols = (("range", owned_subscription("a")),)
        ids = [scene.enter(protocols=protocols)[0] for _ in range(2)]
        while scene.waiting:
            scene.pass_time(500)
        for each in ids[1:]:
            scene.send_sync(each, 1)
        scene.send_sync(ids[0], 1, [(each, assignment(a=[0, 1])) for each in ids])
        Consumer(scene, "m", "a").join()
        held = [sum(map(len, scene.member(each).assigned.values())) for each in ids]
        assert sorted(held) == [0, 2]


class TestDowngrade:
    @pytest.mark.proves("C2")
    def test_group_becomes_classic_when_the_last_consumer_leaves(self) -> None:
        scene = ConsumerScene(a=4)
        consumer = Consumer(scene, "m", "a").join()
        classic = ClassicConsumer(scene, "a").join()
        settle(consumer, classic)
        epoch = scene.consumer_group().epoch
        scene.beat("m", -1)
        assert "g" not in scene.machine.state.consumer
        group = scene.group()
        assert (group.generation, group.phase, group.protocol) == (epoch, Phase.PREPARING, "range")
        assert read_assignment(group.members[classic.member_id].assignment).assigned_partitions[0].topic == "a"
        assert scene.heartbeat(classic.member_id, classic.generation) == ErrorCode.REBALANCE_IN_PROGRESS
        ticket = classic.send_join()
        assert scene.responses[ticket].leader == classic.member_id
        assert not [event for event in scene.timers if "Members" in type(event).__name__]

    def test_group_becomes_classic_when_the_last_consumer_expires(self) -> None:
        scene = ConsumerScene(a=4)
        consumer = Consumer(scene, "m", "a").join()
        classic = ClassicConsumer(scene, "a").join()
        settle(consumer, classic)
        for _ in range(9):
            scene.pass_time(5_000)
            scene.heartbeat(classic.member_id, classic.generation)
        assert scene.group().phase is Phase.PREPARING

    def test_group_stays_classic_after_a_failover(self) -> None:
        scene = ConsumerScene(a=4)
        consumer = Consumer(scene, "m", "a").join()
        classic = ClassicConsumer(scene, "a").join()
        settle(consumer, classic)
        scene.beat("m", -1)
        scene.elect()
        assert (scene.group().phase, scene.group().generation) == (Phase.EMPTY, 2)
        assert scene.heartbeat(classic.member_id, classic.generation) == ErrorCode.UNKNOWN_MEMBER_ID

    @pytest.mark.proves("C5")
    def test_failover_during_the_downgrade_leaves_no_partition_unread(self) -> None:
        scene = ConsumerScene(a=4)
        consumer = Consumer(scene, "m", "a").join()
        classic = ClassicConsumer(scene, "a").join()
        settle(consumer, classic)
        scene.beat("m", -1)
        ticket = classic.send_join()
        assert scene.responses[ticket].generation_id == 3  # the rebalance has started, but it never ends
        scene.elect()
        assert scene.heartbeat(classic.member_id, 3) == ErrorCode.UNKNOWN_MEMBER_ID

    def test_downgrade_can_be_disabled(self) -> None:
        scene = ConsumerScene(GroupSettings(group_consumer_migration_policy="upgrade"), a=4)
        consumer = Consumer(scene, "m", "a").join()
        classic = ClassicConsumer(scene, "a").join()
        settle(consumer, classic)
        scene.beat("m", -1)
        assert list(scene.consumer_group().members) == [classic.member_id]
        settle(classic)
        assert classic.owned == {"a": [0, 1, 2, 3]}

    def test_group_too_large_for_the_classic_protocol_is_not_downgraded(self) -> None:
        scene = ConsumerScene(GroupSettings(group_max_size=1), a=4)
        consumer = Consumer(scene, "m", "a").join()
        members = [ClassicConsumer(scene, "a").join() for _ in range(2)]
        settle(consumer, *members)
        scene.beat("m", -1)
        assert len(scene.consumer_group().members) == 2

    def test_static_classic_member_replacing_the_last_consumer_downgrades(self) -> None:
        scene = ConsumerScene(a=4)
        consumer = Consumer(scene, "m", "a", instance_id="i").join()
        other = ClassicConsumer(scene, "a").join()
        settle(consumer, other)
        replacement = ClassicConsumer(scene, "a", instance_id="i")
        ticket = replacement.send_join()
        assert "g" not in scene.machine.state.consumer
        assert ticket in scene.waiting
        assert len(scene.group().members) == 2
        second = other.send_join()
        assert scene.error(ticket) == scene.error(second) == ErrorCode.NONE
        assert scene.responses[ticket].generation_id == consumer.epoch + 1

    def test_single_member_continues_at_once(self) -> None:
        scene = ConsumerScene(a=4)
        Consumer(scene, "m", "a", instance_id="i").join()
        ticket = ClassicConsumer(scene, "a", instance_id="i").send_join()
        assert scene.responses[ticket].leader == scene.responses[ticket].member_id

    def test_static_classic_member_joins_as_such_when_downgrade_is_disabled(self) -> None:
        scene = ConsumerScene(GroupSettings(group_consumer_migration_policy="upgrade"), a=4)
        Consumer(scene, "m", "a", instance_id="i").join()
        replacement = ClassicConsumer(scene, "a", instance_id="i").join()
        assert replacement.sync() == ErrorCode.NONE
        assert replacement.owned == {"a": [0, 1, 2, 3]}

    def test_group_without_a_common_assignor_is_not_downgraded(self) -> None:
        scene = ConsumerScene(a=4)
        Consumer(scene, "m", "a").join()
        members = [ClassicConsumer(scene, "a").join() for _ in range(2)]
        member = scene.member(members[0].member_id)
        other = ClassicTraits(SESSION_MS, (("sticky", owned_subscription("a")),))
        scene.append(*member_record("g", replace(member, classic=other)))
        scene.beat("m", -1)
        assert list(scene.consumer_group().members) == [each.member_id for each in members]

    def test_empty_consumer_group_is_replaced(self) -> None:
        scene = ConsumerScene(a=4)
        scene.join_consumer("m", "a")
        scene.beat("m", -1)
        classic = ClassicConsumer(scene, "a")
        classic.member_id = "old"
        assert scene.error(classic.send_join()) == ErrorCode.UNKNOWN_MEMBER_ID
        assert "g" in scene.machine.state.consumer
        stable_classic_group(scene, None)
        assert "g" not in scene.machine.state.consumer

    def test_consumer_replacing_a_static_classic_member_needs_no_release(self) -> None:
        scene = ConsumerScene(a=4)
        keeper = Consumer(scene, "m", "a").join()
        classic = ClassicConsumer(scene, "a", instance_id="i").join()
        settle(keeper, classic)
        consumer = Consumer(scene, "n", "a", instance_id="i").join()
        assert consumer.owned == classic.owned
        assert not scene.member("n").is_classic
