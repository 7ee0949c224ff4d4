"""Transactions as partitions and groups see them: on one broker, from the first batch to what readers are shown."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from broker_scene import Scene, Talker, batch, fetch, fetch_request, list_offset, on_broker, produce_request
from transaction_scene import FEW_PARTITIONS, Producer, find

from moldau.model.errors import ErrorCode
from moldau.records.record import iterate_batches, iterate_records
from moldau.wire.messages import (
    DescribeProducersRequest,
    ListOffsetsRequest,
    OffsetFetchRequest,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)

NONE = ErrorCode.NONE
OFFSETS_FEW = "offsets.topic.num.partitions=3"
READ_COMMITTED = 1
LATEST = -1
NOW_MS = 1_760_000_000_000  # as the simulated clock has it: markers bear its time, and a segment does not span years
BOTH = pytest.mark.parametrize("version", [1, 2], ids=["v1", "v2"])


class Writer(Producer):
    """A producer that also writes: in its first version it says before where, in its second it does not."""

    def __init__(self, scene: Scene, talker: Talker, transactional_id: str = "t", version: int = 2) -> None:
        async def reach(transactional_id: str) -> Talker:  # noqa: ARG001 - there is one broker
            return await scene.connect()

        super().__init__(reach, transactional_id, version)
        self.talker = talker
        self.sequences: dict[int, int] = {}

    def batch(self, *values: bytes, partition: int = 0, **fields: Any) -> bytearray:
        first = self.sequences.get(partition, 0)
        known = {
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
            "base_sequence": first,
            "is_transactional": True,
            "timestamp": NOW_MS,
        }
        return batch(*values, **(known | fields))

    async def send(self, *values: bytes, partition: int = 0, version: int | None = None, **fields: Any) -> Any:
        request = produce_request("t", self.batch(*values, partition=partition, **fields), partition=partition)
        request.transactional_id = self.transactional_id
        answer = await self.talker.ask(version or (12 if self.version == 2 else 9), request)
        told = answer.responses[0].partition_responses[0]
        if not told.error_code:
            self.sequences[partition] = self.sequences.get(partition, 0) + len(values)
        return told

    async def write(self, *values: bytes, partition: int = 0) -> int:
        """The base offset of what was written, in whichever way the version has it."""
        if self.version == 1:
            assert await self.add(("t", partition)) is NONE
        told = await self.send(*values, partition=partition)
        assert told.error_code == 0, ErrorCode(told.error_code)
        return int(told.base_offset)

    async def finish(self, *, is_commit: bool = True) -> None:
        assert await self.end(is_commit=is_commit) is NONE
        await self.until("CompleteCommit" if is_commit else "CompleteAbort")
        if self.version == 2:
            self.sequences.clear()

    async def commit_offset(self, offset: int, group_id: str = "g", version: int | None = None, **fields: Any) -> Any:
        part = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata="m"
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name="t", partitions=[part])],
            **fields,
        )
        answer = await self.talker.ask(version if version is not None else (5 if self.version == 2 else 3), request)
        return ErrorCode(answer.topics[0].partitions[0].error_code)


def play(script: Callable[[Scene, Writer], Coroutine[Any, Any, None]], version: int = 2, *settings: str) -> None:
    async def whole(scene: Scene) -> None:
        await scene.create("t", partitions=2)
        talker = await scene.connect()
        assert (await find(talker, "t")).error_code == 0
        writer = Writer(scene, talker, version=version)
        assert await writer.init() is NONE
        await script(scene, writer)

    on_broker(whole, settings=[*FEW_PARTITIONS, OFFSETS_FEW, *settings])


async def values(talker: Talker, *, isolation: int = READ_COMMITTED, offset: int = 0) -> list[bytes]:
    """What a consumer shows: it leaves out control records, and what it is told was aborted."""
    answer = await fetch(talker, "t", offset, isolation_level=isolation)
    assert answer.error_code == 0
    upcoming = sorted((each.first_offset, each.producer_id) for each in answer.aborted_transactions or ())
    dropped: set[int] = set()
    shown: list[bytes] = []
    for header, data in iterate_batches(answer.records):
        while isolation == READ_COMMITTED and upcoming and upcoming[0][0] <= header.last_offset:
            dropped.add(upcoming.pop(0)[1])
        if header.is_control:
            dropped.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in dropped):
            shown += [record.value or b"" for record in iterate_records(data)]
    return shown


async def stable_end(talker: Talker) -> int:
    asked = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=LATEST)
    topics = [ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[asked])]
    answer = await talker.ask(7, ListOffsetsRequest(replica_id=-1, isolation_level=READ_COMMITTED, topics=topics))
    return int(answer.topics[0].partitions[0].offset)


async def committed(talker: Talker, *, require_stable: bool = False, group_id: str = "g") -> tuple[int, ErrorCode]:
    topic = OffsetFetchRequest.OffsetFetchRequestTopics(name="t", partition_indexes=[0])
    group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group_id, topics=[topic])
    answer = await talker.ask(8, OffsetFetchRequest(groups=[group], require_stable=require_stable))
    (told,) = answer.groups[0].topics[0].partitions
    return told.committed_offset, ErrorCode(told.error_code)


@pytest.mark.proves("P3")
@BOTH
@pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "abort"])
def test_readers_of_what_is_committed_see_all_of_a_transaction_or_nothing(version: int, is_commit: bool) -> None:
    async def script(scene: Scene, writer: Writer) -> None:
        talker = await scene.connect()
        assert await writer.write(b"a", b"b") == 0
        assert (await writer.send(b"c")).base_offset == 2
        assert await values(talker) == []
        assert await values(talker, isolation=0) == [b"a", b"b", b"c"]
        assert await stable_end(talker) == 0
        assert (await list_offset(talker, "t", LATEST)).offset == 3
        await writer.finish(is_commit=is_commit)
        assert await values(talker) == ([b"a", b"b", b"c"] if is_commit else [])
        assert await stable_end(talker) == 4
        assert await writer.write(b"d") == 4, "the next transaction begins"
        await writer.finish()
        assert (await values(talker))[-1:] == [b"d"]

    play(script, version)


@pytest.mark.proves("P3")
@BOTH
@pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "abort"])
def test_offsets_of_a_transaction_count_when_it_is_committed(version: int, is_commit: bool) -> None:
    async def script(scene: Scene, writer: Writer) -> None:
        talker = await scene.connect()
        await scene.node.broker.groups.coordinator_of("g")
        if version == 1:
            assert await writer.add_offsets("g") is NONE
        assert await writer.commit_offset(7) is NONE
        assert await committed(talker) == (-1, NONE)
        assert await committed(talker, require_stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        await writer.finish(is_commit=is_commit)
        assert await committed(talker, require_stable=True) == (7 if is_commit else -1, NONE)

    play(script, version)


def test_a_reader_of_what_is_committed_is_not_woken_by_an_open_transaction() -> None:
    async def script(scene: Scene, writer: Writer) -> None:
        talker = await scene.connect()
        await writer.write(b"a")
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        waiting = talker.begin(11, fetch_request("t", 0, max_wait_ms=5_000, isolation_level=READ_COMMITTED))
        await asyncio.sleep(1)
        await writer.write(b"b")
        await asyncio.sleep(1)
        assert not waiting.done()
        await writer.finish()
        answer = (await waiting).responses[0].partitions[0]
        assert 2 <= loop.time() - began_s < 3
        assert len(answer.records) > 0
        began_s = loop.time()
        await writer.write(b"c")
        waiting = talker.begin(11, fetch_request("t", 3, max_wait_ms=1_000, isolation_level=READ_COMMITTED))
        await asyncio.sleep(0.5)
        await writer.write(b"d")
        answer = (await waiting).responses[0].partitions[0]
        assert 1 <= loop.time() - began_s < 2
        assert len(answer.records) == 0, "its time is up"

    play(script)


@BOTH
def test_what_is_pending_is_known_after_a_restart_and_after_a_crash(version: int) -> None:
    async def script(scene: Scene, writer: Writer) -> None:
        await scene.node.broker.groups.coordinator_of("g")
        if version == 1:
            assert await writer.add_offsets("g") is NONE
        await writer.write(b"a")
        assert await writer.commit_offset(7) is NONE
        for stops_cleanly in (True, False):
            if stops_cleanly:
                await scene.host.stop()
            await (scene.restart() if stops_cleanly else scene.restart_after_crash())
            writer.talker = talker = await scene.connect()
            assert await settled(talker, require_stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
            assert await committed(talker) == (-1, NONE)
            assert await stable_end(talker) == 0
        assert (await writer.send(b"b")).error_code == 0, "the transaction goes on"
        await writer.finish()
        assert await committed(talker, require_stable=True) == (7, NONE)
        assert await values(talker) == [b"a", b"b"]
        await scene.restart_after_crash()
        talker = await scene.connect()
        assert await settled(talker, require_stable=True) == (7, NONE)
        assert await values(talker) == [b"a", b"b"]

    play(script, version)


async def settled(talker: Talker, *, require_stable: bool) -> tuple[int, ErrorCode]:
    """What is committed, once the group is loaded."""
    while (found := await committed(talker, require_stable=require_stable))[1] in (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    ):
        await asyncio.sleep(0.05)
    return found


def write_marker(
    writer: Writer,
    *,
    epoch: int,
    is_commit: bool = True,
    coordinator_epoch: int = 0,
    version: int = 0,
    topic: str = "t",
) -> Coroutine[Any, Any, Any]:
    asked = WriteTxnMarkersRequest.WritableTxnMarker(
        producer_id=writer.producer_id,
        producer_epoch=epoch,
        transaction_result=is_commit,
        coordinator_epoch=coordinator_epoch,
        transaction_version=version,
        topics=[WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=topic, partition_indexes=[0])],
    )
    return writer.talker.ask(2, WriteTxnMarkersRequest(markers=[asked]))


def code_of_marker(answer: Any) -> ErrorCode:
    return ErrorCode(answer.markers[0].topics[0].partitions[0].error_code)


@pytest.mark.proves("P3")
def test_a_marker_of_the_transaction_before_does_not_end_the_next_one() -> None:
    async def script(scene: Scene, writer: Writer) -> None:
        await writer.write(b"a")
        epoch = writer.epoch
        await writer.finish()
        assert writer.epoch == epoch + 1
        log = scene.node.broker.partitions.get("t", 0).log
        end_offset = log.end_offset
        again = await write_marker(writer, epoch=epoch + 1, version=2)
        assert (code_of_marker(again), log.end_offset) == (NONE, end_offset), "it is there already"
        await writer.write(b"b")
        late = await write_marker(writer, epoch=epoch + 1, version=2)
        assert code_of_marker(late) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await stable_end(writer.talker) == end_offset
        await writer.finish(is_commit=False)
        assert await values(writer.talker) == [b"a"]

    play(script)


def test_a_former_coordinator_is_refused() -> None:
    async def script(scene: Scene, writer: Writer) -> None:  # noqa: ARG001
        await writer.write(b"a")
        assert code_of_marker(await write_marker(writer, epoch=writer.epoch, coordinator_epoch=5)) is NONE
        await writer.send(b"b")
        late = await write_marker(writer, epoch=writer.epoch, coordinator_epoch=4, is_commit=False)
        assert code_of_marker(late) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
        older = await write_marker(writer, epoch=writer.epoch - 1, coordinator_epoch=5)
        assert code_of_marker(older) is ErrorCode.INVALID_PRODUCER_EPOCH
        unknown = await write_marker(writer, epoch=writer.epoch, topic="nowhere")
        assert code_of_marker(unknown) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    play(script, 1)


def test_producers_of_a_partition_are_described() -> None:
    async def script(scene: Scene, writer: Writer) -> None:  # noqa: ARG001
        asked = DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[0, 7])
        await writer.write(b"a", b"b")
        known, unknown = (await writer.talker.ask(0, DescribeProducersRequest(topics=[asked]))).topics[0].partitions
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        (state,) = known.active_producers
        assert (state.producer_id, state.producer_epoch) == (writer.producer_id, writer.epoch)
        assert (state.last_sequence, state.last_timestamp) == (1, NOW_MS)
        assert (state.coordinator_epoch, state.current_txn_start_offset) == (-1, 0)
        await writer.finish()
        known, _ = (await writer.talker.ask(0, DescribeProducersRequest(topics=[asked]))).topics[0].partitions
        (state,) = known.active_producers
        assert (state.producer_epoch, state.last_sequence) == (writer.epoch, -1)
        assert (state.coordinator_epoch, state.current_txn_start_offset) == (0, -1)

    play(script)
