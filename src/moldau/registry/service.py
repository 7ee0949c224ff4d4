"""The registry for the console and the gateway, which run in the same process.

The endpoints are those of the HTTP interface, and the ACLs of the user decide in the same way.
"""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

from moldau.client.async_client import AsyncClient
from moldau.client.errors import ConnectionLost, ResponseTimeout, Unreachable
from moldau.model.errors import KafkaError
from moldau.registry.access import Access, OpenAccess, UserAccess
from moldau.registry.endpoint_table import Endpoint, authorize, find_endpoint
from moldau.registry.endpoints import Call, Raw
from moldau.registry.errors import RegistryError
from moldau.registry.model import DEFAULT_CONTEXT
from moldau.registry.registry import Registry
from moldau.schemas.codecs import RegisteredSchema
from moldau.web.schema_service import SchemaRequestFailed

FAILURES: Final = (KafkaError, ConnectionLost, ResponseTimeout, Unreachable, OSError)
NOTHING: Final[Mapping[str, Any]] = {}
COMMAND: Final = "of the command"


class LocalRegistry:
    """Calls endpoints without HTTP. `needs_login`: ACLs hold for requests with the credentials of the command, too."""

    def __init__(self, registry: Registry, *, needs_login: bool) -> None:
        self._registry, self._needs_login = registry, needs_login

    async def call(
        self,
        client: AsyncClient,
        user: str | None,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] = NOTHING,
        body: Mapping[str, Any] = NOTHING,
    ) -> Any:
        found = find_endpoint(method, path)
        if found is None:
            raise SchemaRequestFailed(404, 404, f"the registry has no {method} {path}")
        endpoint, names, operation = found
        names = {name: unquote(text) for name, text in names.items()}
        access = self._access(client, user)
        call = Call(self._registry, client, DEFAULT_CONTEXT, names, query, dict(body), access)
        return await self._run(endpoint, call, operation)

    async def schema(self, client: AsyncClient, user: str | None, schema_id: int) -> RegisteredSchema:
        await self.call(client, user, "GET", f"/schemas/ids/{schema_id}")
        try:
            found = await self._registry.schema(DEFAULT_CONTEXT, schema_id)
            dependencies = self._registry.dependencies("", found)
        except RegistryError as error:
            raise SchemaRequestFailed(error.status, error.code, error.message) from error
        return RegisteredSchema(schema_id, found.kind, found.text, dependencies)

    def _access(self, client: AsyncClient, user: str | None) -> Access:
        if user is None and not self._needs_login:
            return OpenAccess()
        return UserAccess(client, user or COMMAND)

    async def _run(self, endpoint: Endpoint, call: Call, operation: Any) -> Any:
        try:
            await self._registry.log.wait_until_ready()
            if operation is not None:
                await authorize(call, operation)
            result = await endpoint(call)
        except RegistryError as error:
            raise SchemaRequestFailed(error.status, error.code, error.message) from error
        except FAILURES as error:
            raise SchemaRequestFailed(503, 50301, f"the cluster cannot be reached: {error}") from error
        return result.text if isinstance(result, Raw) else result
