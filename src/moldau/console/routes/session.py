"""The user of the console: login, logout, and the actions that the pages may offer."""

from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from moldau import __version__
from moldau.console.access import TokenHolder, cookie_name, sessions_of
from moldau.console.errors import ConsoleError
from moldau.console.sessions import Session, Sessions

router = APIRouter()


class Credentials(BaseModel):
    """A SASL user of the cluster."""

    user: Annotated[str, Field(min_length=1, max_length=500)]
    password: Annotated[str, Field(min_length=1, max_length=2_000)]
    mechanism: Annotated[str | None, Field(max_length=50)] = None


@router.get("/session")
async def describe_session(request: Request) -> dict[str, Any]:
    sessions = sessions_of(request)
    try:
        session = await sessions.find(request.cookies.get(cookie_name(request)))
    except ConsoleError as error:
        if error.code != "login_required":
            raise
        session = None
    return _described(sessions, session)


@router.post("/session")
async def log_in(credentials: Credentials, request: Request, response: Response) -> dict[str, Any]:
    sessions = sessions_of(request)
    if not sessions.settings.needs_login:
        raise ConsoleError(409, "no_login", "This console needs no login.")
    token, session = await sessions.log_in(credentials.user, credentials.password, credentials.mechanism)
    is_https = request.url.scheme == "https"
    response.set_cookie(cookie_name(request), token, path="/", secure=is_https, httponly=True, samesite="strict")
    return _described(sessions, session)


@router.delete("/session")
async def log_out(request: Request, response: Response, _: TokenHolder) -> dict[str, Any]:
    sessions = sessions_of(request)
    await sessions.log_out(request.cookies.get(cookie_name(request)))
    response.delete_cookie(cookie_name(request), path="/", httponly=True, samesite="strict")
    return _described(sessions, None)


def _described(sessions: Sessions, session: Session | None) -> dict[str, Any]:
    settings = sessions.settings
    return {
        "needs_login": settings.needs_login,
        "is_logged_in": session is not None,
        "is_read_only": settings.is_read_only,
        "user": session.user if session else None,
        "csrf_token": session.csrf_token if session else None,
        "bootstrap_servers": settings.bootstrap_servers,
        "version": __version__,
    }
