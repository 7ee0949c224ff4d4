"""The client of a forwarded request, as an Envelope carries it: Kafka's serialized principal, and the address."""

from ipaddress import ip_address
from typing import Final

from moldau.model.errors import InvalidRequest, PrincipalDeserializationFailed
from moldau.wire.codec import Malformed
from moldau.wire.data_records import decode_versioned, encode_versioned
from moldau.wire.messages import DefaultPrincipalData

PRINCIPAL_VERSION: Final = 0


def encode_principal(principal: str, *, is_token_authenticated: bool = False) -> bytes:
    """Serialize a principal such as `User:alice` as Kafka's default principal builder does."""
    kind, _, name = principal.partition(":")
    return encode_versioned(
        DefaultPrincipalData(type_=kind, name=name, token_authenticated=is_token_authenticated), PRINCIPAL_VERSION
    )


def decode_principal(data: bytes | memoryview | None) -> tuple[str, bool]:
    """Return the principal, and whether a delegation token authenticated it."""
    try:
        decoded = decode_versioned("DefaultPrincipalData", b"" if data is None else data)
    except Malformed as error:
        raise PrincipalDeserializationFailed(f"Cannot decode the principal of the forwarded request: {error}") from None
    return f"{decoded.type_}:{decoded.name}", decoded.token_authenticated


def encode_address(peer: str) -> bytes:
    """Return the 4 or 16 bytes of an address; none for a peer without an address, such as this node itself."""
    try:
        return ip_address(peer).packed
    except ValueError:
        return b""


def decode_address(data: bytes | memoryview, forwarder: str) -> str:
    """Return the client's address; that of the forwarder for a request of its own."""
    if not data:
        return forwarder
    try:
        return str(ip_address(bytes(data)))
    except ValueError:
        raise InvalidRequest(f"A client address has 4 or 16 bytes, not {len(data)}.") from None
