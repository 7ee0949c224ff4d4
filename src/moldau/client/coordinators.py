"""Requests to the coordinator of a group or a transactional id."""

from collections.abc import Callable
from typing import Final

from moldau.client.async_client import AsyncClient
from moldau.client.errors import RETRIABLE, HasErrorCode, check, error_of
from moldau.wire import messages
from moldau.wire.messages import Request, Response

GROUP_KEY: Final = 0
TRANSACTION_KEY: Final = 1
FIND_AT_MOST: Final = 3  # the newest version with a single key, which every cluster supports

Codes = Callable[[Response], list[int]]


class Coordinator:
    """The coordinator of one key, looked up again after a failure."""

    def __init__(self, client: AsyncClient, key: str, key_type: int) -> None:
        self._client, self._key, self._key_type = client, key, key_type
        self._node: int | None = None

    async def find(self) -> int:
        if self._node is None:
            request = messages.FindCoordinatorRequest(key=self._key, key_type=self._key_type)
            response = await self._client.send(request, version_at_most=FIND_AT_MOST)
            check(response.error_code, response.error_message)
            self._node = int(response.node_id)
        return self._node

    async def send(
        self,
        request: Request[Response],
        codes: Codes[Response],
        *,
        version_at_most: int | None = None,
        is_idempotent: bool = True,
    ) -> Response:
        """Send a request and retry retriable errors; raise any other error."""

        async def once() -> Response:
            try:
                response = await self._client.send(request, node=await self.find(), version_at_most=version_at_most)
                for code in codes(response):
                    if code in RETRIABLE:
                        raise error_of(code)
            except Exception:
                self._node = None
                raise
            return response

        if not self._client.metadata.brokers:
            await self._client.refresh([])
        response = await self._client.retry(once, is_idempotent=is_idempotent)
        for code in codes(response):
            check(code)
        return response


def single_error_code(response: HasErrorCode) -> list[int]:
    """For responses with a single error code."""
    return [response.error_code]
