"""Requests to every broker, because each knows only its own state: the responses, and the failures."""

import asyncio
from dataclasses import dataclass
from typing import Generic

from moldau.client.async_client import AsyncClient
from moldau.client.brokers import REQUEST_FAILURES
from moldau.client.errors import RETRIABLE, Checked, check
from moldau.model.errors import KafkaError
from moldau.wire.messages import Request


@dataclass(frozen=True, slots=True)
class BroadcastResult(Generic[Checked]):
    """The responses and failures by broker."""

    responses: dict[int, Checked]
    failures: dict[int, Exception]


async def broadcast(
    client: AsyncClient, request: Request[Checked], *, timeout_ms: float | None = None, version_at_least: int = 0
) -> BroadcastResult[Checked]:
    """Send to all brokers, and again to all while one fails: another broker may take over the state of a failed one.

    After the timeout, return the last result. A non-retriable error of any broker is raised.
    """
    last: BroadcastResult[Checked] | None = None

    async def send_once(node: int) -> Checked:
        response = await client.send(request, node=node, version_at_least=version_at_least)
        check(response.error_code)
        return response

    async def send_to_all() -> BroadcastResult[Checked]:
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


def _partition_outcomes(outcomes: dict[int, Checked | BaseException]) -> BroadcastResult[Checked]:
    failures = {node: each for node, each in outcomes.items() if isinstance(each, Exception)}
    responses = {node: each for node, each in outcomes.items() if not isinstance(each, BaseException)}
    return BroadcastResult(responses, failures)


def _is_retriable(error: BaseException) -> bool:
    return isinstance(error, REQUEST_FAILURES) and not (isinstance(error, KafkaError) and error.code not in RETRIABLE)
