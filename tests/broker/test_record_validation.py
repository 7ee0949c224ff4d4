"""Validation of records in produced batches: `moldau.record.validation` is header, sampled or full."""

import random
from collections.abc import Callable
from struct import pack_into

import pytest
from broker_scene import Scene, Talker, batch, list_offset, on_broker, produce

from moldau.broker.runtime import record_sampler
from moldau.broker.runtime.record_sampler import FIRST_BATCHES, PRODUCERS_MAX, RecordSamplers
from moldau.model.errors import ErrorCode
from moldau.model.ids import NO_PRODUCER_ID
from moldau.records.builder import build_batch
from moldau.records.compression import Compression
from moldau.records.header import HEADER_BYTES, read_header, write_checksum

pytestmark = pytest.mark.proves("P1")


def signed(records: bytearray) -> bytes:
    write_checksum(records, 0, len(records))
    return bytes(records)


def with_wrong_count() -> bytes:
    records = build_batch([(0, b"k", b"v" * 100, ())] * 3)
    pack_into(">i", records, 23, 3)  # the last offset delta
    pack_into(">i", records, 57, 4)
    return signed(records)


def with_wrong_length() -> bytes:
    records = build_batch([(0, b"k", b"v" * 20, ())] * 3)
    records[HEADER_BYTES] = 0x7F
    return signed(records)


def with_gap_in_offsets() -> bytes:
    records = build_batch([(0, b"k", b"v", ())] * 2)
    second = HEADER_BYTES + (len(records) - HEADER_BYTES) // 2
    records[second + 3] = 2 << 1  # length, attributes, timestamp delta, offset delta
    return signed(records)


def with_random_body() -> bytes:
    records = build_batch([(0, b"k", b"v" * 1_000, ())], compression=Compression.ZSTD)
    records[HEADER_BYTES:] = random.Random(1).randbytes(len(records) - HEADER_BYTES)
    return signed(records)


INVALID: dict[str, Callable[[], bytes]] = {
    "count": with_wrong_count,
    "length": with_wrong_length,
    "offset delta": with_gap_in_offsets,
    "compressed body": with_random_body,
}


async def code_of(talker: Talker, records: bytes | bytearray) -> ErrorCode:
    return ErrorCode((await produce(talker, "t", records)).error_code)


@pytest.mark.parametrize("fault", INVALID)
def test_invalid_records_of_a_new_producer_are_rejected(fault: str) -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        for _ in range(FIRST_BATCHES + 2):  # an invalid batch never makes a producer trusted
            assert await code_of(talker, INVALID[fault]()) is ErrorCode.INVALID_RECORD
        assert (await list_offset(talker, "t", -1)).offset == 0
        assert await code_of(talker, batch(b"good")) is ErrorCode.NONE

    on_broker(script)


def test_header_validation_does_not_decode_records() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t", moldau_record_validation="header")
        for _ in range(2):
            assert await code_of(await scene.connect(), with_wrong_length()) is ErrorCode.NONE

    on_broker(script)


def test_decompression_bomb_is_rejected_off_the_loop() -> None:
    bomb = bytes(build_batch([(0, b"k", bytes(40 << 20), ())], compression=Compression.ZSTD))
    assert len(bomb) < 10_000

    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        for _ in range(2):
            assert await code_of(talker, bomb) is ErrorCode.MESSAGE_TOO_LARGE
        assert (await list_offset(talker, "t", -1)).offset == 0

    on_broker(script)


def test_full_validation_never_trusts_a_producer() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t", moldau_record_validation="full")
        talker = await scene.connect()
        for _ in range(FIRST_BATCHES + 3):
            assert await code_of(talker, batch(b"good")) is ErrorCode.NONE
        assert await code_of(talker, with_wrong_length()) is ErrorCode.INVALID_RECORD

    on_broker(script)


def test_brokers_default_applies_to_topics_without_their_own() -> None:
    async def script(scene: Scene) -> None:
        await scene.create("t")
        assert await code_of(await scene.connect(), with_wrong_length()) is ErrorCode.NONE

    on_broker(script, settings=["moldau.record.validation=header"])


def test_random_sample_finds_a_trusted_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the sample has found it, every batch of the producer is validated, on any connection."""
    monkeypatch.setattr(record_sampler, "SAMPLE_EVERY", 20)

    def of_producer(sequence: int, records: bytes | None = None) -> bytes:
        found = bytearray(records or batch(b"v"))
        pack_into(">qhi", found, 43, 77, 0, sequence)
        return signed(found)

    async def script(scene: Scene) -> None:
        await scene.create("t")
        talker = await scene.connect()
        for sequence in range(FIRST_BATCHES):
            assert await code_of(talker, of_producer(sequence)) is ErrorCode.NONE
        invalid = with_wrong_length()
        sequence, accepted = FIRST_BATCHES, 0
        while await code_of(talker, of_producer(sequence, invalid)) is ErrorCode.NONE:
            sequence += read_header(invalid).records_count
            accepted += 1
        assert 0 < accepted < 40
        for each in (talker, await scene.connect()):
            for _ in range(FIRST_BATCHES + 1):
                assert await code_of(each, of_producer(sequence)) is ErrorCode.NONE
                sequence += 1
            assert await code_of(each, of_producer(sequence, invalid)) is ErrorCode.INVALID_RECORD

    on_broker(script)


def test_sampler_validates_a_small_share_of_a_trusted_producer() -> None:
    sampler = RecordSamplers(random.Random(5)).create()

    def is_validated(producer_id: int) -> bool:
        """As `produce_validation.accept` decides."""
        sampler.countdown -= 1
        if sampler.countdown >= 0 and producer_id in sampler.trusted:
            return False
        sampler.accepted(producer_id)
        return True

    for producer_id in (NO_PRODUCER_ID, 7):
        assert [is_validated(producer_id) for _ in range(FIRST_BATCHES)] == [True] * FIRST_BATCHES
    validated = sum(is_validated(7) for _ in range(100_000))
    assert 50 < validated < 200
    for producer_id in range(10 * PRODUCERS_MAX):
        is_validated(producer_id)
    assert len(sampler.trusted) <= PRODUCERS_MAX
