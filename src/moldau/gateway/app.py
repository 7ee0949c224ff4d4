"""Adds the gateway to the server of the console, whose host check, body limit and error responses it shares."""

from typing import Final

from fastapi import APIRouter, FastAPI
from pydantic import BaseModel

from moldau.gateway.access import Logins
from moldau.gateway.admission import Admission
from moldau.gateway.idempotency import IdempotencyWindow
from moldau.gateway.openapi import openapi_routes
from moldau.gateway.routes import cluster, groups, produce, records, topics

PREFIX: Final = "/v1"
ROUTES: Final = (produce, records, topics, groups, cluster)


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
    router = APIRouter(prefix=PREFIX, responses={"default": error, 422: error})
    for each in ROUTES:
        router.include_router(each.router)
    router.include_router(openapi_routes(PREFIX, router))
    app.include_router(router)
