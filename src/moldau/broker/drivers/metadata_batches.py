"""The metadata log's bytes: records in batches, and the control records that a quorum writes between them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from moldau.machines.metadata.records import EpochBegan, Record, record_version
from moldau.model.errors import CorruptMessage
from moldau.model.ids import NO_EPOCH, Address
from moldau.records.builder import build_batch
from moldau.records.control import ControlType, iterate_control_records
from moldau.records.header import BatchHeader, Buffer, checksum
from moldau.records.record import iterate_batches, iterate_records
from moldau.wire import messages
from moldau.wire.data_records import decode_metadata_record, encode_data, encode_metadata_record

KRAFT_VERSION: Final = 1
_CONTROL_VERSION: Final = 0  # of every control record's body

Control = tuple[ControlType, bytes]


@dataclass(frozen=True, slots=True)
class Voter:
    """A member of the quorum. A wiped disk has another directory id, and is another voter."""

    voter_id: int
    directory_id: bytes
    endpoints: tuple[tuple[str, Address], ...] = ()  # (listener, where it is reached)


def build_records(
    records: Sequence[Record], *, timestamp_ms: int, base_offset: int = 0, leader_epoch: int = NO_EPOCH
) -> bytearray:
    """One batch: it is found whole after a crash, or not at all."""
    return build_batch(
        [(timestamp_ms, None, encode_metadata_record(each, record_version(each)), ()) for each in records],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
    )


def read_records(batches: Buffer) -> Iterator[tuple[int, Record]]:
    """Every record with its offset, and the beginning of each epoch; other control records are the quorum's affair."""
    for header, batch in iterate_batches(batches):
        check_batch(header, batch)
        if header.is_control:
            for kind, control in iterate_control_records(batch):
                if kind is ControlType.LEADER_CHANGE:
                    yield control.offset, EpochBegan(header.partition_leader_epoch)
        else:
            for record in iterate_records(batch):
                yield record.offset, decode_metadata_record(record.value or b"")


def check_batch(header: BatchHeader, batch: memoryview) -> None:
    if checksum(batch, 0, len(batch)) != header.crc:
        raise CorruptMessage(f"the batch at offset {header.base_offset} has a checksum that does not fit")


def leader_change(leader_id: int, voters: Sequence[Voter]) -> Control:
    """Whose epoch begins, and who elected it."""
    named = [messages.LeaderChangeMessage.Voter(voter_id=each.voter_id) for each in voters]
    body = messages.LeaderChangeMessage(leader_id=leader_id, voters=named, granting_voters=named)
    return ControlType.LEADER_CHANGE, encode_data(body, _CONTROL_VERSION)


def kraft_version() -> Control:
    body = messages.KRaftVersionRecord(k_raft_version=KRAFT_VERSION)
    return ControlType.KRAFT_VERSION, encode_data(body, _CONTROL_VERSION)


def voter_set(voters: Sequence[Voter]) -> Control:
    body = messages.VotersRecord(
        voters=[
            messages.VotersRecord.Voter(
                voter_id=each.voter_id,
                voter_directory_id=each.directory_id,
                endpoints=[
                    messages.VotersRecord.Endpoint(name=name, host=address.host, port=address.port)
                    for name, address in each.endpoints
                ],
                k_raft_version_feature=messages.VotersRecord.KRaftVersionFeature(
                    min_supported_version=0, max_supported_version=KRAFT_VERSION
                ),
            )
            for each in voters
        ]
    )
    return ControlType.KRAFT_VOTERS, encode_data(body, _CONTROL_VERSION)


def snapshot_header(last_timestamp_ms: int) -> Control:
    body = messages.SnapshotHeaderRecord(last_contained_log_timestamp=last_timestamp_ms)
    return ControlType.SNAPSHOT_HEADER, encode_data(body, _CONTROL_VERSION)


def snapshot_footer() -> Control:
    return ControlType.SNAPSHOT_FOOTER, encode_data(messages.SnapshotFooterRecord(), _CONTROL_VERSION)
