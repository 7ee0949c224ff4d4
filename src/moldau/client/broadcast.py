"""Requests to every broker, because each knows only its own state: the responses, and the failures."""

import asyncio
from dataclasses import dataclass
from typing import Any

from moldau.client.async_client import AsyncClient
from moldau.client.brokers import REQUEST_FAILURES
from moldau.client.errors import RETRIABLE, check
from moldau.model.errors import KafkaError
from moldau.wire.messages import Message


@dataclass(frozen=True, slots=True)
class BroadcastResult:
    """The responses and failures by broker."""

    responses: dict[int, Any]
    failures: dict[int, Exception]


async def broadcast(
    client: AsyncClient, request: Message, *, timeout_ms: float | None = None, version_at_least: int = 0
) -> BroadcastResult:
    """Send to all brokers, and again to all while one fails: another broker may take over the state of a failed one.

    After the timeout, return the last result. A non-retriable error of any broker is raised.
    """
    last: BroadcastResult | None = None

    async def send_once(node: int) -> Any:
        response = await client.send(request, node=node, version_at_least=version_at_least)
        check(response.error_code)
        return response

    async def send_to_all() -> BroadcastResult:
        nonlocal last
        nodes = [int(each.node_id) for each in await client.brokers()]
        outcomes = dict(zip(nodes, await asyncio.gather(*map(send_once, nodes), return_exceptions=True), strict=True))
        failed = [each for each in outcomes.values() if isinstance(each, BaseException)]
        if failed:
            last = _partition_outcomes(outcomes)
            raise min(failed, key=_is_retriable)  # prefer a non-retriable error
        return _partition_outcomes(outcomes)

    try:
        return await client.retry(send_to_all, total_timeout_ms=timeout_ms)
    except REQUEST_FAILURES as error:
        if last is None or not _is_retriable(error):
            raise
        return last


def _partition_outcomes(outcomes: dict[int, Any]) -> BroadcastResult:
    failures = {node: each for node, each in outcomes.items() if isinstance(each, Exception)}
    return BroadcastResult({node: each for node, each in outcomes.items() if node not in failures}, failures)


def _is_retriable(error: BaseException) -> bool:
    return isinstance(error, REQUEST_FAILURES) and not (isinstance(error, KafkaError) and error.code not in RETRIABLE)
