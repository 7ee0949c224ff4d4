"""Asking the coordinator of a group or a transactional id, wherever it is now."""

from collections.abc import Callable
from typing import Any, Final

from moldau.client.async_client import AsyncClient
from moldau.client.errors import PASSING, check, error_of
from moldau.wire import messages
from moldau.wire.messages import Message

GROUP_KEY: Final = 0
TRANSACTION_KEY: Final = 1
FIND_AT_MOST: Final = 3  # the newest that asks for one key at a time: every cluster has it

Codes = Callable[[Any], list[int]]


class Coordinator:
    """The broker that answers for one key; it is looked for again when it does not."""

    def __init__(self, client: AsyncClient, key: str, key_type: int) -> None:
        self._client, self._key, self._key_type = client, key, key_type
        self._node: int | None = None

    async def find(self) -> int:
        if self._node is None:
            request = messages.FindCoordinatorRequest(key=self._key, key_type=self._key_type)
            answer = await self._client.send(request, version_at_most=FIND_AT_MOST)
            check(answer.error_code, answer.error_message)
            self._node = int(answer.node_id)
        return self._node

    async def ask(
        self, request: Message, codes: Codes, *, version_at_most: int | None = None, is_repeatable: bool = True
    ) -> Any:
        """Until it answers with something that will not pass; any other error is raised."""

        async def once() -> Any:
            try:
                answer = await self._client.send(request, node=await self.find(), version_at_most=version_at_most)
                for code in codes(answer):
                    if code in PASSING:
                        raise error_of(code)
            except Exception:
                self._node = None
                raise
            return answer

        if not self._client.metadata.brokers:
            await self._client.refresh([])
        answer = await self._client.persist(once, is_repeatable=is_repeatable)
        for code in codes(answer):
            check(code)
        return answer


def one_code(answer: Any) -> list[int]:
    """For the answers that have one error code for everything."""
    return [answer.error_code]
