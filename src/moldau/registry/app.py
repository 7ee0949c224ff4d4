"""The ASGI application of the schema registry: paths, contexts, bodies, errors."""

import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from moldau.client.acls import Operation
from moldau.client.async_client import AsyncClient
from moldau.registry.access import Access, OpenAccess, UserAccess, read_credentials
from moldau.registry.endpoint_table import ENDPOINTS, Endpoint, authorize
from moldau.registry.endpoints import Call, Raw
from moldau.registry.errors import RegistryError
from moldau.registry.logins import Connect, Logins
from moldau.registry.model import DEFAULT_CONTEXT, parse_context
from moldau.registry.registry import Registry
from moldau.registry.schema_log import FAILURES, UNAVAILABLE, SchemaLog
from moldau.registry.service import LocalRegistry
from moldau.web.health import health_route

CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
ACCEPTED_TYPES: Final = (
    CONTENT_TYPE,
    "application/vnd.schemaregistry+json",
    "application/json",
    "application/octet-stream",
)
BODY_BYTES_MAX: Final = 1024 * 1024  # a stored schema must fit into a record of 1 MiB, the default of brokers
SLASH: Final = "\x1f"  # stands for a slash within a segment of a path: subjects may contain it
CONTEXTS: Final = "contexts"
CHALLENGE: Final = 'Basic realm="moldau", charset="UTF-8"'

log = logging.getLogger(__name__)


def create_registry(
    client: AsyncClient, reader: AsyncClient, connect: Connect | None = None
) -> tuple["PathSegments", LocalRegistry]:
    """Return the registry whose schemas are in the cluster that both clients are connected to.

    With `connect`, which opens clients of users, requests need the credentials of a user of the cluster. The second
    result is the registry for the other interfaces of this process.
    """
    schema_log = SchemaLog(client, reader)
    registry = Registry(schema_log)
    logins = None if connect is None else Logins(connect)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        schema_log.start()
        try:
            yield
        finally:
            await schema_log.stop()
            if logins is not None:
                await logins.close()

    routes = [
        Route(each.path, _respond(registry, client, logins, endpoint, operation), methods=[method])
        for each in ENDPOINTS
        for method, (endpoint, operation) in each.methods.items()
    ]
    handlers: Any = {HTTPException: _on_http_error}
    app = Starlette(routes=[health_route(client), *routes], lifespan=lifespan, exception_handlers=handlers)
    return PathSegments(app), LocalRegistry(registry, needs_login=logins is not None)


class PathSegments:
    """Splits the path before it is decoded, since subjects may contain slashes, and takes a context off its start."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            raw = scope.get("raw_path") or scope["path"].encode()
            segments = raw.partition(b"?")[0].decode("latin-1").split("/")[1:]
            context = ""
            if segments[0] == CONTEXTS and len(segments) > 2:
                context, segments = unquote(segments[1]), segments[2:]
            if len(segments) > 1 and not segments[-1]:
                del segments[-1]  # a slash at the end
            path = "/" + "/".join(unquote(each).replace("/", SLASH) for each in segments)
            scope = {**scope, "path": path, "registry.context": context}
        await self._app(scope, receive, send)


def _respond(
    registry: Registry, client: AsyncClient, logins: Logins | None, endpoint: Endpoint, operation: Operation | None
) -> Callable[[Request], Awaitable[Response]]:
    """Wrap an endpoint: its result becomes the body, its error the status."""

    async def respond(request: Request) -> Response:
        try:
            async with _access(request, logins) as access:
                await registry.log.wait_until_ready()
                context = request.scope["registry.context"]
                names = {name: value.replace(SLASH, "/") for name, value in request.path_params.items()}
                call = Call(
                    registry,
                    client,
                    parse_context(context) if context else DEFAULT_CONTEXT,
                    names,
                    request.query_params,
                    await _read_body(request),
                    access,
                )
                if operation is not None:
                    await authorize(call, operation)
                result = await endpoint(call)
        except RegistryError as error:
            return _error(error.status, error.code, error.message, request)
        except FAILURES as error:
            return _error(503, UNAVAILABLE, f"the cluster cannot be reached: {error}", request)
        except Exception:
            log.exception("%s %s failed", request.method, request.url.path)
            return _error(500, 500, "Internal Server Error", request)
        if isinstance(result, Raw):
            return PlainTextResponse(result.text, media_type=_media_type(request))
        return JSONResponse(result, media_type=_media_type(request))

    return respond


@asynccontextmanager
async def _access(request: Request, logins: Logins | None) -> AsyncIterator[Access]:
    """Log the user of the request in, where that is needed."""
    if logins is None:
        yield OpenAccess()
        return
    user, password = read_credentials(request.headers.get("authorization"))
    async with logins.client_of(user, password) as client:
        yield UserAccess(client, user)


async def _read_body(request: Request) -> dict[str, Any]:
    """Read the JSON object of a request; its size is bounded."""
    if request.method not in ("POST", "PUT"):
        return {}
    kind = request.headers.get("content-type", CONTENT_TYPE).partition(";")[0].strip().lower()
    if kind not in ACCEPTED_TYPES:
        raise RegistryError(415, f"HTTP 415 Unsupported Media Type: {kind[:80]}; use {CONTENT_TYPE}")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES_MAX:
            raise RegistryError(413, f"the request is larger than {BODY_BYTES_MAX} bytes")
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RegistryError(400, f"the request is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise RegistryError(400, "the request is not a JSON object")
    return fields


def _media_type(request: Request) -> str:
    """Return plain JSON if only that is accepted."""
    accepted = [each.partition(";")[0].strip() for each in request.headers.get("accept", "*/*").split(",")]
    wants_json = "application/json" in accepted and not any("schemaregistry" in each for each in accepted)
    return "application/json" if wants_json else CONTENT_TYPE


def _error(status: int, code: int, message: str, request: Request) -> Response:
    body = {"error_code": code, "message": message}
    headers = {"WWW-Authenticate": CHALLENGE} if status == 401 else None
    return JSONResponse(body, status_code=status, headers=headers, media_type=_media_type(request))


async def _on_http_error(request: Request, error: HTTPException) -> Response:
    return _error(error.status_code, error.status_code, f"HTTP {error.status_code} {error.detail}", request)
