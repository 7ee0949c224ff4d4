"""Two protocols in one group: classic members beside consumers, and groups that change from one to the other."""

from dataclasses import replace
from typing import Any

import pytest
from consumer_scene import JOIN, ClassicConsumer, Consumer, ConsumerScene, owned_subscription, settle
from groups_scene import REBALANCE_MS, SESSION_MS

from moldau.machines.groups import GroupSettings
from moldau.machines.groups.classic.group import Phase
from moldau.machines.groups.consumer.embedded import read_assignment
from moldau.machines.groups.consumer.member import ClassicTraits, MemberState
from moldau.machines.groups.consumer.records import member_record
from moldau.model.errors import ErrorCode
from moldau.wire import messages
from moldau.wire.data_records import encode_versioned


def assignment(**topics: list[int]) -> bytes:
    """What a leader assigns to a consumer."""
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
    joined = [scene.answers[ticket] for ticket in tickets]
    (leader,) = {each.leader for each in joined}
    ids = sorted((each.member_id for each in joined), key=lambda each: each != leader)
    for member_id in ids[1:]:
        scene.send_sync(member_id, joined[0].generation_id)
    scene.send_sync(leader, joined[0].generation_id, zip(ids, shares, strict=False))
    assert scene.group().phase is Phase.STABLE
    return ids


class TestClassicMembers:
    def test_a_classic_member_joins_a_group_of_consumers(self) -> None:
        scene = ConsumerScene(a=4)
        consumer = Consumer(scene, "m", "a").join()
        classic = ClassicConsumer(scene, "a").join()
        assert scene.member(classic.member_id).is_classic
        assert classic.sync() == ErrorCode.NONE
        assert classic.owned == {}
        settle(consumer, classic)
        assert (consumer.count, classic.owned["a"]) == (
            2,
            [index for index in range(4) if index not in consumer.owned["a"]],
        )

    def test_its_generation_is_its_epoch_and_nobody_leads(self) -> None:
        scene = ConsumerScene(a=4)
        Consumer(scene, "m", "a").join()
        classic = ClassicConsumer(scene, "a")
        classic.member_id = scene.answers[classic.send_join()].member_id
        response = scene.answers[classic.send_join()]
        assert (response.generation_id, response.leader, list(response.members)) == (2, "", [])
        assert (response.protocol_type, response.protocol_name) == ("consumer", "range")

    def test_before_version_4_it_needs_no_second_join(self) -> None:
        scene = ConsumerScene(a=4)
        Consumer(scene, "m", "a").join()
        ticket = ClassicConsumer(scene, "a", version=3).send_join()
        assert scene.error(ticket) == ErrorCode.NONE

    def test_it_is_asked_to_join_again_when_there_is_something_for_it(self) -> None:
        scene = ConsumerScene(a=4)
        consumer = Consumer(scene, "m", "a").join()
        classic = ClassicConsumer(scene, "a").join()
        classic.sync()
        assert scene.heartbeat(classic.member_id, classic.generation) == ErrorCode.NONE  # nothing is free yet
        settle(consumer)
        assert scene.heartbeat(classic.member_id, classic.generation) == ErrorCode.REBALANCE_IN_PROGRESS
        classic.join()
        classic.sync()
        assert len(classic.owned["a"]) == 2
        assert scene.heartbeat(classic.member_id, classic.generation) == ErrorCode.NONE

    def test_it_must_give_up_what_goes_to_a_new_consumer(self) -> None:
        scene = ConsumerScene(a=4)
        first = Consumer(scene, "m", "a").join()
        classic = ClassicConsumer(scene, "a").join()
        settle(first, classic)
        second = Consumer(scene, "n", "a").join()
        third = Consumer(scene, "o", "a").join()
        assert classic.beat()
        assert scene.member(classic.member_id).state is MemberState.UNREVOKED_PARTITIONS
        settle(first, classic, second, third)
        assert sorted([first.count, len(classic.owned["a"]), second.count, third.count]) == [1, 1, 1, 1]

    def test_one_that_gives_up_everything_before_it_joins_goes_on_at_once(self) -> None:
        scene = ConsumerScene(a=4)
        first = Consumer(scene, "m", "a").join()
        eager = ClassicConsumer(scene, "a", is_cooperative=False).join()
        settle(first, eager)
        Consumer(scene, "n", "a").join()
        eager.beat()
        assert scene.member(eager.member_id).state is MemberState.STABLE

    def test_a_sync_in_an_old_epoch_must_join_again(self) -> None:
        scene = ConsumerScene(a=4)
        Consumer(scene, "m", "a").join()
        classic = ClassicConsumer(scene, "a").join()
        Consumer(scene, "n", "a").join()
        assert classic.sync() == ErrorCode.REBALANCE_IN_PROGRESS

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
            ({"protocol_name": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
            ({"protocol_type": None, "protocol_name": None}, ErrorCode.NONE),
            ({"instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ],
    )
    def test_a_sync_must_fit_the_join(self, options: dict[str, Any], error: ErrorCode) -> None:
        scene = ConsumerScene(a=4)
        Consumer(scene, "m", "a").join()
        classic = ClassicConsumer(scene, "a").join()
        assert scene.error(scene.send_sync(classic.member_id, classic.generation, **options)) == error

    def test_only_classic_members_sync_and_send_old_heartbeats(self) -> None:
        scene = ConsumerScene(a=4)
        consumer = Consumer(scene, "m", "a").join()
        assert scene.error(scene.send_sync("m", consumer.epoch)) == ErrorCode.UNKNOWN_MEMBER_ID
        assert scene.heartbeat("m", consumer.epoch) == ErrorCode.UNKNOWN_MEMBER_ID
        assert scene.heartbeat("x", consumer.epoch) == ErrorCode.UNKNOWN_MEMBER_ID
        classic = ClassicConsumer(scene, "a").join()
        assert scene.heartbeat(classic.member_id, classic.generation + 1) == ErrorCode.ILLEGAL_GENERATION
        assert scene.error(scene.send_sync(classic.member_id, 99)) == ErrorCode.ILLEGAL_GENERATION

    @pytest.mark.parametrize(
        "options",
        [
            {"protocol_type": "connect"},
            {"protocols": ()},
            {"protocols": (("range", b""),)},
            {"protocols": (("range", b"\xff\xff"),)},
            {"protocols": (("range", b"\0\1\0\0\0\7"),)},
        ],
    )
    def test_who_does_not_speak_as_consumers_do_is_refused(self, options: dict[str, Any]) -> None:
        scene = ConsumerScene(a=4)
        Consumer(scene, "m", "a").join()
        ticket = scene.send_join(version=3, **options)
        assert scene.error(ticket) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    def test_classic_members_must_have_an_assignor_in_common(self) -> None:
        scene = ConsumerScene(a=4)
        Consumer(scene, "m", "a").join()
        ClassicConsumer(scene, "a").join()
        ticket = scene.send_join(version=3, protocols=(("sticky", owned_subscription("a")),))
        assert scene.error(ticket) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    def test_a_full_group_refuses_classic_members_too(self) -> None:
        scene = ConsumerScene(GroupSettings(group_consumer_max_size=1), a=4)
        Consumer(scene, "m", "a").join()
        assert scene.error(ClassicConsumer(scene, "a").send_join()) == ErrorCode.GROUP_MAX_SIZE_REACHED

    def test_without_metadata_nobody_joins(self) -> None:
        scene = ConsumerScene(a=4)
        Consumer(scene, "m", "a").join()
        scene.image = type(scene.image)()
        ticket = ClassicConsumer(scene, "a", version=3).send_join()
        assert scene.error(ticket) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def test_a_static_one_takes_over_its_instance_and_the_old_id_is_fenced(self) -> None:
        scene = ConsumerScene(a=4)
        Consumer(scene, "m", "a").join()
        old = ClassicConsumer(scene, "a", instance_id="i").join()
        new = ClassicConsumer(scene, "a", instance_id="i").join()
        assert new.member_id != old.member_id
        assert old.member_id not in scene.consumer_group().members
        assert scene.heartbeat(old.member_id, old.generation, instance_id="i") == ErrorCode.FENCED_INSTANCE_ID
        assert scene.error(old.send_join()) == ErrorCode.FENCED_INSTANCE_ID
        other = ClassicConsumer(scene, "a", instance_id="j")
        other.member_id = "made-up"
        assert scene.error(other.send_join()) == ErrorCode.UNKNOWN_MEMBER_ID

    def test_silence_ends_its_session_by_its_own_timeout(self) -> None:
        scene = ConsumerScene(a=4)
        consumer = Consumer(scene, "m", "a").join()
        classic = ClassicConsumer(scene, "a").join()
        classic.sync()
        scene.pass_time(SESSION_MS - 1)
        assert classic.member_id in scene.consumer_group().members
        scene.pass_time(1)
        assert list(scene.consumer_group().members) == [consumer.member_id]

    def test_who_never_syncs_is_out(self) -> None:
        scene = ConsumerScene(a=4)
        consumer = Consumer(scene, "m", "a").join()
        classic = ClassicConsumer(scene, "a", session_ms=300_000).join()
        for _ in range(REBALANCE_MS // 1_000):
            scene.pass_time(1_000)
            consumer.beat()
        assert classic.member_id not in scene.consumer_group().members

    def test_who_never_joins_again_is_out(self) -> None:
        scene = ConsumerScene(a=4)
        consumer = Consumer(scene, "m", "a").join()
        classic = ClassicConsumer(scene, "a").join()
        settle(consumer, classic)
        scene.add_topics(a=8)
        consumer.beat()
        for _ in range(REBALANCE_MS // 1_000):
            assert scene.heartbeat(classic.member_id, classic.generation) == ErrorCode.REBALANCE_IN_PROGRESS
            scene.pass_time(1_000)
            if classic.member_id in scene.consumer_group().members:
                consumer.beat()
        assert classic.member_id not in scene.consumer_group().members

    def test_leaving_is_answered_for_each(self) -> None:
        scene = ConsumerScene(a=4)
        Consumer(scene, "m", "a").join()
        Consumer(scene, "s", "a", instance_id="i").join()
        Consumer(scene, "t", "a", instance_id="j").join()
        classic = ClassicConsumer(scene, "a").join()
        epoch = scene.consumer_group().epoch
        errors = scene.leave((classic.member_id, None), ("x", None), ("", "i"), ("x", "j"), ("", "none"))
        assert errors == [0, ErrorCode.UNKNOWN_MEMBER_ID, 0, ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNKNOWN_MEMBER_ID]
        assert list(scene.consumer_group().members) == ["m", "t"]
        assert scene.consumer_group().epoch == epoch + 1
        assert scene.leave(("x", None)) == [ErrorCode.UNKNOWN_MEMBER_ID]
        assert scene.consumer_group().epoch == epoch + 1

    def test_one_in_a_state_of_a_later_version_begins_anew(self) -> None:
        scene = ConsumerScene(a=4)
        Consumer(scene, "m", "a").join()
        classic = ClassicConsumer(scene, "a").join()
        value = messages.ConsumerGroupCurrentMemberAssignmentValue(member_epoch=2, previous_member_epoch=1, state=9)
        key = messages.ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id=classic.member_id)
        scene.append(key, value)
        assert scene.error(classic.send_join()) == ErrorCode.UNKNOWN_MEMBER_ID


class TestUpgrade:
    @pytest.mark.proves("C2")
    def test_a_consumer_that_joins_a_classic_group_makes_it_a_consumer_group(self) -> None:
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

    def test_nobody_stops_reading_who_need_not(self) -> None:
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

    def test_whoever_waits_is_told_to_join_again(self) -> None:
        scene = ConsumerScene(a=4)
        stable_classic_group(scene, None)
        _, ticket = scene.enter(protocols=(("range", owned_subscription("a")),))
        assert ticket in scene.waiting
        Consumer(scene, "m", "a").join()
        assert scene.error(ticket) == ErrorCode.REBALANCE_IN_PROGRESS
        assert not [event for event in scene.timers if "classic" in type(event).__module__]

    def test_a_group_that_never_had_a_generation_can_be_upgraded_too(self) -> None:
        scene = ConsumerScene(a=4)
        member_id, ticket = scene.enter(protocols=(("range", owned_subscription("a")),))
        consumer = Consumer(scene, "m", "a").join()
        assert scene.error(ticket) == ErrorCode.REBALANCE_IN_PROGRESS
        assert scene.member(member_id).topics == {"a"}
        assert consumer.epoch == 1

    def test_a_static_classic_member_may_come_back_as_a_consumer(self) -> None:
        scene = ConsumerScene(a=4)
        stable_classic_group(scene, "i")
        consumer = Consumer(scene, "m", "a", instance_id="i").join()
        assert list(scene.consumer_group().members) == ["m"]
        assert consumer.count == 4

    def test_an_assignor_that_was_not_chosen_may_say_anything(self) -> None:
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

    def test_an_empty_classic_group_makes_way(self) -> None:
        scene = ConsumerScene(a=4)
        (member_id,) = stable_classic_group(scene, None)
        scene.leave((member_id, None))
        assert "g" in scene.machine.state.classic
        consumer = Consumer(scene, "m", "a").join()
        assert (consumer.count, consumer.epoch) == (4, 1)
        assert "g" not in scene.machine.state.classic

    def test_a_group_of_offsets_alone_becomes_a_consumer_group(self) -> None:
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
    def test_the_broker_may_forbid_it(self, settings: GroupSettings, words: str) -> None:
        scene = ConsumerScene(settings, a=4)
        stable_classic_group(scene, None, None)
        assert scene.refusal("m", 0, **JOIN) == (
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"Cannot upgrade classic group g to consumer group because {words}",
        )
        assert scene.group().phase is Phase.STABLE

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
    def test_members_that_are_no_plain_consumers_forbid_it(
        self, options: dict[str, Any], share: bytes, words: str
    ) -> None:
        scene = ConsumerScene(a=4)
        options = {"protocols": (("range", owned_subscription("a")),), **options}
        member_id, _ = scene.enter(**options)
        scene.pass_time(5_000)
        scene.send_sync(member_id, 1, [(member_id, share)], protocol_type=None)
        assert scene.refusal("m", 0, **JOIN)[1].endswith(words)
        assert scene.group().phase is Phase.STABLE

    def test_a_partition_that_was_assigned_twice_has_one_holder(self) -> None:
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
    def test_when_the_last_consumer_leaves_the_group_is_classic_again(self) -> None:
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
        assert scene.answers[ticket].leader == classic.member_id
        assert not [event for event in scene.timers if "Members" in type(event).__name__]

    def test_when_the_last_consumer_expires_too(self) -> None:
        scene = ConsumerScene(a=4)
        consumer = Consumer(scene, "m", "a").join()
        classic = ClassicConsumer(scene, "a").join()
        settle(consumer, classic)
        for _ in range(9):
            scene.pass_time(5_000)
            scene.heartbeat(classic.member_id, classic.generation)
        assert scene.group().phase is Phase.PREPARING

    def test_after_a_failover_the_group_is_still_classic(self) -> None:
        scene = ConsumerScene(a=4)
        consumer = Consumer(scene, "m", "a").join()
        classic = ClassicConsumer(scene, "a").join()
        settle(consumer, classic)
        scene.beat("m", -1)
        scene.elect()
        assert (scene.group().phase, scene.group().generation) == (Phase.EMPTY, 2)
        assert scene.heartbeat(classic.member_id, classic.generation) == ErrorCode.UNKNOWN_MEMBER_ID

    def test_after_a_failover_amid_it_nothing_is_left_unread(self) -> None:
        scene = ConsumerScene(a=4)
        consumer = Consumer(scene, "m", "a").join()
        classic = ClassicConsumer(scene, "a").join()
        settle(consumer, classic)
        scene.beat("m", -1)
        ticket = classic.send_join()
        assert scene.answers[ticket].generation_id == 3  # the rebalance has begun, but it never ends
        scene.elect()
        assert scene.heartbeat(classic.member_id, 3) == ErrorCode.UNKNOWN_MEMBER_ID

    def test_the_broker_may_forbid_it(self) -> None:
        scene = ConsumerScene(GroupSettings(group_consumer_migration_policy="upgrade"), a=4)
        consumer = Consumer(scene, "m", "a").join()
        classic = ClassicConsumer(scene, "a").join()
        settle(consumer, classic)
        scene.beat("m", -1)
        assert list(scene.consumer_group().members) == [classic.member_id]
        settle(classic)
        assert classic.owned == {"a": [0, 1, 2, 3]}

    def test_a_group_too_large_for_a_classic_one_stays(self) -> None:
        scene = ConsumerScene(GroupSettings(group_max_size=1), a=4)
        consumer = Consumer(scene, "m", "a").join()
        members = [ClassicConsumer(scene, "a").join() for _ in range(2)]
        settle(consumer, *members)
        scene.beat("m", -1)
        assert len(scene.consumer_group().members) == 2

    def test_a_static_classic_member_that_replaces_the_last_consumer_brings_it_about(self) -> None:
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
        assert scene.answers[ticket].generation_id == consumer.epoch + 1

    def test_alone_it_goes_on_at_once(self) -> None:
        scene = ConsumerScene(a=4)
        Consumer(scene, "m", "a", instance_id="i").join()
        ticket = ClassicConsumer(scene, "a", instance_id="i").send_join()
        assert scene.answers[ticket].leader == scene.answers[ticket].member_id

    def test_where_that_is_forbidden_it_takes_the_place_in_the_consumer_group(self) -> None:
        scene = ConsumerScene(GroupSettings(group_consumer_migration_policy="upgrade"), a=4)
        Consumer(scene, "m", "a", instance_id="i").join()
        replacement = ClassicConsumer(scene, "a", instance_id="i").join()
        assert replacement.sync() == ErrorCode.NONE
        assert replacement.owned == {"a": [0, 1, 2, 3]}

    def test_without_an_assignor_in_common_the_group_stays(self) -> None:
        scene = ConsumerScene(a=4)
        Consumer(scene, "m", "a").join()
        members = [ClassicConsumer(scene, "a").join() for _ in range(2)]
        member = scene.member(members[0].member_id)
        other = ClassicTraits(SESSION_MS, (("sticky", owned_subscription("a")),))
        scene.append(*member_record("g", replace(member, classic=other)))
        scene.beat("m", -1)
        assert list(scene.consumer_group().members) == [each.member_id for each in members]

    def test_an_empty_consumer_group_makes_way(self) -> None:
        scene = ConsumerScene(a=4)
        scene.join_consumer("m", "a")
        scene.beat("m", -1)
        classic = ClassicConsumer(scene, "a")
        classic.member_id = "old"
        assert scene.error(classic.send_join()) == ErrorCode.UNKNOWN_MEMBER_ID
        assert "g" in scene.machine.state.consumer
        stable_classic_group(scene, None)
        assert "g" not in scene.machine.state.consumer

    def test_a_consumer_that_replaces_a_static_classic_member_needs_no_release(self) -> None:
        scene = ConsumerScene(a=4)
        keeper = Consumer(scene, "m", "a").join()
        classic = ClassicConsumer(scene, "a", instance_id="i").join()
        settle(keeper, classic)
        consumer = Consumer(scene, "n", "a", instance_id="i").join()
        assert consumer.owned == classic.owned
        assert not scene.member("n").is_classic
