"""The newest value of each key, collected in bulk, equals that of reading record by record."""

import random

import pytest

from moldau.broker.coordinators.key_compaction import NewestValues
from moldau.model.errors import CorruptMessage
from moldau.records.builder import build_batch
from moldau.records.compression import Compression
from moldau.records.control import ControlType, build_control_batch
from moldau.records.record import Record, iterate_batches, iterate_records

BATCHES_AT_ONCE = 3


def _gathered(batches: bytes) -> list[tuple[int, bytes, bytes]]:
    newest = NewestValues("log")
    position = 0
    while position < len(batches):
        position, _ = newest.add(batches, position, BATCHES_AT_ONCE)
    return list(newest)


def _read_one_by_one(batches: bytes) -> list[tuple[int, bytes, bytes]]:
    newest: dict[bytes, tuple[int, bytes]] = {}
    for header, batch in iterate_batches(batches):
        for record in iterate_records(batch) if not header.is_control else ():
            if record.key is None:
                continue
            newest.pop(record.key, None)
            if record.value is not None:
                newest[record.key] = record.offset, record.value
    return [(offset, key, value) for key, (offset, value) in newest.items()]


def _random_log(chance: random.Random) -> bytes:
    offset, batches = chance.randrange(1000), []
    for _ in range(chance.randrange(1, 60)):
        count = chance.choice((1, 1, 1, 2, 5))
        deltas = [chance.choice((0, 0, 0, 1, 300)) for _ in range(count)]
        records = []
        base_offset = offset
        for delta in deltas:
            offset += delta
            key = chance.choice((None, b"", b"k" * 200, *(b"key-%d" % number for number in range(20))))
            value = chance.choice((None, b"", b"v" * 63, b"v" * 64, b"v" * 20_000, b"%d" % offset))
            headers = chance.choice(((), (), (("h", b"x"),)))
            records.append(Record(offset, 1_700_000_000_000 + chance.choice((0, 0, 7, -5)), key, value, headers))
            offset += 1
        batches.append(
            build_batch(
                records,
                base_offset=base_offset,
                compression=chance.choice((Compression.NONE, Compression.NONE, *Compression)),
                log_append_time_ms=chance.choice((None, None, 1_700_000_000_000)),
            )
        )
        if chance.random() < 0.1:
            batches.append(build_batch([], base_offset=offset, last_offset_delta=0))
            offset += 1
        if chance.random() < 0.1:
            batches.append(build_control_batch([(ControlType.COMMIT, b"\0\0\0\0\0\0")], timestamp_ms=1))
    return b"".join(batches)


@pytest.mark.proves("C3", part="committed offsets survive a crash")
@pytest.mark.parametrize("seed", range(60))
def test_bulk_collection_agrees_with_reading_record_by_record(seed: int) -> None:
    log = _random_log(random.Random(seed))
    assert _gathered(log) == _read_one_by_one(log)


def test_offset_behind_the_last_batch_is_reported() -> None:
    log = b"".join(build_batch([Record(offset, 1, b"k", b"v")], base_offset=offset) for offset in (5, 9))
    assert NewestValues("log").add(log, 0, 1) == (len(log) // 2, 6)
    assert NewestValues("log").add(log, 0, 9) == (len(log), 10)


@pytest.mark.parametrize("position", [8, 16, 17, 25, 61, 66, 70])
def test_corrupt_batch_is_detected(position: int) -> None:
    log = bytearray(build_batch([Record(0, 1, b"key", b"value")], base_offset=0))
    log[position] ^= 0x40
    with pytest.raises(CorruptMessage):
        _gathered(bytes(log))


def test_incomplete_batch_is_detected() -> None:
    log = bytes(build_batch([Record(0, 1, b"key", b"value")], base_offset=0))
    for length in (1, 40, 61, len(log) - 1):
        with pytest.raises(CorruptMessage):
            _gathered(log[:length])
