"""Internal records: metadata log, coordinator topics, control batches.

A metadata record is framed by varints (frame version, type, version). A coordinator record has its type before
the key and the version before the value, two bytes each; the value of a transaction marker likewise.
"""

from typing import Any, Final

from moldau.wire.catalogue import ENTRIES, Entry
from moldau.wire.codec import data_decoder, data_encoder
from moldau.wire.primitives import DECODE_FAILURES, Malformed, read_uvarint, uvarint

FRAME_VERSION: Final = 1
PREFIX_BYTES: Final = 2

METADATA_RECORDS: Final = {each.key: each for each in ENTRIES.values() if each.table == "metadata_records"}
_COORDINATOR_KEYS: Final = {
    (each.table, each.key): each
    for each in ENTRIES.values()
    if each.table in ("group_records", "share_state_records", "transaction_records") and each.name.endswith("Key")
}


def encode_data(message: Any, version: int) -> bytes:
    """Encode the body of a data message, without a frame."""
    out: list[Any] = []
    data_encoder(type(message).__name__, version)(message, out)
    return b"".join(out)


def decode_data(name: str, version: int, body: bytes | memoryview) -> Any:
    """Decode the data message `name` that fills `body`."""
    return _decode(name, version, memoryview(body), 0)


def encode_versioned(message: Any, version: int) -> bytes:
    """Encode a version and a body: the value of a coordinator record or of a transaction marker."""
    return version.to_bytes(PREFIX_BYTES, "big") + encode_data(message, version)


def decode_versioned(name: str, value: bytes | memoryview) -> Any:
    """Decode the data message `name` from a value that begins with its version."""
    view = memoryview(value)
    version = _read_prefix(view)
    if not ENTRIES[name].versions.has(version):
        raise Malformed(f"{name}: no version {version}")
    return _decode(name, version, view, PREFIX_BYTES)


def encode_metadata_record(message: Any, version: int) -> bytes:
    """Encode the value of a metadata record."""
    frame = uvarint(FRAME_VERSION) + uvarint(message.API_KEY) + uvarint(version)
    return frame + encode_data(message, version)


def decode_metadata_record(value: bytes | memoryview) -> Any:
    """Decode the value of a metadata record."""
    return decode_metadata_record_and_version(value)[0]


def decode_metadata_record_and_version(value: bytes | memoryview) -> tuple[Any, int]:
    """Decode the value of a metadata record; return the message and its version."""
    view = memoryview(value)
    try:
        frame_version, position = read_uvarint(view, 0)
        kind, position = read_uvarint(view, position)
        version, position = read_uvarint(view, position)
    except DECODE_FAILURES as error:
        raise Malformed(f"metadata record: {error}") from error
    entry = METADATA_RECORDS.get(kind)
    if frame_version != FRAME_VERSION:
        raise Malformed(f"metadata record: frame version {frame_version}")
    if entry is None or not entry.versions.has(version):
        raise Malformed(f"metadata record: type {kind} version {version} is unknown: it was written by newer software")
    return _decode(entry.name, version, view, position), version


def encode_coordinator_key(message: Any) -> bytes:
    """Encode the key of a coordinator record: the type, then the body."""
    kind: int = message.API_KEY
    return kind.to_bytes(PREFIX_BYTES, "big") + encode_data(message, 0)


def decode_group_record(key: bytes | memoryview, value: bytes | memoryview | None) -> tuple[Any, Any]:
    """Decode key and value of a __consumer_offsets record; a tombstone's value is None."""
    return _decode_coordinator_record("group_records", memoryview(key), value)


def decode_transaction_record(key: bytes | memoryview, value: bytes | memoryview | None) -> tuple[Any, Any]:
    """Decode key and value of a __transaction_state record; a tombstone's value is None."""
    return _decode_coordinator_record("transaction_records", memoryview(key), value)


def decode_share_state_record(key: bytes | memoryview, value: bytes | memoryview | None) -> tuple[Any, Any]:
    """Decode key and value of a __share_group_state record; a tombstone's value is None."""
    return _decode_coordinator_record("share_state_records", memoryview(key), value)


def _decode_coordinator_record(table: str, key: memoryview, value: bytes | memoryview | None) -> tuple[Any, Any]:
    kind = _read_prefix(key)
    entry: Entry | None = _COORDINATOR_KEYS.get((table, kind))
    if entry is None:
        raise Malformed(f"{table}: no type {kind}")
    key_message = _decode(entry.name, 0, key, PREFIX_BYTES)
    if value is None:
        return key_message, None
    return key_message, decode_versioned(entry.name.removeprefix("Legacy").removesuffix("Key") + "Value", value)


def _read_prefix(view: memoryview) -> int:
    if len(view) < PREFIX_BYTES:
        raise Malformed("shorter than its version")
    return int.from_bytes(view[:PREFIX_BYTES], "big", signed=True)


def _decode(name: str, version: int, view: memoryview, position: int) -> Any:
    message, end = data_decoder(name, version)(view, position)
    if end != len(view):
        raise Malformed(f"{name} version {version}: {len(view) - end} trailing bytes")
    return message
