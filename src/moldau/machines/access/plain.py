"""PLAIN (RFC 4616): one message with user and password, compared in constant time."""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from moldau.machines.access.exchange import Authenticated, AuthenticationFailed, Step

PLAIN: Final = "PLAIN"
INVALID: Final = "Authentication failed: Invalid username or password"
OTHER_IDENTITY: Final = "Authentication failed: Client requested an authorization id that is different from username"
_PARTS: Final = 3


@dataclass(slots=True)
class PlainServer:
    """The server's side. `users` maps names to passwords; `dummy` is compared for an unknown user."""

    users: Mapping[str, str] = field(repr=False)
    dummy: str = field(repr=False)

    def step(self, message: bytes) -> Step:
        authorization_id, name, password = _parse(message)
        expected = self.users.get(name)
        is_equal = hmac.compare_digest((self.dummy if expected is None else expected).encode(), password.encode())
        if expected is None or not is_equal:
            raise AuthenticationFailed(INVALID)
        if authorization_id and authorization_id != name:
            raise AuthenticationFailed(OTHER_IDENTITY)
        return Authenticated(name)

    def resume(self, derived: Any) -> Step:
        raise AssertionError(derived)


def _parse(message: bytes) -> tuple[str, str, str]:
    try:
        parts = message.decode().split("\0")
    except UnicodeDecodeError:
        raise AuthenticationFailed("Invalid SASL/PLAIN response: it is not UTF-8") from None
    if len(parts) != _PARTS:
        raise AuthenticationFailed(f"Invalid SASL/PLAIN response: expected 3 tokens, got {min(len(parts), 4)}")
    authorization_id, name, password = parts
    if not name:
        raise AuthenticationFailed("Authentication failed: username not specified")
    if not password:
        raise AuthenticationFailed("Authentication failed: password not specified")
    return authorization_id, name, password


def plain_message(name: str, password: str) -> bytes:
    """Return the client's only message."""
    return f"\0{name}\0{password}".encode()
