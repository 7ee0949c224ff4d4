"""Asking every broker the same, because each knows only its own part: what was heard, and who did not answer."""

import asyncio
from dataclasses import dataclass
from typing import Any

from moldau.client.async_client import AsyncClient
from moldau.client.brokers import SILENT
from moldau.client.errors import PASSING, check
from moldau.model.errors import KafkaError
from moldau.wire.messages import Message


@dataclass(frozen=True, slots=True)
class Heard:
    """The answers by broker, and what is wrong with those that gave none."""

    answers: dict[int, Any]
    silent: dict[int, Exception]


async def ask_everybody(
    client: AsyncClient, request: Message, *, patience_ms: float | None = None, version_at_least: int = 0
) -> Heard:
    """All of them, and all again while one does not answer: a broker that is gone leaves its part to others.

    When time is up, what was heard last. An error that will not pass is raised, whoever answered it.
    """
    heard: Heard | None = None

    async def once(node: int) -> Any:
        answer = await client.send(request, node=node, version_at_least=version_at_least)
        check(answer.error_code)
        return answer

    async def ask() -> Heard:
        nonlocal heard
        nodes = [int(each.node_id) for each in await client.brokers()]
        told = dict(zip(nodes, await asyncio.gather(*map(once, nodes), return_exceptions=True), strict=True))
        failed = [each for each in told.values() if isinstance(each, BaseException)]
        if failed:
            heard = _sorted_out(told)
            raise min(failed, key=_may_pass)  # one that will not pass, if there is any
        return _sorted_out(told)

    try:
        return await client.persist(ask, total_timeout_ms=patience_ms)
    except SILENT as error:
        if heard is None or not _may_pass(error):
            raise
        return heard


def _sorted_out(told: dict[int, Any]) -> Heard:
    silent = {node: each for node, each in told.items() if isinstance(each, Exception)}
    return Heard({node: each for node, each in told.items() if node not in silent}, silent)


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, SILENT) and not (isinstance(error, KafkaError) and error.code not in PASSING)
