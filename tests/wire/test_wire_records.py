"""Internal records of nodes, against published bytes."""

from typing import Any

import pytest

from moldau.wire import messages
from moldau.wire.codec import Malformed
from moldau.wire.data_records import (
    METADATA_RECORDS,
    decode_data,
    decode_group_record,
    decode_metadata_record,
    decode_metadata_record_and_version,
    decode_share_state_record,
    decode_transaction_record,
    decode_versioned,
    encode_coordinator_key,
    encode_data,
    encode_metadata_record,
    encode_versioned,
)

TOPIC_ID = bytes.fromhex("00000000000040008000000000000091")
DIRECTORY_ID = bytes.fromhex("10000000000040008000000000000001")

# From a published dump of a metadata log, and from the tests of a program that writes logs in Kafka's format.
PUBLISHED: list[tuple[str, int, Any]] = [
    (
        "010c00116d657461646174612e76657273696f6e001400",
        0,
        messages.FeatureLevelRecord(name="metadata.version", feature_level=20),
    ),
    ("0102000473617a0000000000004000800000000000009100", 0, messages.TopicRecord(name="saz", topic_id=TOPIC_ID)),
    (
        "01030100000000000000000000400080000000000000910200000001020000000101010000000100000000"
        "00000000021000000000004000800000000000000100",
        1,
        messages.PartitionRecord(
            partition_id=0,
            topic_id=TOPIC_ID,
            replicas=[1],
            isr=[1],
            leader=1,
            leader_epoch=0,
            partition_epoch=0,
            directories=[DIRECTORY_ID],
        ),
    ),
    ("0115000000", 0, messages.ZkMigrationStateRecord(zk_migration_state=0)),
    (
        "01170001001212426f6f747374726170207265636f726473",
        0,
        messages.BeginTransactionRecord(name="Bootstrap records"),
    ),
    ("01180000", 0, messages.EndTransactionRecord()),
]


@pytest.mark.parametrize(
    ("written", "version", "message"), PUBLISHED, ids=[type(each[2]).__name__ for each in PUBLISHED]
)
def test_metadata_record_has_its_published_bytes(written: str, version: int, message: Any) -> None:
    assert encode_metadata_record(message, version).hex() == written
    assert decode_metadata_record_and_version(bytes.fromhex(written)) == (message, version)


def test_every_metadata_record_type_of_kafka_4_is_known() -> None:
    assert sorted(METADATA_RECORDS) == [*range(6), *range(7, 13), 14, 15, *range(17, 29)]
    for number, entry in METADATA_RECORDS.items():
        assert number == getattr(messages, entry.name).API_KEY
        assert entry.flexible.first == 0


def test_partition_change_contains_only_changed_fields() -> None:
    change = messages.PartitionChangeRecord(partition_id=1, topic_id=TOPIC_ID, isr=[1, 2], leader=1)
    tags = b"\2" + b"\0\x09\3\0\0\0\1\0\0\0\2" + b"\1\4\0\0\0\1"
    assert encode_metadata_record(change, 0) == b"\1\5\0" + b"\0\0\0\1" + TOPIC_ID + tags
    nothing = messages.PartitionChangeRecord(partition_id=1, topic_id=TOPIC_ID)
    assert encode_metadata_record(nothing, 2) == b"\1\5\2" + b"\0\0\0\1" + TOPIC_ID + b"\0"
    again = decode_metadata_record(encode_metadata_record(nothing, 2))
    assert (again.isr, again.leader, again.leader_recovery_state) == (None, -2, -1)


def test_emptied_isr_differs_from_an_unchanged_one() -> None:
    emptied = messages.PartitionChangeRecord(partition_id=1, topic_id=TOPIC_ID, isr=[])
    again = decode_metadata_record(encode_metadata_record(emptied, 0))
    assert again.isr is not None
    assert len(again.isr) == 0


@pytest.mark.parametrize(
    "value",
    [b"", b"\1", b"\1\2", b"\2\2\0\1" + bytes(17), b"\1\6\0\0", b"\1\x7f\0\0", b"\1\2\1\1", b"\1\2\0\1" + bytes(18)],
    ids=[
        "empty",
        "no type",
        "no version",
        "frame",
        "retired type",
        "unknown type",
        "unknown version",
        "trailing bytes",
    ],
)
def test_invalid_metadata_record_is_malformed(value: bytes) -> None:
    with pytest.raises(Malformed):
        decode_metadata_record(value)


def test_committed_offset_has_kafkas_layout() -> None:
    key = messages.OffsetCommitKey(group="g", topic="t", partition=3)
    value = messages.OffsetCommitValue(offset=42, leader_epoch=7, metadata="m", commit_timestamp=1000)
    key_bytes, value_bytes = encode_coordinator_key(key), encode_versioned(value, 3)
    assert key_bytes == b"\0\1" + b"\0\1g" + b"\0\1t" + b"\0\0\0\3"
    assert value_bytes == b"\0\3" + bytes(7) + b"\x2a" + b"\0\0\0\7" + b"\0\1m" + bytes(6) + b"\x03\xe8"
    assert decode_group_record(key_bytes, value_bytes) == (key, value)
    assert decode_group_record(key_bytes, None) == (key, None)


def test_version_0_offset_key_is_read() -> None:
    key, value = decode_group_record(
        b"\0\0" + b"\0\1g" + b"\0\1t" + b"\0\0\0\3", b"\0\0" + bytes(8) + b"\0\0" + bytes(8)
    )
    assert key == messages.LegacyOffsetCommitKey(group="g", topic="t", partition=3)
    assert value == messages.OffsetCommitValue()


def test_nullable_struct_in_a_tag_is_preceded_by_one() -> None:
    metadata = messages.ConsumerGroupMemberMetadataValue.ClassicMemberMetadata(session_timeout_ms=9)
    member = messages.ConsumerGroupMemberMetadataValue(classic_member_metadata=metadata)
    body = encode_data(member, 0)
    assert body.endswith(b"\1\0\7" + b"\1" + b"\0\0\0\x09" + b"\1" + b"\0")
    assert decode_data("ConsumerGroupMemberMetadataValue", 0, body) == member
    left_out = encode_data(messages.ConsumerGroupMemberMetadataValue(), 0)
    assert left_out.endswith(b"\0")
    said_null = left_out[:-1] + b"\1\0\1\0"
    assert decode_data("ConsumerGroupMemberMetadataValue", 0, said_null).classic_member_metadata is None


def test_transaction_record_is_read_with_its_key() -> None:
    key = messages.TransactionLogKey(transactional_id="tx")
    partitions = messages.TransactionLogValue.PartitionsSchema(topic="t", partition_ids=[1, 2])
    value = messages.TransactionLogValue(producer_id=5, next_producer_id=6, transaction_partitions=[partitions])
    record = (encode_coordinator_key(key), encode_versioned(value, 1))
    assert record[0] == b"\0\0\0\2tx"
    assert decode_transaction_record(*record) == (key, value)


def test_share_group_records_have_kafkas_types() -> None:
    names = {
        10: "ShareGroupMemberMetadata",
        11: "ShareGroupMetadata",
        12: "ShareGroupTargetAssignmentMetadata",
        13: "ShareGroupTargetAssignmentMember",
        14: "ShareGroupCurrentMemberAssignment",
        15: "ShareGroupStatePartitionMetadata",
    }
    for number, name in names.items():
        key, value = getattr(messages, f"{name}Key"), getattr(messages, f"{name}Value")
        encoded = encode_coordinator_key(key(group_id="g"))
        assert encoded[:2] == number.to_bytes(2, "big")
        assert decode_group_record(encoded, encode_versioned(value(), 0)) == (key(group_id="g"), value())


def test_share_state_update_has_kafkas_layout() -> None:
    key = messages.ShareUpdateKey(group_id="g", topic_id=TOPIC_ID, partition=3)
    batch = messages.ShareUpdateValue.StateBatch(first_offset=4, last_offset=5, delivery_state=2, delivery_count=1)
    value = messages.ShareUpdateValue(
        snapshot_epoch=1, leader_epoch=2, start_offset=4, delivery_complete_count=2, state_batches=[batch]
    )
    record = encode_coordinator_key(key), encode_versioned(value, 0)
    assert record[0] == b"\0\1" + b"\0\1g" + TOPIC_ID + b"\0\0\0\3"
    plain = b"\0\0\0\1" + b"\0\0\0\2" + bytes(7) + b"\4"
    encoded_batch = bytes(7) + b"\4" + bytes(7) + b"\5" + b"\2" + b"\0\1" + b"\0"
    assert record[1] == b"\0\0" + plain + b"\2" + encoded_batch + b"\1\0\4\0\0\0\2"
    assert decode_share_state_record(*record) == (key, value)


@pytest.mark.parametrize(
    ("key", "value"), [(b"", None), (b"\0", None), (b"\0\x63\0\1g", None), (b"\0\2\0\1g", b"\0\x09")]
)
def test_invalid_coordinator_record_is_malformed(key: bytes, value: bytes | None) -> None:
    with pytest.raises(Malformed):
        decode_group_record(key, value)


def test_transaction_marker_is_a_version_and_a_coordinator_epoch() -> None:
    assert encode_versioned(messages.EndTxnMarker(coordinator_epoch=3), 0) == b"\0\0\0\0\0\3"
    assert decode_versioned("EndTxnMarker", b"\0\0\0\0\0\3").coordinator_epoch == 3


def test_leader_change_contains_leader_and_voters() -> None:
    voter = messages.LeaderChangeMessage.Voter
    message = messages.LeaderChangeMessage(leader_id=1, voters=[voter(voter_id=1)], granting_voters=[voter(voter_id=1)])
    assert encode_data(message, 0) == b"\0\0" + b"\0\0\0\1" + b"\2\0\0\0\1\0" + b"\2\0\0\0\1\0" + b"\0"
    assert decode_data("LeaderChangeMessage", 0, encode_data(message, 0)) == message


def test_voters_record_contains_controller_endpoints() -> None:
    record = messages.VotersRecord
    voter = record.Voter(
        voter_id=3,
        voter_directory_id=DIRECTORY_ID,
        endpoints=[record.Endpoint(name="CONTROLLER", host="a", port=65535)],
        k_raft_version_feature=record.KRaftVersionFeature(max_supported_version=1),
    )
    body = encode_data(record(voters=[voter]), 0)
    endpoint = b"\x0bCONTROLLER" + b"\2a" + b"\xff\xff" + b"\0"
    assert body == b"\0\0" + b"\2" + b"\0\0\0\3" + DIRECTORY_ID + b"\2" + endpoint + b"\0\0\0\1\0" + b"\0" + b"\0"
    assert decode_data("VotersRecord", 0, body) == record(voters=[voter])
