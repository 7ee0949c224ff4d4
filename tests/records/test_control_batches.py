"""Control batches: keys, flags, parsing."""

import pytest

from moldau.model.errors import CorruptMessage, InvalidRecord
from moldau.records.control import (
    ControlType,
    build_control_batch,
    build_transaction_marker,
    encode_control_key,
    iterate_control_records,
    read_control_type,
    read_coordinator_epoch,
)
from moldau.records.header import read_header
from moldau.records.validation import validate_produced

KNOWN = [kind for kind in ControlType if kind is not ControlType.UNKNOWN]


@pytest.mark.parametrize("kind", KNOWN)
def test_control_key_is_a_version_and_a_type(kind: ControlType) -> None:
    assert encode_control_key(kind) == bytes((0, 0, 0, kind))
    assert read_control_type(encode_control_key(kind)) is kind


def test_newer_control_type_or_version_is_accepted() -> None:
    assert read_control_type(b"\x00\x00\x00\x63") is ControlType.UNKNOWN
    assert read_control_type(b"\x00\x01\x00\x02more") is ControlType.LEADER_CHANGE


@pytest.mark.parametrize("key", [None, b"", b"\x00\x00\x00", b"\xff\xff\x00\x00"])
def test_missing_control_key_is_corrupt(key: bytes | None) -> None:
    with pytest.raises(CorruptMessage):
        read_control_type(key)


def test_several_control_records_share_a_batch() -> None:
    controls = [(ControlType.SNAPSHOT_HEADER, b"one"), (ControlType.KRAFT_VERSION, b"two")]
    batch = build_control_batch(controls, timestamp_ms=123, base_offset=7, leader_epoch=4)
    header = read_header(batch)
    assert header.is_control
    assert not header.is_transactional
    assert not header.has_producer_id
    assert (header.base_offset, header.partition_leader_epoch, header.records_count) == (7, 4, 2)
    read = list(iterate_control_records(batch))
    assert [(kind, record.value) for kind, record in read] == controls
    assert [record.timestamp for _, record in read] == [123, 123]


@pytest.mark.parametrize("is_commit", [True, False])
def test_transaction_marker_names_producer_and_coordinator(is_commit: bool) -> None:
    marker = build_transaction_marker(
        is_commit=is_commit, producer_id=5, producer_epoch=2, coordinator_epoch=31, timestamp_ms=9, base_offset=70
    )
    header = read_header(marker)
    assert header.attributes == 0x30
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 2, -1)
    ((kind, record),) = iterate_control_records(marker)
    assert kind is (ControlType.COMMIT if is_commit else ControlType.ABORT)
    assert record.offset == 70
    assert record.value == bytes((0, 0, 0, 0, 0, 31))
    assert read_coordinator_epoch(record.value) == 31


@pytest.mark.parametrize("value", [None, b"", b"\x00\x00\x00\x00\x00"])
def test_marker_without_an_epoch_is_corrupt(value: bytes | None) -> None:
    with pytest.raises(CorruptMessage):
        read_coordinator_epoch(value)


def test_producer_cannot_send_a_marker() -> None:
    marker = build_transaction_marker(
        is_commit=True, producer_id=5, producer_epoch=2, coordinator_epoch=31, timestamp_ms=9
    )
    with pytest.raises(InvalidRecord, match="control"):
        validate_produced(memoryview(marker))
