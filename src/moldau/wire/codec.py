"""Message codecs: one compiled function per message and version, generated on first use."""

from typing import Any

from moldau.model.errors import UnsupportedVersion
from moldau.model.ports import Piece
from moldau.wire import messages
from moldau.wire.catalogue import APIS, ENTRIES, schema_of
from moldau.wire.decoder import Decoder, compile_decoder
from moldau.wire.encoder import Encoder, compile_encoder
from moldau.wire.primitives import Malformed, Unencodable

__all__ = [
    "Decoder",
    "Encoder",
    "Malformed",
    "Unencodable",
    "api_name",
    "data_decoder",
    "data_encoder",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
    "request_decoder",
    "request_encoder",
    "request_header_version",
    "response_decoder",
    "response_encoder",
    "response_header_version",
    "versions",
]

_API_VERSIONS = 18

_request_decoders: dict[tuple[int, int], Decoder] = {}
_request_encoders: dict[tuple[int, int], Encoder] = {}
_response_decoders: dict[tuple[int, int], Decoder] = {}
_response_encoders: dict[tuple[int, int], Encoder] = {}
_data_decoders: dict[tuple[str, int], Decoder] = {}
_data_encoders: dict[tuple[str, int], Encoder] = {}


def versions(api_key: int) -> tuple[int, int] | None:
    """Return the oldest and newest version in the schemas, or None for an unknown API."""
    api = APIS.get(api_key)
    return api and (api.versions.first, api.versions.last)


def api_name(api_key: int) -> str:
    """Return Kafka's name of an API, or its number if it is unknown."""
    api = APIS.get(api_key)
    return api.name if api else str(api_key)


def request_header_version(api_key: int, version: int) -> int:
    """2 with a tag section, 1 without."""
    return 2 if APIS[api_key].flexible.has(version) else 1


def response_header_version(api_key: int, version: int) -> int:
    """1 with a tag section, 0 without. ApiVersions never has one: the client knows no versions yet."""
    return 1 if api_key != _API_VERSIONS and APIS[api_key].flexible.has(version) else 0


def request_decoder(api_key: int, version: int) -> Decoder:
    key = (api_key, version)
    return _request_decoders.get(key) or _request_decoders.setdefault(key, _compile_decoder(key, "Request"))


def response_decoder(api_key: int, version: int) -> Decoder:
    key = (api_key, version)
    return _response_decoders.get(key) or _response_decoders.setdefault(key, _compile_decoder(key, "Response"))


def request_encoder(api_key: int, version: int) -> Encoder:
    key = (api_key, version)
    return _request_encoders.get(key) or _request_encoders.setdefault(key, _compile_encoder(key, "Request"))


def response_encoder(api_key: int, version: int) -> Encoder:
    key = (api_key, version)
    return _response_encoders.get(key) or _response_encoders.setdefault(key, _compile_encoder(key, "Response"))


def decode_request(api_key: int, version: int, body: memoryview) -> Any:
    """Decode the request that fills `body`; trailing bytes are `Malformed`.

    Records are views of `body`, valid as long as it is; everything else is copied.
    """
    message, end = request_decoder(api_key, version)(body, 0)
    if end != len(body):
        raise _trailing_bytes(message, version, len(body) - end)
    return message


def decode_response(api_key: int, version: int, body: memoryview) -> Any:
    """Decode the response that fills `body`; trailing bytes are `Malformed`."""
    message, end = response_decoder(api_key, version)(body, 0)
    if end != len(body):
        raise _trailing_bytes(message, version, len(body) - end)
    return message


def encode_request(api_key: int, version: int, message: Any, out: list[Piece]) -> None:
    """Append the pieces of a request; records are appended without a copy."""
    request_encoder(api_key, version)(message, out)


def encode_response(api_key: int, version: int, message: Any, out: list[Piece]) -> None:
    """Append the pieces of a response; records are appended without a copy."""
    response_encoder(api_key, version)(message, out)


def data_decoder(name: str, version: int) -> Decoder:
    """Return the decoder of a message outside the APIs: metadata, coordinator and control records."""
    key = (name, version)
    if key not in _data_decoders:
        _check_version(name, version)
        _data_decoders[key] = compile_decoder(schema_of(name), version, getattr(messages, name))
    return _data_decoders[key]


def data_encoder(name: str, version: int) -> Encoder:
    key = (name, version)
    if key not in _data_encoders:
        _check_version(name, version)
        _data_encoders[key] = compile_encoder(schema_of(name), version)
    return _data_encoders[key]


def _compile_decoder(key: tuple[int, int], role: str) -> Decoder:
    name = api_name(key[0]) + role
    _check_version(name, key[1])
    return compile_decoder(schema_of(name), key[1], getattr(messages, name))


def _compile_encoder(key: tuple[int, int], role: str) -> Encoder:
    name = api_name(key[0]) + role
    _check_version(name, key[1])
    return compile_encoder(schema_of(name), key[1])


def _check_version(name: str, version: int) -> None:
    if name not in ENTRIES or not ENTRIES[name].versions.has(version):
        raise UnsupportedVersion(f"{name} has no version {version}.")


def _trailing_bytes(message: Any, version: int, count: int) -> Malformed:
    return Malformed(f"{type(message).__name__} version {version}: {count} trailing bytes")
