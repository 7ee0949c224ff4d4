"""Share partitions over logs that change: transactions, gaps, retention, new leaders, deleted topics; and sessions."""

import asyncio
from typing import Any

import pytest
from broker_scene import Scene, ScriptedAuthorizer, batch, on_broker, produce
from share_members import ACCEPT, OTHER, RELEASE, Member, StateInMemory, member_of, serve_shares
from test_share_fetch import LONG_MS, configure, values, with_group

from moldau.broker.access import Client, Operation, Resource
from moldau.broker.partitions.partition import Partition
from moldau.broker.partitions.transaction_end import TransactionEnding, end_transaction
from moldau.broker.shares.shares import Shares
from moldau.model.error_codes import ErrorCode
from moldau.records.header import read_header
from moldau.wire.messages import DeleteRecordsRequest, DeleteTopicsRequest, ShareFetchRequest

pytestmark = pytest.mark.proves("C8")

PRODUCER: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "is_transactional": True}


def partition_of(scene: Scene) -> Partition:
    return scene.node.broker.partitions.get("t", 0)


def shares_of(scene: Scene) -> Shares:
    return scene.node.broker.shares


def append(scene: Scene, records: bytearray) -> None:
    """Append a batch to the log of partition 0 and commit it."""
    partition = partition_of(scene)
    partition.log.append(memoryview(records), read_header(records), 0, 0)
    partition.committed_to(partition.log.end_offset, len(records))


def end_open_transaction(scene: Scene, *, is_commit: bool) -> None:
    end_transaction(partition_of(scene), TransactionEnding(7, 0, 0, is_commit), 0)


async def delete_records(scene: Scene, offset: int) -> None:
    partition = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=offset)
    topic = DeleteRecordsRequest.DeleteRecordsTopic(name="t", partitions=[partition])
    response = await (await scene.connect()).ask(2, DeleteRecordsRequest(topics=[topic], timeout_ms=1000))
    assert response.topics[0].partitions[0].error_code == 0, response


def test_aborted_records_are_skipped_if_the_group_reads_committed() -> None:
    async def script(scene: Scene, state: StateInMemory, member: Member) -> None:
        await configure(await scene.connect(), "share.isolation.level", "read_committed")
        append(scene, batch(b"aborted", base_sequence=0, **PRODUCER))
        append(scene, batch(b"plain"))
        waiting = asyncio.create_task(member.fetch(max_wait_ms=LONG_MS))
        await asyncio.sleep(1)
        assert not waiting.done()  # the transaction is open
        end_open_transaction(scene, is_commit=False)
        assert values(await waiting) == [b"plain"]
        append(scene, batch(b"committed", base_sequence=1, **PRODUCER))
        end_open_transaction(scene, is_commit=True)
        append(scene, batch(b"last"))
        assert await member.acquire([(1, 1, ACCEPT)]) == [(3, 3, 1), (5, 5, 1)]
        assert await member.acquire([(3, 3, ACCEPT), (5, 5, ACCEPT)]) == []
        assert state.writes[-1].start_offset == 6

    with_group(script)


@pytest.mark.proves("S10")
def test_aborted_records_are_skipped_if_the_transaction_index_is_corrupt() -> None:
    async def script(scene: Scene, _state: StateInMemory, member: Member) -> None:
        await configure(await scene.connect(), "share.isolation.level", "read_committed")
        append(scene, batch(b"aborted", base_sequence=0, **PRODUCER))
        end_open_transaction(scene, is_commit=False)
        log = partition_of(scene).log
        first = log.segment_of(0)
        assert first is not None
        log.roll(0)
        append(scene, batch(b"plain"))
        first.release()
        scene.simulation.disks_fail = True
        scene.host.disk.flip_bit(first.aborted.path, 2 + 7)  # the producer id
        assert await member.acquire() == [(2, 2, 1)]
        assert scene.node.broker.log_scrubber.restored_indexes == 1

    with_group(script)


def test_aborted_records_are_delivered_if_the_group_reads_all() -> None:
    async def script(scene: Scene, _state: StateInMemory, member: Member) -> None:
        append(scene, batch(b"aborted", base_sequence=0, **PRODUCER))
        assert await member.acquire() == [(0, 0, 1)]
        end_open_transaction(scene, is_commit=False)
        append(scene, batch(b"plain"))
        assert await member.acquire() == [(2, 2, 1)]  # not the marker between them

    with_group(script)


def test_gaps_of_compaction_are_passed() -> None:
    async def script(scene: Scene, state: StateInMemory, member: Member) -> None:
        partition = partition_of(scene)
        for offset in (0, 5, 9):
            partition.log.append_as_follower(memoryview(batch(b"x", base_offset=offset, leader_epoch=0)), 0)
        partition.committed_to(partition.log.end_offset, 1)
        assert await member.acquire() == [(0, 0, 1), (5, 5, 1), (9, 9, 1)]
        assert await member.acquire([(0, 0, ACCEPT), (9, 9, ACCEPT)]) == []
        assert state.writes[-1].start_offset == 5  # nothing at 1 to 4 is waited for

    with_group(script)


def test_retention_overtakes_the_window() -> None:
    async def script(scene: Scene, state: StateInMemory, member: Member) -> None:
        assert await member.acquire(max_records=3) == [(0, 2, 1)]
        await delete_records(scene, 4)
        assert await member.acknowledge((0, 2, ACCEPT)) == 0  # they need no other delivery
        assert await member.acquire() == [(4, 4, 1)]
        assert await member.acquire([(4, 4, ACCEPT)]) == []
        assert state.writes[-1].start_offset == 5

    with_group(script, *[b"x"] * 5)


def test_next_leader_epoch_continues_with_the_durable_state() -> None:
    async def script(scene: Scene, _state: StateInMemory, member: Member) -> None:
        assert await member.acquire() == [(0, 2, 1)]
        assert await member.acknowledge((0, 0, ACCEPT), (1, 1, RELEASE)) == 0
        partition = partition_of(scene)
        partition.lead_alone(partition.role.leader_epoch + 1)
        assert await member.acknowledge((2, 2, ACCEPT)) == ErrorCode.INVALID_RECORD_STATE
        assert await member.acquire() == [(1, 1, 2), (2, 2, 1)]

    with_group(script, *[b"x"] * 3)


def test_acknowledgement_fails_when_the_leader_changes_before_it_is_durable() -> None:
    async def script(scene: Scene, state: StateInMemory, member: Member) -> None:
        await member.acquire()
        await asyncio.sleep(1)
        state.may_write.clear()
        acknowledged = asyncio.create_task(member.acknowledge((0, 0, ACCEPT)))
        await asyncio.sleep(1)
        broker = scene.node.broker
        partition = partition_of(scene)
        partition.lead_alone(partition.role.leader_epoch + 1)
        shares_of(scene).remove_stale(broker.image)
        assert await acknowledged == ErrorCode.NOT_LEADER_OR_FOLLOWER
        state.may_write.set()

    with_group(script, b"a")


def test_recreated_topic_is_another_share_partition() -> None:
    async def script(scene: Scene, _state: StateInMemory, member: Member) -> None:
        assert await member.acquire() == [(0, 0, 1)]
        talker = await scene.connect()
        named = DeleteTopicsRequest.DeleteTopicState(name="t")
        await talker.ask(6, DeleteTopicsRequest(topics=[named], timeout_ms=1000))
        assert (await member.fetch()).error_code == ErrorCode.UNKNOWN_TOPIC_ID
        await scene.create("t")
        await produce(talker, "t", batch(b"new"))
        assert (await member.fetch()).error_code == ErrorCode.UNKNOWN_TOPIC_ID
        again = await member_of(scene, OTHER)
        assert values(await again.fetch()) == [b"new"]

    with_group(script, b"a")


@pytest.mark.parametrize(
    ("reset", "expected"), [("earliest", [(0, 2, 1)]), ("latest", [(3, 3, 1)]), ("by_duration:PT1H", [(1, 3, 1)])]
)
def test_new_group_starts_where_its_config_says(reset: str, expected: list[tuple[int, int, int]]) -> None:
    async def script(scene: Scene, _state: StateInMemory, member: Member) -> None:
        now_ms = scene.node.broker.clock.wall_ms()
        talker = await scene.connect()
        for timestamp in (now_ms - 7_200_000, now_ms, now_ms):
            await produce(talker, "t", batch(b"x", timestamp=timestamp))
        found = await member.acquire()
        if reset != "earliest":
            await produce(talker, "t", batch(b"x", timestamp=now_ms))
            found = (found + await member.acquire())[-1:] if reset == "latest" else found
        assert found == (expected if reset != "by_duration:PT1H" else [(1, 2, 1)])

    with_group(script, reset=reset)


def test_session_has_epochs() -> None:
    async def script(scene: Scene, _state: StateInMemory, member: Member) -> None:
        unknown = await member.fetch_response(epoch=3)
        assert unknown.error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        assert await member.acknowledge((0, 0, ACCEPT), epoch=1) == ErrorCode.SHARE_SESSION_NOT_FOUND
        first = await member.fetch_response([(0, 0, ACCEPT)])
        assert first.error_code == ErrorCode.INVALID_REQUEST
        member.epoch = 0
        assert await member.acquire() == [(0, 0, 1)]
        late = await member.fetch_response(epoch=5)
        assert late.error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        assert await member.acknowledge((0, 0, ACCEPT), epoch=0) == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        assert len(shares_of(scene).sessions) == 1
        last = await member.fetch_response([(0, 0, ACCEPT)], epoch=-1)
        assert last.error_code == last.responses[0].partitions[0].acknowledge_error_code == 0
        assert len(shares_of(scene).sessions) == 0

    with_group(script, b"a")


def test_forgotten_partition_is_not_fetched() -> None:
    async def script(scene: Scene, _state: StateInMemory, member: Member) -> None:
        assert await member.acquire(max_records=1) == [(0, 0, 1)]
        request = member.fetch_request()
        request.topics = []
        request.forgotten_topics_data = [ShareFetchRequest.ForgottenTopic(topic_id=member.topic_id, partitions=[0])]
        response = await member.talker.ask(2, request)
        assert response.error_code == 0
        assert not response.responses
        assert await (await member_of(scene, OTHER)).acquire() == [(1, 1, 1)]

    with_group(script, b"a", b"b")


@pytest.mark.parametrize("ending", ["close", "connection", "reopen"])
def test_records_are_released_when_the_session_ends(ending: str) -> None:
    async def script(scene: Scene, _state: StateInMemory, member: Member) -> None:
        assert await member.acquire() == [(0, 0, 1)]
        waiting = asyncio.create_task((await member_of(scene, OTHER)).acquire(max_wait_ms=LONG_MS))
        await asyncio.sleep(1)
        match ending:
            case "close":
                request = member.fetch_request(epoch=-1)
                request.topics = []
                await member.talker.ask(2, request)
            case "connection":
                member.talker.connection.close()
            case "reopen":
                request = member.fetch_request(epoch=0)
                request.topics = []
                await member.talker.ask(2, request)
        async with asyncio.timeout(1):
            assert await waiting == [(0, 0, 2)]

    with_group(script, b"a")


def test_share_partition_is_unloaded_after_its_last_session() -> None:
    async def script(scene: Scene, _state: StateInMemory, member: Member) -> None:
        assert await member.acquire() == [(0, 0, 1)]
        assert len(shares_of(scene)) == 1
        member.talker.connection.close()
        await asyncio.sleep(1)
        assert len(shares_of(scene)) == 0
        assert await (await member_of(scene, OTHER)).acquire() == [(0, 0, 2)]

    with_group(script, b"a")


def test_number_of_sessions_is_limited() -> None:
    async def script(scene: Scene, _state: StateInMemory, member: Member) -> None:
        await member.acquire()
        other = await member_of(scene, OTHER)
        response = await other.fetch_response()
        assert response.error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
        member.talker.connection.close()
        await asyncio.sleep(1)
        other.epoch = 0
        assert await other.acquire() == [(0, 0, 2)]

    with_group(script, b"a", settings=("group.share.max.share.sessions=1",))


def test_member_id_is_checked() -> None:
    async def script(_scene: Scene, _state: StateInMemory, member: Member) -> None:
        for name in ("", "x" * 37):
            member.name, member.epoch = name, 0
            assert (await member.fetch_response()).error_code == ErrorCode.INVALID_REQUEST

    with_group(script)


class AllBut(ScriptedAuthorizer):
    """Denies READ on one resource."""

    def __init__(self) -> None:
        self.denied = ""

    def is_allowed(self, client: Client, operation: Operation, resource: Resource) -> bool:  # noqa: ARG002
        return operation is not Operation.READ or resource.name != self.denied


def test_member_needs_read_on_group_and_topic() -> None:
    authorizer = AllBut()

    async def script(scene: Scene) -> None:
        await scene.create("t")
        await serve_shares(scene)
        await configure(await scene.connect(), "share.auto.offset.reset", "earliest")
        await produce(await scene.connect(), "t", batch(b"a"))
        member = await member_of(scene)
        assert await member.acquire() == [(0, 0, 1)]
        authorizer.denied = "t"
        authorizer.generation += 1
        assert await member.acknowledge((0, 0, ACCEPT)) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        found: Any = await member.fetch()
        assert found.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert not found.acquired_records
        authorizer.denied = "g"
        authorizer.generation += 1
        assert await member.acknowledge((0, 0, ACCEPT)) == ErrorCode.GROUP_AUTHORIZATION_FAILED
        assert (await member.fetch_response()).error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED

    on_broker(script, authorizer=authorizer)
