"""Batches of metadata records. The quorum's own control records are in `quorum_records`."""

from collections.abc import Iterator, Sequence

from moldau.machines.metadata.records import EpochBegan, Record, record_version
from moldau.model.errors import CorruptMessage
from moldau.model.ids import NO_EPOCH
from moldau.records.builder import build_batch
from moldau.records.control import ControlType, iterate_control_records
from moldau.records.header import BatchHeader, Buffer, checksum
from moldau.records.record import iterate_batches, iterate_records
from moldau.wire.data_records import decode_metadata_record, encode_metadata_record


def build_records(
    records: Sequence[Record], *, timestamp_ms: int, base_offset: int = 0, leader_epoch: int = NO_EPOCH
) -> bytearray:
    """Build one batch: after a crash it is there completely or not at all."""
    return build_batch(
        [(timestamp_ms, None, encode_metadata_record(each, record_version(each)), ()) for each in records],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
    )


def read_records(batches: Buffer) -> Iterator[tuple[int, Record]]:
    """Yield every record with its offset, and each start of an epoch; other control records are left to the quorum."""
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
        raise CorruptMessage(f"batch at offset {header.base_offset}: checksum mismatch")
