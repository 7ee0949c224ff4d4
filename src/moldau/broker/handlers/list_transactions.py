"""ListTransactions: the transactional ids that this broker coordinates; an admin asks every broker."""

import asyncio
from typing import Final

from moldau.broker.access import Operation, Resource, ResourceKind
from moldau.broker.context import RequestContext
from moldau.broker.groups.patterns import InvalidPattern, matching
from moldau.broker.transactions.shard import TransactionShard
from moldau.machines.transactions import TransactionState
from moldau.model.errors import ErrorCode, InvalidRegularExpression, KafkaError
from moldau.wire.messages import ListTransactionsRequest, ListTransactionsResponse

STATES: Final = frozenset(each.kafka_name for each in TransactionState)

Listed = ListTransactionsResponse.TransactionState


async def handle(request: ListTransactionsRequest, context: RequestContext) -> ListTransactionsResponse:
    """Those that one may not see are left out. An error says that some are missing; the others come along."""
    listed: list[Listed] = []
    error = ErrorCode.NONE
    for shard in context.broker.transactions.shards():
        try:
            listed += await _listed(shard, request)
        except KafkaError as refusal:
            error = refusal.code
        await asyncio.sleep(0)
    return ListTransactionsResponse(
        error_code=int(error),
        unknown_state_filters=[each for each in request.state_filters if each not in STATES],
        transaction_states=_visible(_matching(listed, request.transactional_id_pattern), context),
    )


async def _listed(shard: TransactionShard, request: ListTransactionsRequest) -> list[Listed]:
    return await shard.read(
        lambda machine: machine.list_transactions(
            states=request.state_filters,
            producer_ids=request.producer_id_filters,
            longer_than_ms=request.duration_filter,
            now=shard.now,
        )
    )


def _matching(listed: list[Listed], pattern: str | None) -> list[Listed]:
    if not pattern:
        return listed
    try:
        found = set(matching(pattern, [each.transactional_id for each in listed]))
    except InvalidPattern as error:
        raise InvalidRegularExpression(f"The pattern {pattern!r} cannot be read: {error}.") from None
    return [each for each in listed if each.transactional_id in found]


def _visible(listed: list[Listed], context: RequestContext) -> list[Listed]:
    return [
        each
        for each in listed
        if context.is_allowed(Operation.DESCRIBE, Resource(ResourceKind.TRANSACTIONAL_ID, each.transactional_id))
    ]
