"""Entries of segments: batches, records, control records, and the records of internal topics."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from moldau.cli.record_format import to_json
from moldau.model.errors import KafkaError
from moldau.records.compression import Compression
from moldau.records.control import ControlType, read_control_type
from moldau.records.header import (
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    BatchHeader,
    checksum,
    read_extent,
    read_header,
)
from moldau.records.record import Record, iterate_records
from moldau.storage.log_dir import encode_id
from moldau.wire.data_records import (
    decode_data,
    decode_group_record,
    decode_metadata_record_and_version,
    decode_transaction_record,
    decode_versioned,
)
from moldau.wire.messages import Message
from moldau.wire.primitives import Malformed

Entry = dict[str, Any]
Decoder = Callable[[Record], Entry]

_CONTROL_BODIES: Final = {
    ControlType.LEADER_CHANGE: "LeaderChangeMessage",
    ControlType.SNAPSHOT_HEADER: "SnapshotHeaderRecord",
    ControlType.SNAPSHOT_FOOTER: "SnapshotFooterRecord",
    ControlType.KRAFT_VERSION: "KRaftVersionRecord",
    ControlType.KRAFT_VOTERS: "VotersRecord",
}


def segment_entries(data: memoryview, *, with_records: bool, decoder: Decoder) -> Iterator[Entry]:
    """Yield every batch in order, followed by its records if wanted, up to the first torn one."""
    position = 0
    while position < len(data):
        left = len(data) - position
        if left < LOG_OVERHEAD:
            yield _torn(position, left, "too short for a batch")
            return
        base_offset, size = read_extent(data, position)
        if base_offset == 0 and size == LOG_OVERHEAD and not any(data[position:]):
            return  # preallocated space
        if not LOG_OVERHEAD < size <= left:
            yield _torn(position, left, f"a batch of {size} bytes does not fit")
            return
        if size > MAGIC_POSITION and data[position + MAGIC_POSITION] != MAGIC:
            magic = data[position + MAGIC_POSITION]
            yield {
                "type": "message_set",
                "position": position,
                "offset": base_offset,
                "size_bytes": size,
                "magic": magic,
            }
        elif size < HEADER_BYTES:
            yield _torn(position, left, f"a batch of {size} bytes is shorter than its header")
            return
        else:
            yield from _batch_entries(data[position : position + size], position, with_records, decoder)
        position += size


def _torn(position: int, size: int, why: str) -> Entry:
    return {"type": "torn", "position": position, "size_bytes": size, "is_valid": False, "why": why}


def _batch_entries(batch: memoryview, position: int, with_records: bool, decoder: Decoder) -> Iterator[Entry]:
    header = read_header(batch)
    is_valid = checksum(batch, 0, len(batch)) == header.crc
    yield _batch_entry(header, position, is_valid)
    if not with_records or not is_valid:
        return
    try:
        for record in iterate_records(batch):
            yield _control_entry(record) if header.is_control else decoder(record)
    except KafkaError as error:
        yield {"type": "broken_records", "is_valid": False, "why": error.message}


def _batch_entry(header: BatchHeader, position: int, is_valid: bool) -> Entry:
    codec = header.compression
    return {
        "type": "batch",
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.records_count,
        "position": position,
        "size_bytes": header.size_bytes,
        "leader_epoch": header.partition_leader_epoch,
        "compression": Compression(codec).name.lower() if codec in list(Compression) else str(codec),
        "timestamp_type": "log_append_time" if header.has_log_append_time else "create_time",
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "delete_horizon_ms": header.delete_horizon_ms,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "last_sequence": header.last_sequence,
        "is_transactional": header.is_transactional,
        "is_control": header.is_control,
        "crc": header.crc,
        "is_valid": is_valid,
    }


def plain_record(record: Record) -> Entry:
    fields = to_json("", 0, record)
    del fields["topic"], fields["partition"]
    return {"type": "record", **fields}


def metadata_record(record: Record) -> Entry:
    """A record of `__cluster_metadata`."""

    def decode() -> Entry:
        message, version = decode_metadata_record_and_version(record.value or b"")
        return {"record": type(message).__name__, "version": version, "data": plain(message)}

    return _decoded(record, decode)


def group_record(record: Record) -> Entry:
    """A record of `__consumer_offsets`."""
    return _decoded(record, lambda: _keyed(*decode_group_record(record.key or b"", record.value)))


def transaction_record(record: Record) -> Entry:
    """A record of `__transaction_state`."""
    return _decoded(record, lambda: _keyed(*decode_transaction_record(record.key or b"", record.value)))


def _keyed(key: Message, value: Message | None) -> Entry:
    name = type(key).__name__.removesuffix("Key")
    return {"record": name, "key": plain(key), "data": None if value is None else plain(value)}


def _decoded(record: Record, decode: Callable[[], Entry]) -> Entry:
    try:
        fields = decode()
    except Malformed as error:
        return {**plain_record(record), "is_valid": False, "why": str(error)}
    return {"type": "record", "offset": record.offset, "timestamp": record.timestamp, **fields}


def _control_entry(record: Record) -> Entry:
    kind = read_control_type(record.key)
    entry = {"type": "control", "offset": record.offset, "timestamp": record.timestamp, "control": kind.name.lower()}
    value = record.value or b""
    try:
        if kind in (ControlType.ABORT, ControlType.COMMIT):
            entry["data"] = plain(decode_versioned("EndTxnMarker", value))
        elif kind in _CONTROL_BODIES:
            # The body starts with its version, which is also the version of its encoding.
            version = int.from_bytes(value[:2], "big")
            entry["data"] = plain(decode_data(_CONTROL_BODIES[kind], version, value))
    except (Malformed, KafkaError) as error:
        entry |= {"is_valid": False, "why": str(error)}
    return entry


def plain(value: Any) -> Any:
    """Return the JSON form of a message: ids as Kafka prints them, other bytes in hexadecimal."""
    if isinstance(value, Message):
        names: tuple[str, ...] = type(value).__dict__["__slots__"]
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return encode_id(bytes(value)) if len(value) == 16 else bytes(value).hex()
    return value
