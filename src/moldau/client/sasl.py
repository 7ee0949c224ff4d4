"""SASL logins of a client: the exchanges of each mechanism, as generators that the connection drives.

A login holds the credentials of a user and starts one exchange for each connection, and another whenever the session
of a connection has to be renewed (KIP-368). Slow work, such as deriving keys from a password, is yielded as `Derive`
and runs outside the event loop.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Final

from moldau.client.errors import check, error_of
from moldau.client.security import Authentication
from moldau.machines.access.exchange import Derive
from moldau.machines.access.plain import PLAIN, plain_message
from moldau.machines.access.scram import (
    MECHANISMS,
    NONCE_BYTES,
    ScramClient,
    ScramMechanism,
    ScramRejected,
    nonce_of,
    salted_password,
)
from moldau.model.errors import (
    ErrorCode,
    IllegalSaslState,
    InvalidConfig,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanism,
)
from moldau.model.ids import Address
from moldau.wire.messages import SaslAuthenticateRequest, SaslHandshakeRequest

OAUTHBEARER: Final = "OAUTHBEARER"
RandomBytes = Callable[[int], bytes]


def _handshake(mechanism: str, address: Address) -> Generator[Any, Any, None]:
    response = yield SaslHandshakeRequest(mechanism=mechanism)
    if response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(response.mechanisms) or "none"
        raise UnsupportedSaslMechanism(f"{address} does not offer {mechanism}; it offers {offered}.")
    if response.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        raise IllegalSaslState(
            f"{address} has a listener without SASL: set security.protocol to PLAINTEXT or SSL, or use another port."
        )
    check(response.error_code)


def _exchange(message: bytes) -> Generator[Any, Any, bytes]:
    response = yield SaslAuthenticateRequest(auth_bytes=message)
    if response.error_code:
        raise error_of(response.error_code, response.error_message)
    return bytes(response.auth_bytes)


@dataclass(frozen=True, slots=True)
class PlainLogin:
    """PLAIN: the password goes to the broker, so the connection should be encrypted."""

    username: str
    password: str = field(repr=False)
    mechanism: str = PLAIN

    def authenticate(self, address: Address) -> Authentication:
        yield from _handshake(PLAIN, address)
        yield from _exchange(plain_message(self.username, self.password))


@dataclass(slots=True)
class ScramLogin:
    """SCRAM: the password is never sent. `is_by_token`: a delegation token's id and HMAC as user and password."""

    mechanism: str
    username: str
    password: str = field(repr=False)
    randbytes: RandomBytes = field(repr=False)
    is_by_token: bool = False
    # The salt of a user rarely changes: derive the salted password once.
    _salted: tuple[bytes, int, bytes] | None = field(default=None, repr=False)

    def authenticate(self, address: Address) -> Authentication:
        mechanism = MECHANISMS[self.mechanism]
        client = ScramClient(mechanism, self.username, nonce_of(self.randbytes(NONCE_BYTES)), self.is_by_token)
        yield from _handshake(self.mechanism, address)
        try:
            salt, iterations = client.salt((yield from _exchange(client.first())))
            salted = yield from self._derive(mechanism, salt, iterations)
            client.verify((yield from _exchange(client.final(salted))))
        except ScramRejected as error:
            raise SaslAuthenticationFailed(f"{address} failed {self.mechanism}: {error}.") from None

    def _derive(self, mechanism: ScramMechanism, salt: bytes, iterations: int) -> Generator[Any, Any, bytes]:
        if self._salted is None or self._salted[:2] != (salt, iterations):
            salted = yield Derive(salted_password, (mechanism, self.password, salt, iterations))
            self._salted = salt, iterations, salted
        return self._salted[2]


@dataclass(frozen=True, slots=True)
class TokenLogin:
    """OAUTHBEARER: `token` returns a valid token; it may read a file or ask a token service."""

    token: Callable[[], str] = field(repr=False)
    mechanism: str = OAUTHBEARER

    def authenticate(self, address: Address) -> Authentication:
        token = yield Derive(self.token, ())
        yield from _handshake(OAUTHBEARER, address)
        problem = yield from _exchange(b"n,,\x01auth=Bearer " + token.encode() + b"\x01\x01")
        if problem:  # the server has sent the reason, and expects an empty response before it fails
            yield from _exchange(b"\x01")
            raise SaslAuthenticationFailed(f"{address} rejected the token: {problem.decode(errors='replace')}")


Login = PlainLogin | ScramLogin | TokenLogin


def login(
    mechanism: str, username: str | None, password: str | None, randbytes: RandomBytes, *, is_by_token: bool = False
) -> Login:
    """Return the login of a user; `InvalidConfig` if the mechanism needs other credentials."""
    name = mechanism.upper()
    if name != PLAIN and name not in MECHANISMS:
        known = ", ".join((PLAIN, *MECHANISMS, OAUTHBEARER))
        raise InvalidConfig(f"SASL mechanism {mechanism} cannot be used with a user name; known are {known}.")
    if not username or password is None:
        raise InvalidConfig(f"SASL mechanism {name} needs a user name and a password.")
    if name == PLAIN:
        return PlainLogin(username, password)
    return ScramLogin(name, username, password, randbytes, is_by_token)
