"""Produce: offsets, error codes, acks, idempotence, compression, timestamps."""

import asyncio
import struct
from struct import pack_into
from typing import Any

import pytest
from broker_scene import Scene, batch, fetch, fetch_request, list_offset, on_broker, produce, produce_request

from moldau.model.errors import ErrorCode
from moldau.records.builder import build_batch
from moldau.records.compression import Compression
from moldau.records.header import write_checksum
from moldau.records.record import iterate_records
from moldau.wire.messages import InitProducerIdRequest, ProduceRequest

pytestmark = pytest.mark.proves("P1")


@pytest.mark.parametrize("version", range(3, 13))
def test_batch_gets_the_next_offsets_in_every_version(version: int) -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        first = await produce(talker, "t", batch(b"a", b"b"), version)
        second = await produce(talker, "t", batch(b"c"), version)
        assert (first.error_code, first.base_offset) == (0, 0)
        assert (second.error_code, second.base_offset) == (0, 2)

    on_broker(script)


def test_topics_are_identified_by_id_from_version_13() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        topic_id = scene.node.broker.image.topics["t"].topic_id
        for given, expected in ((topic_id, 0), (b"?" * 16, ErrorCode.UNKNOWN_TOPIC_ID)):
            request = produce_request("", batch(b"a"))
            request.topic_data[0].topic_id = given
            response = await talker.ask(13, request)
            assert response.responses[0].topic_id == given
            assert response.responses[0].partition_responses[0].error_code == expected

    on_broker(script)


def corrupted(position: int, value: int) -> bytearray:
    records = batch(b"hello")
    records[position] = value
    return records


def two_batches() -> bytearray:
    return batch(b"a") + batch(b"b")


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (corrupted(65, 255), ErrorCode.CORRUPT_MESSAGE),  # the checksum does not match
        (corrupted(16, 1), ErrorCode.INVALID_RECORD),  # an old magic
        (corrupted(16, 9), ErrorCode.CORRUPT_MESSAGE),  # an unknown magic
        (two_batches(), ErrorCode.INVALID_RECORD),
        (batch(b"a")[:40], ErrorCode.INVALID_RECORD),
        (b"", ErrorCode.INVALID_RECORD),
        (batch(b"a", is_control=True), ErrorCode.INVALID_RECORD),
        (batch(b"a" * 2_000_000), ErrorCode.MESSAGE_TOO_LARGE),
        (batch(b"a", timestamp=4_000_000_000_000), ErrorCode.INVALID_TIMESTAMP),
    ],
)
def test_invalid_batch_is_rejected_with_kafkas_error_code(records: bytes, code: ErrorCode) -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        response = await produce(talker, "t", records)
        assert ErrorCode(response.error_code) is code
        assert response.error_message
        assert response.base_offset == -1
        assert (await list_offset(talker, "t", -1)).offset == 0
        assert (await produce(talker, "t", batch(b"good"))).base_offset == 0

    on_broker(script)


def test_unknown_partitions_and_acks_are_rejected() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await produce(talker, "nowhere", batch(b"a"))).error_code == unknown
        assert (await produce(talker, "t", batch(b"a"), partition=7)).error_code == unknown
        for _ in range(3):  # a repeated request takes the fast path
            assert (await produce(talker, "t", batch(b"a"), acks=3)).error_code == ErrorCode.INVALID_REQUIRED_ACKS

    on_broker(script)


def test_zstd_is_rejected_before_version_7() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        records = batch(b"a" * 100, compression=Compression.ZSTD)
        assert (await produce(talker, "t", bytes(records), 6)).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        assert (await produce(talker, "t", bytes(records), 7)).error_code == 0

    on_broker(script)


@pytest.mark.proves("P3")
def test_transactional_batch_without_a_transactional_id_is_rejected() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        records = batch(b"a", producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
        for _ in range(3):  # the fast path, too
            assert (await produce(talker, "t", batch(b"plain"))).error_code == 0
            response = await produce(talker, "t", records)
            assert response.error_code in (
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                ErrorCode.INVALID_TXN_STATE,
            )
        assert scene.node.broker.partitions.get("t", 0).log.end_offset == 3

    on_broker(script)


def test_acks_0_gets_no_response() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        talker.begin(9, produce_request("t", batch(b"a"), acks=0), has_response=False)
        assert (await list_offset(talker, "t", -1)).offset == 1

    on_broker(script)


def test_failed_produce_with_acks_0_closes_the_connection() -> None:
    async def script(scene: Scene) -> None:
        talker = await scene.connect()
        talker.begin(9, produce_request("nowhere", batch(b"a"), acks=0), has_response=False)
        async with asyncio.timeout(10):  # long before the connection would count as idle
            await talker.is_lost.wait()

    on_broker(script)


def test_requests_of_one_connection_append_in_order() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        waits = [talker.begin(9, produce_request("t", batch(str(number).encode()))) for number in range(50)]
        offsets = [(await wait).responses[0].partition_responses[0].base_offset for wait in waits]
        assert offsets == list(range(50))

    on_broker(script)


@pytest.mark.proves("P2")
class TestIdempotence:
    """Deduplication by producer id, epoch and sequence."""

    @staticmethod
    async def sent(scene: Scene, *sequences: int, epoch: int = 0) -> list[Any]:
        await scene.create("t")
        talker = await scene.connect()
        given = await talker.ask(4, InitProducerIdRequest(transaction_timeout_ms=1000))
        responses = []
        for sequence in sequences:
            records = batch(b"a", producer_id=given.producer_id, producer_epoch=epoch, base_sequence=sequence)
            responses.append(await produce(talker, "t", records))
        return responses

    def test_duplicate_batch_returns_its_first_offset_and_is_not_appended(self) -> None:
        async def script(scene: Scene) -> None:
            responses = await self.sent(scene, 0, 1, 1, 0, 2)
            assert [each.error_code for each in responses] == [0] * 5
            assert [each.base_offset for each in responses] == [0, 1, 1, 0, 2]

        on_broker(script)

    def test_sequence_gap_is_out_of_order(self) -> None:
        async def script(scene: Scene) -> None:
            responses = await self.sent(scene, 0, 5, 1)
            codes = [each.error_code for each in responses]
            assert codes == [0, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0]

        on_broker(script)

    def test_old_epoch_is_fenced(self) -> None:
        async def script(scene: Scene) -> None:
            await scene.create("t")
            talker = await scene.connect()
            producer_id = (await talker.ask(4, InitProducerIdRequest(transaction_timeout_ms=1000))).producer_id
            codes = []
            for epoch, sequence in ((1, 0), (0, 1), (1, 1)):
                records = batch(b"a", producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
                codes.append((await produce(talker, "t", records)).error_code)
            assert codes == [0, ErrorCode.INVALID_PRODUCER_EPOCH, 0]

        on_broker(script)

    def test_producer_state_survives_a_crash(self) -> None:
        async def script(scene: Scene) -> None:
            await scene.create("t")
            talker = await scene.connect()
            producer_id = (await talker.ask(4, InitProducerIdRequest(transaction_timeout_ms=1000))).producer_id
            records = bytes(batch(b"a", producer_id=producer_id, producer_epoch=0, base_sequence=0))
            assert (await produce(talker, "t", records)).base_offset == 0
            scene.host.crash()
            await scene.restart()
            talker = await scene.connect()
            assert (await produce(talker, "t", records)).base_offset == 0
            assert (await list_offset(talker, "t", -1)).offset == 1
            later = (await talker.ask(4, InitProducerIdRequest(transaction_timeout_ms=1000))).producer_id
            assert later > producer_id

        on_broker(script)


def test_compacted_topic_requires_keys() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t", cleanup_policy="compact")
        talker = await scene.connect()
        assert (await produce(talker, "t", batch(b"a"))).error_code == ErrorCode.INVALID_RECORD
        assert (await produce(talker, "t", batch(b"a", key=b"k"))).error_code == 0

    on_broker(script)


def record_errors(response: Any) -> list[int]:
    assert all(each.batch_index_error_message for each in response.record_errors)
    return [each.batch_index for each in response.record_errors]


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
@pytest.mark.parametrize("count", [5, 3_000], ids=["in one turn", "in time slices"])
def test_rejected_batch_names_its_invalid_records(compression: Compression, count: int) -> None:
    keys = [None if index in (1, 3) else b"k" for index in range(count)]
    records = bytes(build_batch([(0, key, b"v", ()) for key in keys], compression=compression))

    async def script(scene: Scene) -> None:
        await scene.create("t", cleanup_policy="compact")
        talker = await scene.connect()
        for version in (7, 8, 12):
            response = await produce(talker, "t", records, version)
            assert response.error_code == ErrorCode.INVALID_RECORD
            if version >= 8:
                assert record_errors(response) == [1, 3]
                assert response.error_message
        assert (await list_offset(talker, "t", -1)).offset == 0

    on_broker(script)


@pytest.mark.parametrize("bound", ["before", "after"])
def test_timestamp_beyond_the_bound_in_mid_batch_is_rejected(bound: str) -> None:
    async def script(scene: Scene) -> None:
        bounds = {f"message_timestamp_{bound}_max_ms": 60_000}
        await scene.create("t", moldau_record_validation="header", **bounds)
        talker = await scene.connect()
        now_ms = scene.host.clock.wall_ms()
        invalid_ms = now_ms - 61_000 if bound == "before" else now_ms + 65_000
        times = [now_ms, invalid_ms, now_ms, -1]
        batches = [build_batch([(each, b"k", b"v", ()) for each in times]) for _ in range(3)]
        pack_into(">q", batches[1], 35, now_ms)  # the header's max timestamp, which may be wrong
        write_checksum(batches[1], 0, len(batches[1]))
        for records in batches:  # a repeated request takes the fast path
            response = await produce(talker, "t", records)
            assert response.error_code == ErrorCode.INVALID_TIMESTAMP
            assert record_errors(response) == [1]
        good = build_batch([(each, b"k", b"v", ()) for each in (now_ms, now_ms - 1_000, -1)])
        assert (await produce(talker, "t", good)).base_offset == 0

    on_broker(script)


def test_default_bound_names_the_record_too_far_ahead() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        now_ms = scene.host.clock.wall_ms()
        times = [now_ms, now_ms + 3_700_000, 0]
        for _ in range(3):
            response = await produce(talker, "t", build_batch([(each, b"k", b"v", ()) for each in times]))
            assert response.error_code == ErrorCode.INVALID_TIMESTAMP
            assert record_errors(response) == [1]

    on_broker(script)


def test_topic_with_its_own_codec_recompresses() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t", compression_type="lz4")
        talker = await scene.connect()
        await produce(talker, "t", batch(b"a" * 1000, compression=Compression.GZIP))
        records = (await fetch(talker, "t", 0)).records
        assert struct.unpack_from(">h", records, 21)[0] & 7 == Compression.LZ4
        assert [record.value for record in iterate_records(records)] == [b"a" * 1000]

    on_broker(script)


@pytest.mark.proves("S9")
@pytest.mark.parametrize("codec", list(Compression))
def test_batch_is_served_as_the_producer_sent_it(codec: Compression) -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        sent = bytes(batch(b"a" * 1000, b"b" * 1000, compression=codec))
        await produce(talker, "t", sent)
        served = bytes((await fetch(talker, "t", 0)).records)
        assert served[16:] == sent[16:]  # all but base offset, length and leader epoch

    on_broker(script)


def test_log_append_time_is_the_brokers_time() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t", message_timestamp_type="LogAppendTime")
        talker = await scene.connect()
        response = await produce(talker, "t", batch(b"a", timestamp=1))
        assert response.log_append_time_ms == scene.host.clock.wall_ms() or response.log_append_time_ms > 1
        (record,) = iterate_records((await fetch(talker, "t", 0)).records)
        assert record.timestamp == response.log_append_time_ms

    on_broker(script)


@pytest.mark.proves("S6")
def test_flushed_topic_neither_acknowledges_nor_serves_before_the_sync() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t", flush_messages=1)
        for number in range(8):
            talker, reader = await scene.connect(), await scene.connect()
            acknowledged = talker.begin(9, produce_request("t", batch(b"a"), acks=1))
            seen = reader.begin(11, fetch_request("t", number, max_wait_ms=1000))
            await asyncio.wait([acknowledged, seen], return_when=asyncio.FIRST_COMPLETED)
            scene.host.power_loss()
            await scene.restart()
            assert (await list_offset(await scene.connect(), "t", -1)).offset == number + 1

    on_broker(script)


def test_topics_and_partitions_have_individual_responses() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("a", 2)
        talker = await scene.connect()
        parts = [ProduceRequest.PartitionProduceData(index=index, records=batch(b"x")) for index in (0, 1, 2)]
        topics = [ProduceRequest.TopicProduceData(name=name, partition_data=parts) for name in ("a", "b")]
        response = await talker.ask(9, ProduceRequest(acks=1, timeout_ms=1000, topic_data=topics))
        codes = [[part.error_code for part in topic.partition_responses] for topic in response.responses]
        assert codes == [[0, 0, 3], [3, 3, 3]]

    on_broker(script)
