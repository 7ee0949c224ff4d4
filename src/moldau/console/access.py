"""Dependencies of routes: the session of a request, and the permission to change something."""

import hmac
from typing import Annotated, Final

from fastapi import Depends, Request

from moldau.console.errors import ConsoleError
from moldau.console.sessions import Session, Sessions

CSRF_HEADER: Final = "X-CSRF-Token"


def sessions_of(request: Request) -> Sessions:
    sessions: Sessions = request.app.state.sessions
    return sessions


def cookie_name(request: Request) -> str:
    """Return a name per port: browsers send the cookies of a host to all its ports."""
    return f"moldau-console-{request.url.port or request.url.scheme}"


async def _session(request: Request) -> Session:
    return await sessions_of(request).find(request.cookies.get(cookie_name(request)))


async def _with_token(request: Request, session: Annotated[Session, Depends(_session)]) -> Session:
    token = request.headers.get(CSRF_HEADER, "")
    if not hmac.compare_digest(token.encode(), session.csrf_token.encode()):
        raise ConsoleError(403, "csrf_token", f"The header {CSRF_HEADER} is missing or outdated; reload the page.")
    return session


async def _editor(request: Request, session: Annotated[Session, Depends(_with_token)]) -> Session:
    if sessions_of(request).settings.is_read_only:
        raise ConsoleError(403, "read_only", "The console is read-only; start it without --read-only to change things.")
    return session


Viewer = Annotated[Session, Depends(_session)]
"""The session of a request that reads."""

TokenHolder = Annotated[Session, Depends(_with_token)]
"""The session of a request that has the CSRF token but changes nothing in the cluster."""

Editor = Annotated[Session, Depends(_editor)]
"""The session of a request that may change the cluster."""


def confirm(given: str | None, name: str) -> None:
    """Reject a destructive change whose request does not repeat the name of its object."""
    if given != name:
        raise ConsoleError(400, "not_confirmed", f"To confirm, repeat the name {name}.")
