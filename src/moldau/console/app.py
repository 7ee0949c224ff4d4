"""The ASGI application of the web console."""

from fastapi import FastAPI

from moldau import __version__
from moldau.client.async_client import AsyncClient
from moldau.web.health import health_route


def create_console(client: AsyncClient) -> FastAPI:
    """Return the console of the cluster that `client` is connected to."""
    return FastAPI(title="Moldau", version=__version__, routes=[health_route(client)], openapi_url=None)
