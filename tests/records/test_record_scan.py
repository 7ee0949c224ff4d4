"""The quick scan of records agrees with the check that parses them one by one."""

import random

import pytest

from moldau.model.errors import CorruptMessage, KafkaError
from moldau.model.ids import NO_TIMESTAMP
from moldau.records.builder import build_batch
from moldau.records.header import read_header, write_checksum
from moldau.records.record import Headers, iterate_records, records_body
from moldau.records.record_scan import scan_records
from moldau.records.validation import RecordCheck, RecordRules, check_records

pytestmark = pytest.mark.proves("P1")

NOW_MS = 1_700_000_000_000
BOUNDS = (NOW_MS - 5_000, NOW_MS + 5_000)
RULES = [RecordRules(), RecordRules(True), RecordRules(False, BOUNDS), RecordRules(True, BOUNDS)]


def scan(batch: bytes | bytearray, rules: RecordRules = RecordRules()) -> int | None:  # noqa: B008 - immutable
    header = read_header(batch)
    return scan_records(records_body(batch, header), header, *rules)


def checked(batch: bytearray, rules: RecordRules) -> int | None:
    """The max timestamp according to the records themselves; None if one is invalid."""
    check = RecordCheck(rules)
    try:
        for record in iterate_records(batch):
            check.add(record)
        check.finish()
    except KafkaError:
        return None
    return check.max_timestamp


def random_batch(seed: random.Random) -> bytearray:
    def text(longest: int) -> bytes | None:
        return None if seed.random() < 0.2 else seed.randbytes(seed.randrange(longest))

    def headers() -> Headers:
        return tuple((f"h{index}", text(90)) for index in range(seed.choice([0, 0, 0, 1, 3])))

    spread_ms = seed.choice([1, 60, 4_000, 7_000])
    longest = seed.choice([3, 90, 300])
    return build_batch(
        [
            (NOW_MS + seed.randrange(-spread_ms, spread_ms), text(longest), text(longest), headers())
            for _ in range(seed.choice([1, 2, 70, 150]))
        ]
    )


def test_scan_accepts_only_what_the_check_accepts() -> None:
    seed = random.Random(7)
    accepted = 0
    for _ in range(400):
        batch = random_batch(seed)
        for _ in range(seed.choice([0, 0, 1, 3])):
            batch[seed.randrange(61, len(batch))] = seed.randrange(256)
        for rules in RULES:
            found = scan(batch, rules)
            assert found is None or found == checked(batch, rules), (batch.hex(), rules)
            accepted += found is not None
    assert accepted > 300


def test_ordinary_records_need_no_parser() -> None:
    records = [(NOW_MS + index, b"key", b"x" * 100, (("trace", b"1"),)) for index in range(600)]
    assert scan(build_batch(records), RecordRules(True, BOUNDS)) == NOW_MS + 599
    assert scan(build_batch([(NOW_MS - 1, None, None, ()), (NOW_MS - 2, None, b"", ())])) == NOW_MS - 1


@pytest.mark.parametrize(
    "records",
    [
        [(NOW_MS, None, b"x" * 9_000, ())],  # a length of three bytes
        [(NOW_MS, None, b"", ()), (NOW_MS + 9_000, None, b"", ())],
    ],
)
def test_long_varints_are_left_to_the_check(records: list[tuple[int, None, bytes, Headers]]) -> None:
    batch = build_batch(records)
    assert scan(batch) is None
    assert check_records(batch, RecordRules()) == records[-1][0]


def test_long_varints_that_look_like_short_ones_are_not_accepted() -> None:
    header = read_header(build_batch([(NOW_MS, None, b"", ())]))
    body = bytes.fromhex("8e80 00 00 00 01 8080") + bytes(8192) + b"\0"  # the length is 7: its third byte is 0
    assert scan_records(body, header, False, None) is None


def test_missing_timestamp_is_left_to_the_check() -> None:
    batch = build_batch([(NO_TIMESTAMP, None, b"", ())])
    assert scan(batch, RecordRules(False, BOUNDS)) is None
    assert check_records(batch, RecordRules(False, BOUNDS)) == NO_TIMESTAMP


def test_batch_of_another_magic_is_not_scanned() -> None:
    batch = build_batch([(NOW_MS, None, b"a", ())])
    batch[16] = 1
    write_checksum(batch, 0, len(batch))
    with pytest.raises((CorruptMessage, KafkaError)):
        check_records(batch, RecordRules())
