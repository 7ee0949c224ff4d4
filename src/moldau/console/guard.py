"""ASGI middleware of every request: host names, cross-site requests, body size, and security headers.

A page of another site can send requests to a server on loopback. Three checks keep it out: the Host header must be an
address or a known name (DNS rebinding), `Sec-Fetch-Site` must not be another site, and changes need the CSRF token,
which only pages of this origin can read.
"""

from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from moldau.model.units import MiB

BODY_BYTES_MAX: Final = 4 * MiB
API_PREFIXES: Final = ("/api/", "/v1/")
FOREIGN_SITES: Final = frozenset({"cross-site", "same-site"})

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class _BodyTooLarge(Exception):
    """The request body exceeds the limit."""


class Guard:
    """Rejects requests before they reach a route, and adds headers to each response."""

    def __init__(self, app: ASGIApp, *, allowed_hosts: Iterable[str] = ()) -> None:
        self._app = app
        self._allowed_hosts = {"localhost", *(each.lower() for each in allowed_hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        is_api = _path(scope).startswith(API_PREFIXES)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                _add_headers(MutableHeaders(scope=message), is_api)
            await send(message)

        rejection = self._rejection(headers, is_api)
        if rejection is not None:
            await rejection(scope, receive, send_with_headers)
            return
        try:
            await self._app(scope, _bounded(receive), send_with_headers)
        except _BodyTooLarge:
            too_large = _error(413, "body_too_large", f"The request body exceeds {BODY_BYTES_MAX // MiB} MiB.")
            await too_large(scope, receive, send_with_headers)

    def _rejection(self, headers: Headers, is_api: bool) -> JSONResponse | None:
        host = headers.get("host", "")
        if not self._is_allowed(host):
            message = f"The host name {host[:200]} is not allowed; start the server with --allowed-host for it."
            return _error(421, "host_not_allowed", message)
        if is_api and headers.get("sec-fetch-site", "none") in FOREIGN_SITES:
            return _error(403, "cross_site_request", "Requests of other sites are rejected.")
        if _length(headers) > BODY_BYTES_MAX:
            return _error(413, "body_too_large", f"The request body exceeds {BODY_BYTES_MAX // MiB} MiB.")
        return None

    def _is_allowed(self, host: str) -> bool:
        """Accept addresses too: a name that an attacker's DNS server resolves is never one."""
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        if name.lower() in self._allowed_hosts:
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return True


def _bounded(receive: Receive) -> Receive:
    received_bytes = 0

    async def receive_bounded() -> Message:
        nonlocal received_bytes
        message = await receive()
        received_bytes += len(message.get("body", b""))
        if received_bytes > BODY_BYTES_MAX:
            raise _BodyTooLarge
        return message

    return receive_bounded


def _add_headers(headers: MutableHeaders, is_api: bool) -> None:
    for name, value in SECURITY_HEADERS.items():
        headers.setdefault(name, value)
    headers.setdefault("Cache-Control", "no-store" if is_api else "no-cache")


def _path(scope: Scope) -> str:
    """Return the path below the place where the console is mounted."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root)


def _length(headers: Headers) -> int:
    text = headers.get("content-length", "0")
    return int(text) if text.isascii() and text.isdigit() else 0


def _error(status: int, code: str, message: str) -> JSONResponse:
    return JSONResponse({"error": code, "message": message}, status)
