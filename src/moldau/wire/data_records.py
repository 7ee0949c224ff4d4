"""Records that nodes write for themselves: the metadata log's in their frame, and the bodies of control records."""

from typing import Any, Final

from moldau.wire import messages
from moldau.wire.catalogue import ENTRIES
from moldau.wire.codec import data_decoder, data_encoder
from moldau.wire.primitives import DECODE_FAILURES, Malformed, read_uvarint, uvarint

FRAME_VERSION: Final = 1

METADATA_RECORDS: Final = {each.key: each for each in ENTRIES.values() if each.table == "metadata_records"}


def encode_metadata_record(message: Any, version: int) -> bytes:
    """A record of the metadata log: frame version, type, version, body."""
    frame = uvarint(FRAME_VERSION) + uvarint(message.API_KEY) + uvarint(version)
    return frame + encode_data(message, version)


def decode_metadata_record(value: bytes | memoryview) -> Any:
    """The message in a record's value."""
    return decode_metadata_record_and_version(value)[0]


def decode_metadata_record_and_version(value: bytes | memoryview) -> tuple[Any, int]:
    """The message in a record's value, and the version it was written in."""
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
        raise Malformed(f"metadata record: no type {kind} of version {version}")
    message, end = data_decoder(entry.name, version)(view, position)
    if end != len(view):
        raise Malformed(f"{entry.name} version {version}: {len(view) - end} bytes left over")
    return message, version


def encode_data(message: Any, version: int) -> bytes:
    """The body of a data message, without any frame."""
    out: list[Any] = []
    data_encoder(type(message).__name__, version)(message, out)
    return b"".join(out)


def decode_data(name: str, version: int, body: bytes | memoryview) -> Any:
    """The data message called `name` in `body`, all of it."""
    view = memoryview(body)
    message, end = data_decoder(name, version)(view, 0)
    if end != len(view):
        raise Malformed(f"{name} version {version}: {len(view) - end} bytes left over")
    return message


def is_metadata_record(message: object) -> bool:
    """Whether this is a message that the metadata log may hold."""
    entry = ENTRIES.get(type(message).__name__)
    return isinstance(message, messages.Message) and entry is not None and entry.table == "metadata_records"
