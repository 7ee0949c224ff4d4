"""The ASGI application of the schema registry."""

from starlette.applications import Starlette

from moldau.client.async_client import AsyncClient
from moldau.web.health import health_route


def create_registry(client: AsyncClient) -> Starlette:
    """Return the registry whose schemas are in the cluster that `client` is connected to."""
    return Starlette(routes=[health_route(client)])
