"""Control batches: transaction markers and Raft control records."""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from struct import Struct
from typing import Final

from moldau.model.errors import CorruptMessage
from moldau.model.ids import NO_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from moldau.records.builder import build_batch
from moldau.records.header import Buffer
from moldau.records.record import Record, iterate_records

_KEY: Final = Struct(">hh")  # version, type
_KEY_VERSION: Final = 0
_END_TRANSACTION: Final = Struct(">hi")  # version, coordinator epoch
_END_TRANSACTION_VERSION: Final = 0


class ControlType(IntEnum):
    """The type of a control record, by the number in its key."""

    UNKNOWN = -1  # of a newer version: ignored, not rejected
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


_KNOWN: Final = {int(kind): kind for kind in ControlType}


def encode_control_key(kind: ControlType) -> bytes:
    return _KEY.pack(_KEY_VERSION, kind)


def read_control_type(key: bytes | None) -> ControlType:
    """Return the type in a control record's key; a newer version of the key may be longer."""
    if key is None or len(key) < _KEY.size:
        raise CorruptMessage(f"control record key must have {_KEY.size} bytes, not {key!r}")
    version, kind = _KEY.unpack_from(key)
    if version < 0:
        raise CorruptMessage(f"invalid version {version} of a control record key")
    return _KNOWN.get(kind, ControlType.UNKNOWN)


def build_control_batch(
    controls: Sequence[tuple[ControlType, bytes]],
    *,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = NO_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    is_transactional: bool = False,
) -> bytearray:
    """Build an uncompressed batch of control records, each a type and its encoded body."""
    return build_batch(
        [(timestamp_ms, encode_control_key(kind), value, ()) for kind, value in controls],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=is_transactional,
        is_control=True,
    )


def build_transaction_marker(
    *,
    is_commit: bool,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = NO_EPOCH,
) -> bytearray:
    """Build the marker that ends a producer's transaction on one partition."""
    kind = ControlType.COMMIT if is_commit else ControlType.ABORT
    return build_control_batch(
        [(kind, _END_TRANSACTION.pack(_END_TRANSACTION_VERSION, coordinator_epoch))],
        timestamp_ms=timestamp_ms,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
    )


def read_coordinator_epoch(value: bytes | None) -> int:
    """Return the coordinator epoch in the value of a transaction marker."""
    if value is None or len(value) < _END_TRANSACTION.size:
        raise CorruptMessage(f"transaction marker must have {_END_TRANSACTION.size} bytes, not {value!r}")
    _, coordinator_epoch = _END_TRANSACTION.unpack_from(value)
    return int(coordinator_epoch)


def iterate_control_records(batch: Buffer) -> Iterator[tuple[ControlType, Record]]:
    for record in iterate_records(batch):
        yield read_control_type(record.key), record
