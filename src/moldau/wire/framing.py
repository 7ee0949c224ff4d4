"""Request and response frames: the length prefix, the header, and the pieces that go to the network."""

from struct import Struct
from typing import Any, Final, NamedTuple

from moldau.model.ports import FileSlice, Piece
from moldau.wire.catalogue import APIS
from moldau.wire.codec import Encoder, request_encoder, response_encoder, response_header_version
from moldau.wire.primitives import DECODE_FAILURES, ENCODE_FAILURES, Malformed, Unencodable, skip_tags

LENGTH_BYTES: Final = 4
BODY_UNKNOWN: Final = -1  # where a body would begin that no schema describes

# Smaller pieces are copied together: one buffer is cheaper to send than two.
JOINED_BYTES_MAX: Final = 4096

_REQUEST_HEADER = Struct(">hhih")
_new = tuple.__new__  # without the detour through a named tuple's own constructor
_HAS_TAGS: Final = {
    (api.key, version): api.flexible.has(version)
    for api in APIS.values()
    for version in range(api.versions.first, api.versions.last + 1)
}
_RESPONSE_PREFIX = Struct(">ii")
_RESPONSE_PREFIX_WITH_TAGS = Struct(">iiB")

# By API and version: how a response is encoded, and how many bytes of tags its header has.
_response_ways: dict[tuple[int, int], tuple[Encoder, int]] = {}


class RequestHeader(NamedTuple):
    """What every request begins with."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None = None


def parse_request_header(frame: memoryview) -> tuple[RequestHeader, int]:
    """The header and the position of the body, `BODY_UNKNOWN` if we have no schema for this API and version.

    The first four fields stand in the same place whatever the header's version, so even an ApiVersions request of a
    version that is still to be invented can be answered.
    """
    try:
        api_key, api_version, correlation_id, size = _REQUEST_HEADER.unpack_from(frame)
        position = _REQUEST_HEADER.size
        client_id = None
        if size >= 0:
            stop = position + size
            client_id = _client_id(frame[position:stop].tobytes())
            position = stop
        header = _new(RequestHeader, (api_key, api_version, correlation_id, client_id))
        has_tags = _HAS_TAGS.get((api_key, api_version))
        if has_tags:
            position = skip_tags(frame, position, len(frame)) if frame[position] else position + 1
    except DECODE_FAILURES as error:
        raise Malformed(f"request header: {error}") from error
    if position > len(frame):
        raise Malformed("request header: the client id ends after the frame")
    return header, BODY_UNKNOWN if has_tags is None else position


def _client_id(name: bytes) -> str:
    """It is there to be read by people, so a client is served whatever it calls itself, as Kafka does."""
    try:
        return name.decode()
    except UnicodeDecodeError:  # the sign that Python and Java put there would make it longer, which it may not be
        return name.decode(errors="replace").replace("\N{REPLACEMENT CHARACTER}", "?")


def frame_request(header: RequestHeader, message: Any) -> list[Piece]:
    """A whole request frame. Its header version follows from the API and the version."""
    out: list[Piece] = [b""]
    request_encoder(header.api_key, header.api_version)(message, out)
    try:
        start = _request_header_bytes(header)
    except ENCODE_FAILURES as error:
        raise Unencodable(f"request header: {error}") from error
    length = len(start) + sum(map(len, out))
    out[0] = length.to_bytes(LENGTH_BYTES, "big") + start
    return _gather(out, length)


def _request_header_bytes(header: RequestHeader) -> bytes:
    api_key, api_version, correlation_id, client_id = header
    name = b"" if client_id is None else client_id.encode()
    size = -1 if client_id is None else len(name)
    # The client id keeps its two-byte length in the flexible header too: a broker reads it before it knows the version.
    tags = b"\0" if _HAS_TAGS[api_key, api_version] else b""
    return _REQUEST_HEADER.pack(api_key, api_version, correlation_id, size) + name + tags


def frame_response(api_key: int, version: int, correlation_id: int, message: Any) -> list[Piece]:
    """A whole response frame."""
    key = (api_key, version)
    way = _response_ways.get(key)
    if way is None:
        way = response_encoder(api_key, version), response_header_version(api_key, version)
        _response_ways[key] = way
    encode, tag_bytes = way
    out: list[Piece] = [b""]
    encode(message, out)
    length = LENGTH_BYTES + tag_bytes + sum(map(len, out))
    if tag_bytes:
        out[0] = _RESPONSE_PREFIX_WITH_TAGS.pack(length, correlation_id, 0)
    else:
        out[0] = _RESPONSE_PREFIX.pack(length, correlation_id)
    return _gather(out, length)


def parse_response_header(api_key: int, version: int, frame: memoryview) -> tuple[int, int]:
    """The correlation id of a response frame (without its length prefix), and the position of the body."""
    try:
        correlation_id = int.from_bytes(frame[:4], "big", signed=True)
        position = 4
        if len(frame) < position:
            raise Malformed("response header: shorter than a correlation id")
        if response_header_version(api_key, version):
            position = skip_tags(frame, position, len(frame)) if frame[position] else position + 1
    except DECODE_FAILURES as error:
        raise Malformed(f"response header: {error}") from error
    return correlation_id, position


def in_one_buffer(pieces: list[Piece]) -> bytes:
    """A frame without its length prefix, for those who put it into another message."""
    return b"".join(piece.read() if isinstance(piece, FileSlice) else piece for piece in pieces)[LENGTH_BYTES:]


def _gather(pieces: list[Piece], length: int) -> list[Piece]:
    """Join small neighbours; large buffers and slices of files stay as they are."""
    if length <= JOINED_BYTES_MAX:
        try:
            return [b"".join(pieces)]  # type: ignore[arg-type]
        except TypeError:
            pass  # a slice of a file is among them
    gathered: list[Piece] = []
    small: list[Any] = []
    for piece in pieces:
        if isinstance(piece, FileSlice) or len(piece) > JOINED_BYTES_MAX:
            if small:
                gathered.append(b"".join(small))
                small = []
            gathered.append(piece)
        else:
            small.append(piece)
    if small:
        gathered.append(b"".join(small))
    return gathered
