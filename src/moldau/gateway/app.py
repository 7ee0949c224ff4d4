"""Adds the gateway to the server of the console, whose host check, body limit and error responses it shares."""

from typing import Final

from fastapi import APIRouter, FastAPI
from pydantic import BaseModel

from moldau.gateway.access import Logins
from moldau.gateway.admission import Admission
from moldau.gateway.idempotency import IdempotencyWindow
from moldau.gateway.openapi import openapi_routes
from moldau.gateway.routes import cluster, groups, produce, records, topics
from moldau.gateway.routes.produce import ProduceRequests

PREFIX: Final = "/v1"
ROUTES: Final = (records, topics, groups, cluster)


class ErrorResponse(BaseModel):
    """Every error: a code for programs, and a sentence for people."""

    error: str
    message: str


def add_gateway(app: FastAPI) -> None:
    """Add the routes below `/v1`. The application has the sessions of the console."""
    app.state.logins = Logins(app.state.sessions)
    app.state.admission = Admission()
    app.state.idempotency = IdempotencyWindow()
    error = {"model": ErrorResponse, "description": "An error, with a code and what to do about it"}
    served = APIRouter(prefix=PREFIX, responses={"default": error, 422: error})
    described = APIRouter(prefix=PREFIX, responses={"default": error, 422: error})
    described.include_router(produce.router)
    for each in ROUTES:
        served.include_router(each.router)
        described.include_router(each.router)
    served.include_router(openapi_routes(PREFIX, described))
    app.include_router(served)
    app.add_middleware(ProduceRequests)
