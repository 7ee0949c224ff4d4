"""The schema registry as console and gateway see it: endpoints of Confluent's API, called as a user, without HTTP."""

from collections.abc import Mapping
from typing import Any, Protocol

from moldau.client.async_client import AsyncClient
from moldau.schemas.codecs import RegisteredSchema


class SchemaRequestFailed(Exception):
    """An error of the registry, with its status and code."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


class SchemaService(Protocol):
    """A registry; requests act as a user, through a client of this user. No user: with the command's credentials."""

    async def call(
        self,
        client: AsyncClient,
        user: str | None,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] = ...,
        body: Mapping[str, Any] = ...,
    ) -> Any:
        """Return the result of an endpoint; SchemaRequestFailed if it fails."""

    async def schema(self, client: AsyncClient, user: str | None, schema_id: int) -> RegisteredSchema:
        """Return a schema by id."""
