"""Dependencies of routes: who sends a request, and whether the request may change something.

Without login, requests act with the credentials of the command. With login, each request has the SASL user and password
of the cluster in its Authorization header; the first one opens a session of the console's kind, which later ones share.
The gateway takes no cookies, so that no page of another site can act as a user whose browser is logged in.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

from fastapi import Depends, Request

from moldau.client.async_client import AsyncClient
from moldau.console.errors import ConsoleError
from moldau.console.sessions import SESSIONS_MAX, TOKEN_BYTES, Session, Sessions

CHALLENGE: Final = {"WWW-Authenticate": 'Basic realm="moldau", charset="UTF-8"'}
JSON_TYPE: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Caller:
    """The session of a request, and the credentials for a client of its own."""

    session: Session
    credentials: Mapping[str, str]


@dataclass(slots=True)
class Logins:
    """Sessions by credentials. Only a keyed digest of a password is kept."""

    sessions: Sessions
    _tokens: dict[bytes, str] = field(default_factory=dict)
    _secret: bytes = b""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self._secret = self.sessions.random.randbytes(TOKEN_BYTES)

    async def find(self, authorization: str) -> Caller:
        if not self.sessions.settings.needs_login:
            return Caller(await self.sessions.find(None), {})
        user, password = _credentials(authorization)
        credentials = {"sasl.username": user, "sasl.password": password}
        digest = hmac.digest(self._secret, f"{len(user)}:{user}{password}".encode(), hashlib.sha256)
        async with self._lock:
            try:
                return Caller(await self.sessions.find(self._tokens.get(digest)), credentials)
            except ConsoleError:
                token, session = await self.sessions.log_in(user, password, None)
            while len(self._tokens) >= SESSIONS_MAX:
                del self._tokens[next(iter(self._tokens))]
            self._tokens[digest] = token
        return Caller(session, credentials)

    def connect(self, caller: Caller) -> AsyncClient:
        """Open a client that acts as the caller, for requests that would block others."""
        return self.sessions.connect(caller.credentials)


def _credentials(authorization: str) -> tuple[str, str]:
    scheme, _, encoded = authorization.partition(" ")
    try:
        user, separator, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        user = separator = password = ""
    if scheme.lower() != "basic" or not separator or not user:
        message = "Send the SASL user and password of the cluster as HTTP Basic authentication."
        raise ConsoleError(401, "login_required", message, CHALLENGE)
    return user, password


async def _reader(request: Request) -> Caller:
    logins: Logins = request.app.state.logins
    return await logins.find(request.headers.get("authorization", ""))


async def authorized_writer(request: Request) -> Caller:
    """Return the sender of a request that may change something."""
    return await _writer(request, await _reader(request))


async def _writer(request: Request, caller: Annotated[Caller, Depends(_reader)]) -> Caller:
    logins: Logins = request.app.state.logins
    if logins.sessions.settings.is_read_only:
        raise ConsoleError(403, "read_only", "The gateway is read-only; start it without --read-only to change things.")
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.method in ("POST", "PATCH") and content_type != JSON_TYPE:
        # Pages of other sites can send other types without a preflight request.
        raise ConsoleError(415, "unsupported_media_type", f"Send the body as Content-Type: {JSON_TYPE}.")
    return caller


Reader = Annotated[Caller, Depends(_reader)]
"""The sender of a request that changes nothing."""

Writer = Annotated[Caller, Depends(_writer)]
"""The sender of a request that produces records or changes the cluster."""
