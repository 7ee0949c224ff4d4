"""OAUTHBEARER (RFC 7628): the server's side. The validation of the token is given."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from moldau.machines.access.exchange import Authenticated, AuthenticationFailed, Challenge, Derive, Step

OAUTHBEARER: Final = "OAUTHBEARER"
INVALID_TOKEN: Final = '{"status":"invalid_token"}'
_FIRST: Final = re.compile(
    r"n,(?:a=(?P<authzid>[^,\x01]*))?,\x01(?:[A-Za-z]+=[^\x01]*\x01)*?"
    r"auth=[Bb]earer +(?P<token>[-_.~+/A-Za-z0-9]+=*)\x01(?:[A-Za-z]+=[^\x01]*\x01)*\x01"
)


class TokenRejected(Exception):
    """The token is not valid here; the text is for the log."""


class KeysNeeded(Exception):
    """The issuer's keys must be fetched first: by `work(*arguments)`, with whose result `keep` is called."""

    def __init__(self, derive: Derive, keep: Callable[[Any], None]) -> None:
        super().__init__()
        self.derive = derive
        self.keep = keep


class Identity(NamedTuple):
    """The user of a valid token."""

    name: str
    expires_at_ms: float


@dataclass(slots=True)
class OAuthBearerServer:
    """The server's side of one exchange.

    `validate` returns the identity, or raises `TokenRejected` or `KeysNeeded`. An invalid token gets a challenge that
    says so, to which the client replies with one byte before the exchange fails.
    """

    validate: Callable[[str], Identity]
    _token: str = field(default="", repr=False)
    _authorization_id: str = ""
    _keep: Callable[[Any], None] | None = None
    _has_failed: bool = False

    def step(self, message: bytes) -> Step:
        if self._has_failed:
            raise AuthenticationFailed(INVALID_TOKEN)
        found = _FIRST.fullmatch(message.decode(errors="replace"))
        if found is None:
            raise AuthenticationFailed
        self._token, self._authorization_id = found["token"], found["authzid"] or ""
        return self._validate()

    def resume(self, derived: Any) -> Step:
        assert self._keep is not None
        self._keep(derived)
        return self._validate()

    def _validate(self) -> Step:
        try:
            identity = self.validate(self._token)
        except KeysNeeded as needed:
            self._keep = needed.keep
            return needed.derive
        except TokenRejected:
            self._has_failed = True
            return Challenge(INVALID_TOKEN.encode())
        if self._authorization_id and self._authorization_id != identity.name:
            raise AuthenticationFailed(
                "Authentication failed: Client requested an authorization id that is different from the token's "
                "principal name"
            )
        return Authenticated(identity.name, b"", identity.expires_at_ms)
