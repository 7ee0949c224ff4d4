"""Transactions on the partitions and groups of one broker: batches, markers, isolation levels."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from broker_scene import Scene, Talker, fetch_request, list_offset
from writer_scene import LATEST, NONE, NOW_MS, READ_COMMITTED, Writer, committed, play, stable_end, values

from moldau.model.errors import ErrorCode
from moldau.wire.messages import DescribeProducersRequest, WriteTxnMarkersRequest

BOTH = pytest.mark.parametrize("version", [1, 2], ids=["v1", "v2"])


@pytest.mark.proves("C7")
@pytest.mark.proves("P3")
@BOTH
@pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "abort"])
def test_read_committed_returns_a_whole_transaction_or_nothing(version: int, is_commit: bool) -> None:
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
def test_transactional_offsets_apply_on_commit(version: int, is_commit: bool) -> None:
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


@pytest.mark.proves("C7")
def test_read_committed_fetch_waits_through_an_open_transaction() -> None:
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
        response = (await waiting).responses[0].partitions[0]
        assert 2 <= loop.time() - began_s < 3
        assert len(response.records) > 0
        began_s = loop.time()
        await writer.write(b"c")
        waiting = talker.begin(11, fetch_request("t", 3, max_wait_ms=1_000, isolation_level=READ_COMMITTED))
        await asyncio.sleep(0.5)
        await writer.write(b"d")
        response = (await waiting).responses[0].partitions[0]
        assert 1 <= loop.time() - began_s < 2
        assert len(response.records) == 0, "its time is up"

    play(script)


@pytest.mark.proves("C1", part="minimum bytes and maximum wait")
@pytest.mark.parametrize("is_open", [True, False], ids=["open when it is verified", "begun while it waits"])
def test_read_committed_fetch_completes_at_the_commit(is_open: bool) -> None:
    async def script(scene: Scene, writer: Writer) -> None:
        talker = await scene.connect()
        if is_open:
            await writer.write(bytes(2000))
        request = fetch_request("t", 0, max_wait_ms=60_000, min_bytes=1000, isolation_level=READ_COMMITTED)
        waiting = talker.begin(11, request)
        await asyncio.sleep(1)
        await writer.write(bytes(2000))
        await asyncio.sleep(1)
        assert not waiting.done()
        await writer.finish()
        await asyncio.sleep(1)
        assert waiting.done(), "the marker is small, but what it sets free is enough"

    play(script)


@BOTH
def test_open_transaction_state_survives_restart_and_crash(version: int) -> None:
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
    """Return the committed offset and the error, once the group is loaded."""
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
    requested = WriteTxnMarkersRequest.WritableTxnMarker(
        producer_id=writer.producer_id,
        producer_epoch=epoch,
        transaction_result=is_commit,
        coordinator_epoch=coordinator_epoch,
        transaction_version=version,
        topics=[WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=topic, partition_indexes=[0])],
    )
    return writer.talker.ask(2, WriteTxnMarkersRequest(markers=[requested]))


def code_of_marker(response: Any) -> ErrorCode:
    return ErrorCode(response.markers[0].topics[0].partitions[0].error_code)


@pytest.mark.proves("P3")
def test_marker_of_the_previous_transaction_does_not_end_the_next() -> None:
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


@pytest.mark.proves("P3")
def test_marker_of_a_former_coordinator_is_rejected() -> None:
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
        requested = DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[0, 7])
        await writer.write(b"a", b"b")
        known, unknown = (await writer.talker.ask(0, DescribeProducersRequest(topics=[requested]))).topics[0].partitions
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        (state,) = known.active_producers
        assert (state.producer_id, state.producer_epoch) == (writer.producer_id, writer.epoch)
        assert (state.last_sequence, state.last_timestamp) == (1, NOW_MS)
        assert (state.coordinator_epoch, state.current_txn_start_offset) == (-1, 0)
        await writer.finish()
        known, _ = (await writer.talker.ask(0, DescribeProducersRequest(topics=[requested]))).topics[0].partitions
        (state,) = known.active_producers
        assert (state.producer_epoch, state.last_sequence) == (writer.epoch, -1)
        assert (state.coordinator_epoch, state.current_txn_start_offset) == (0, -1)

    play(script)
