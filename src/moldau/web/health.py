"""The `/health` page of an HTTP interface: whether the cluster behind it responds."""

import asyncio
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from moldau.client.async_client import AsyncClient
from moldau.client.errors import ConnectionLost, ResponseTimeout, Unreachable
from moldau.model.errors import KafkaError

HEALTH_PATH: Final = "/health"
CLUSTER_S_MAX: Final = 3.0
FAILURES: Final = (KafkaError, ConnectionLost, ResponseTimeout, Unreachable, TimeoutError, OSError)


def health_route(client: AsyncClient) -> Route:
    """GET /health: 200 with the cluster's id and brokers, or 503 with the reason."""

    async def show_health(_: Request) -> JSONResponse:
        try:
            cluster = await asyncio.wait_for(client.describe_cluster(), CLUSTER_S_MAX)
        except FAILURES as error:
            return JSONResponse({"status": "unavailable", "reason": reason_of(error)}, status_code=503)
        brokers = len(cluster.brokers)
        return JSONResponse({"status": "ok", "cluster_id": cluster.cluster_id, "brokers": brokers})

    return Route(HEALTH_PATH, show_health, methods=["GET"])


def reason_of(error: BaseException) -> str:
    """Return the text of a failure to reach the cluster."""
    if isinstance(error, TimeoutError):
        return f"no response from the cluster within {CLUSTER_S_MAX:g} s"
    message: Any = getattr(error, "message", None)
    return str(message or error or type(error).__name__)
