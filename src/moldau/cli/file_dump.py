"""Entries of the files beside segments: indexes, snapshots, checkpoints, properties."""

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct
from typing import Any, Final

from moldau.storage import producer_snapshots, transaction_index
from moldau.storage.checkpoints import CorruptCheckpoint, decode_lines

Entry = dict[str, Any]

_OFFSET_ENTRY: Final = Struct(">ii")
_TIME_ENTRY: Final = Struct(">qi")


def offset_index_entries(data: bytes, base_offset: int) -> Iterator[Entry]:
    """Yield entries up to the zeros that Kafka preallocates at the end of an active index."""
    last = -1
    for relative, position in _whole(_OFFSET_ENTRY, data):
        if last >= 0 and relative == position == 0:
            return
        is_valid = relative > last
        yield {"type": "index", "offset": base_offset + relative, "position": position, "is_valid": is_valid}
        last = relative
    yield from _rest(_OFFSET_ENTRY, data)


def time_index_entries(data: bytes, base_offset: int) -> Iterator[Entry]:
    last = None
    for timestamp, relative in _whole(_TIME_ENTRY, data):
        if timestamp == relative == 0 and last is not None:
            return
        is_valid = last is None or timestamp > last
        yield {"type": "timeindex", "timestamp": timestamp, "offset": base_offset + relative, "is_valid": is_valid}
        last = timestamp
    yield from _rest(_TIME_ENTRY, data)


def transaction_index_entries(data: bytes, base_offset: int) -> Iterator[Entry]:
    for entry in transaction_index.decode(data, base_offset):
        yield {"type": "aborted_transaction", **entry._asdict()}


def snapshot_entries(data: bytes, _: int) -> Iterator[Entry]:
    for producer_id, producer in producer_snapshots.decode(data):
        last = producer.batches[-1] if producer.batches else None
        yield {
            "type": "producer",
            "producer_id": producer_id,
            "epoch": producer.epoch,
            "first_sequence": None if last is None else last.first_sequence,
            "last_sequence": None if last is None else last.last_sequence,
            "base_offset": None if last is None else last.base_offset,
            "last_offset": None if last is None else last.last_offset,
            "last_timestamp": producer.last_timestamp,
            "coordinator_epoch": producer.coordinator_epoch,
            "transaction_start": None if producer.transaction_start < 0 else producer.transaction_start,
        }


def leader_epoch_entries(data: bytes, _: int) -> Iterator[Entry]:
    for parts in decode_lines(data):
        epoch, start_offset = _numbers(parts, 2)
        yield {"type": "leader_epoch", "epoch": epoch, "start_offset": start_offset}


def offset_checkpoint_entries(data: bytes, _: int) -> Iterator[Entry]:
    for topic, *numbers in decode_lines(data):
        partition, offset = _numbers(numbers, 2)
        yield {"type": "checkpoint", "topic": topic, "partition": partition, "offset": offset}


def property_entries(data: bytes, _: int) -> Iterator[Entry]:
    for line in data.decode(errors="replace").splitlines():
        if line.strip() and line[0] not in "#!":
            name, _sign, value = line.partition("=") if "=" in line else line.partition(":")
            yield {"type": "property", "name": name.strip(), "value": value.strip()}


def json_entries(data: bytes, _: int) -> Iterator[Entry]:
    text = data.decode(errors="replace").strip()
    if text:
        for name, value in json.loads(text).items():
            yield {"type": "property", "name": name, "value": value}


FILES: Final[dict[str, Callable[[bytes, int], Iterator[Entry]]]] = {
    ".index": offset_index_entries,
    ".timeindex": time_index_entries,
    ".txnindex": transaction_index_entries,
    ".snapshot": snapshot_entries,
    "leader-epoch-checkpoint": leader_epoch_entries,
    "recovery-point-offset-checkpoint": offset_checkpoint_entries,
    "log-start-offset-checkpoint": offset_checkpoint_entries,
    "replication-offset-checkpoint": offset_checkpoint_entries,
    "cleaner-offset-checkpoint": offset_checkpoint_entries,
    "partition.metadata": property_entries,
    "meta.properties": property_entries,
    "quorum-state": json_entries,
    ".kafka_cleanshutdown": json_entries,
}

BROKEN: Final = (ValueError, struct.error, CorruptCheckpoint)


def kind_of(path: Path) -> str | None:
    """Return the key in `FILES` for a file, `segment`, or None for an unknown file."""
    if path.suffix in (".log", ".checkpoint"):
        return "segment"
    if path.name in FILES:
        return path.name
    return path.suffix if path.suffix in FILES else None


def _whole(layout: Struct, data: bytes) -> Iterator[tuple[Any, ...]]:
    return layout.iter_unpack(data[: len(data) - len(data) % layout.size])


def _rest(layout: Struct, data: bytes) -> Iterator[Entry]:
    if len(data) % layout.size:
        yield {"type": "torn", "size_bytes": len(data) % layout.size, "is_valid": False, "why": "an entry is cut off"}


def _numbers(parts: list[str], count: int) -> list[int]:
    if len(parts) != count:
        raise CorruptCheckpoint(f"not an entry: {' '.join(parts)}")
    return [int(part) for part in parts]
