"""Batches that arrive together are written together, and none is acknowledged before its write."""

import asyncio
import errno
from typing import Any

import pytest
from broker_scene import Scene, Talker, batch, fetch_request, list_offset, on_broker, produce, produce_request
from group_members import committed, find_coordinator
from transaction_scene import find, producer_of

from moldau.model.errors import ErrorCode
from moldau.records.record import iterate_batches, iterate_records
from moldau.wire.framing import RequestHeader, frame_request
from moldau.wire.messages import InitProducerIdRequest, TxnOffsetCommitRequest

LOG = "/data/t-0/00000000000000000000.log"
COUNT = 10

pytestmark = pytest.mark.proves("S6")


def in_one_piece(talker: Talker, *requests: tuple[int, Any]) -> list["asyncio.Future[Any]"]:
    """Send several requests so that they arrive in one event loop iteration."""
    waits: list[asyncio.Future[Any]] = []
    pieces: list[Any] = []
    for number, (version, request) in enumerate(requests):
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        talker._requested.append((request.API_KEY, version, future))
        waits.append(future)
        header = RequestHeader(request.API_KEY, version, number, "scene")
        pieces += frame_request(header, request)
    talker.send([b"".join(bytes(piece) for piece in pieces)])
    return waits


def produced(response: Any) -> Any:
    return response.responses[0].partition_responses[0]


def writes(scene: Scene) -> list[str]:
    return [line for line in scene.simulation.trace.recent if f"pwrite {LOG}" in line]


def test_batches_of_one_iteration_are_one_write_in_order() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        requests = [(9, produce_request("t", batch(str(number).encode()))) for number in range(COUNT)]
        before = len(writes(scene))
        waits = in_one_piece(talker, *requests)
        assert [produced(await wait).base_offset for wait in waits] == list(range(COUNT))
        assert len(writes(scene)) == before + 1

    on_broker(script)


def test_read_in_the_same_iteration_sees_earlier_batches() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        *waits, fetched = in_one_piece(
            talker,
            (9, produce_request("t", batch(b"a"))),
            (9, produce_request("t", batch(b"b"))),
            (11, fetch_request("t", 0)),
        )
        assert [produced(await wait).error_code for wait in waits] == [0, 0]
        records = bytes((await fetched).responses[0].partitions[0].records)
        found = [record.value for _, each in iterate_batches(records) for record in iterate_records(each)]
        assert found == [b"a", b"b"]

    on_broker(script)


def test_segment_roll_within_one_iteration_keeps_all_batches() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t", segment_bytes=1024)
        talker = await scene.connect()
        requests = [(9, produce_request("t", batch(b"x" * 300))) for _ in range(COUNT)]
        assert [produced(await wait).base_offset for wait in in_one_piece(talker, *requests)] == list(range(COUNT))
        scene.host.crash()
        await scene.restart()
        talker = await scene.connect()
        assert (await list_offset(talker, "t", -1)).offset == COUNT

    on_broker(script)


@pytest.mark.parametrize("segment_bytes", [1_000_000, 1024], ids=["one segment", "rolling"])
def test_failed_write_is_not_acknowledged_and_the_log_continues(segment_bytes: int) -> None:
    async def script(scene: Scene) -> None:
        scene.simulation.disks_fail = True
        await scene.create("t", segment_bytes=segment_bytes)
        talker = await scene.connect()
        producer_id = (await talker.ask(4, InitProducerIdRequest(transaction_timeout_ms=1000))).producer_id

        def numbered(sequence: int) -> bytes:
            return bytes(batch(b"x" * 300, producer_id=producer_id, producer_epoch=0, base_sequence=sequence))

        assert (await produce(talker, "t", numbered(0))).base_offset == 0
        scene.host.disk.fail("pwrite", errno.ENOSPC, path=LOG, times=2)
        requests = [(9, produce_request("t", numbered(sequence))) for sequence in range(1, COUNT)]
        waits = in_one_piece(talker, *requests)
        await talker.is_lost.wait()
        assert all(wait.exception() is not None for wait in waits)
        # The next one is sent alone and fails with the error; then there is space, and nothing is lost or duplicated.
        talker = await scene.connect()
        rejected = await produce(talker, "t", numbered(1))
        assert rejected.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        again = [(9, produce_request("t", numbered(sequence))) for sequence in range(COUNT)]
        offsets = [produced(await wait).base_offset for wait in in_one_piece(talker, *again)]
        assert offsets == list(range(COUNT))
        assert (await list_offset(talker, "t", -1)).offset == COUNT
        scene.host.crash()
        await scene.restart()
        talker = await scene.connect()
        assert (await list_offset(talker, "t", -1)).offset == COUNT
        assert (await produce(talker, "t", numbered(COUNT))).base_offset == COUNT

    on_broker(script)


def test_offsets_appended_between_batches_are_visible_only_once_written() -> None:
    async def script(scene: Scene) -> None:
        scene.simulation.disks_fail = True
        await scene.create("t")
        talker = await scene.connect()
        await find_coordinator(talker)
        await find(talker, "t")
        producer = producer_of(scene, version=1)
        await producer.init()
        await producer.add_offsets("g")

        def committing(offset: int) -> tuple[int, TxnOffsetCommitRequest]:
            partition = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                partition_index=0, committed_offset=offset
            )
            topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name="t", partitions=[partition])
            return 3, TxnOffsetCommitRequest(
                transactional_id="t",
                group_id="g",
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                topics=[topic],
            )

        assert (await talker.ask(*committing(11))).topics[0].partitions[0].error_code == 0
        scene.host.disk.fail("pwrite", errno.ENOSPC, path="__consumer_offsets")
        sent = [(9, produce_request("t", batch(b"x"))) for _ in range(3)]
        _, _, rejected, _ = in_one_piece(talker, sent[0], sent[1], committing(77), sent[2])
        assert (await rejected).topics[0].partitions[0].error_code != 0
        assert await producer.end() == 0
        async with asyncio.timeout(10):
            while (found := await committed(talker, [0], topic="t")) == {0: -1}:  # not loaded to the end yet
                await asyncio.sleep(0.01)
        assert found == {0: 11}

    on_broker(script)
