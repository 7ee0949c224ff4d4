"""Request and response frames: the length prefix, the header, and the pieces to send."""

from struct import Struct
from typing import Any, Final, NamedTuple

from moldau.model.ports import FileSlice, Piece
from moldau.wire.catalogue import APIS
from moldau.wire.codec import Encoder, request_encoder, response_encoder, response_header_version
from moldau.wire.primitives import DECODE_FAILURES, ENCODE_FAILURES, Malformed, Unencodable, skip_tags

LENGTH_BYTES: Final = 4
BODY_UNKNOWN: Final = -1  # position of a body without a schema

# Smaller pieces are copied together: one buffer is cheaper to send than two.
JOINED_BYTES_MAX: Final = 4096

_REQUEST_HEADER = Struct(">hhih")
_new = tuple.__new__  # faster than a named tuple's constructor
_HAS_TAGS: Final = {
    (api.key, version): api.flexible.has(version)
    for api in APIS.values()
    for version in range(api.versions.first, api.versions.last + 1)
}
_RESPONSE_PREFIX = Struct(">ii")
_RESPONSE_PREFIX_WITH_TAGS = Struct(">iiB")

# By API and version: the encoder of the response, and the bytes of tags in its header.
_response_encoders: dict[tuple[int, int], tuple[Encoder, int]] = {}


class RequestHeader(NamedTuple):
    """The common header of all requests."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None = None


def parse_request_header(frame: memoryview) -> tuple[RequestHeader, int]:
    """Return the header and the position of the body, `BODY_UNKNOWN` if this API and version has no schema.

    The first four fields have the same position in every header version, so that an ApiVersions request of a future
    version gets a response.
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
        raise Malformed("request header: the client id exceeds the frame")
    return header, BODY_UNKNOWN if has_tags is None else position


def _client_id(name: bytes) -> str:
    """Decode leniently, as Kafka does: the client id is informative only."""
    try:
        return name.decode()
    except UnicodeDecodeError:  # U+FFFD would make it longer than its limit
        return name.decode(errors="replace").replace("\N{REPLACEMENT CHARACTER}", "?")


def frame_request(header: RequestHeader, message: Any) -> list[Piece]:
    """Return a whole request frame. The header version follows from the API and the version."""
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
    # The client id has a two-byte length even in the flexible header: a broker reads it before it knows the version.
    tags = b"\0" if _HAS_TAGS[api_key, api_version] else b""
    return _REQUEST_HEADER.pack(api_key, api_version, correlation_id, size) + name + tags


def frame_response(api_key: int, version: int, correlation_id: int, message: Any) -> list[Piece]:
    """Return a whole response frame."""
    key = (api_key, version)
    cached = _response_encoders.get(key)
    if cached is None:
        cached = response_encoder(api_key, version), response_header_version(api_key, version)
        _response_encoders[key] = cached
    encode, tag_bytes = cached
    out: list[Piece] = [b""]
    encode(message, out)
    length = LENGTH_BYTES + tag_bytes + sum(map(len, out))
    if tag_bytes:
        out[0] = _RESPONSE_PREFIX_WITH_TAGS.pack(length, correlation_id, 0)
    else:
        out[0] = _RESPONSE_PREFIX.pack(length, correlation_id)
    return _gather(out, length)


def parse_response_header(api_key: int, version: int, frame: memoryview) -> tuple[int, int]:
    """Return the correlation id of a response frame (without its length prefix), and the position of the body."""
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
    """Join the pieces of a frame without its length prefix, to embed it in another message."""
    return b"".join(piece.read() if isinstance(piece, FileSlice) else piece for piece in pieces)[LENGTH_BYTES:]


def _gather(pieces: list[Piece], length: int) -> list[Piece]:
    """Join small adjacent pieces; large buffers and file slices stay separate."""
    if length <= JOINED_BYTES_MAX:
        try:
            return [b"".join(pieces)]  # type: ignore[arg-type]
        except TypeError:
            pass  # one of them is a file slice
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
