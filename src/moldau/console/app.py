"""The ASGI application of the web console."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import resources
from typing import Final

from fastapi import APIRouter, FastAPI
from starlette.staticfiles import StaticFiles

from moldau import __version__
from moldau.client.async_client import AsyncClient
from moldau.console.errors import add_error_handlers
from moldau.console.guard import Guard
from moldau.console.routes import (
    acls,
    brokers,
    configs,
    groups,
    messages,
    overview,
    quotas,
    record_pages,
    session,
    topics,
    transactions,
    users,
)
from moldau.console.routes import (
    schemas as schema_pages,
)
from moldau.console.sessions import Sessions
from moldau.console.settings import Connect, ConsoleSettings
from moldau.model.ports import Clock, Random
from moldau.web.health import health_route
from moldau.web.schema_service import SchemaService

API: Final = "/api/console"
ROUTES: Final = (
    session,
    overview,
    brokers,
    topics,
    configs,
    record_pages,
    messages,
    schema_pages,
    groups,
    transactions,
    acls,
    users,
    quotas,
)


def create_console(
    client: AsyncClient,
    settings: ConsoleSettings,
    connect: Connect,
    clock: Clock,
    random: Random,
    add_routes: Callable[[FastAPI], None],
    schemas: SchemaService,
) -> FastAPI:
    """Return the console of the cluster that `client` is connected to; `connect` opens clients of users who log in.

    `add_routes` adds the other interfaces of the same address; `schemas` is the registry that decodes records.
    """
    sessions = Sessions(client, settings, connect, clock, random, schemas)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await sessions.close()

    app = FastAPI(title="Moldau", version=__version__, openapi_url=None, lifespan=lifespan)
    app.state.sessions = sessions
    app.state.clock = clock
    app.state.random = random
    app.router.routes.append(health_route(client))
    add_error_handlers(app)
    api = APIRouter(prefix=API)
    for each in ROUTES:
        api.include_router(each.router)
    app.include_router(api)
    add_routes(app)
    app.mount("/", StaticFiles(directory=str(resources.files("moldau.console") / "assets"), html=True))
    app.add_middleware(Guard, allowed_hosts=settings.allowed_hosts)
    return app
