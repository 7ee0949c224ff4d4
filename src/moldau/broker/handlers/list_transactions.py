"""ListTransactions: the transactional ids that this broker coordinates; admins send it to every broker."""

from typing import Final

from moldau.broker.access import Operation, Resource, ResourceKind
from moldau.broker.coordinators.shards import read_all
from moldau.broker.handlers.contexts import TxnContext
from moldau.broker.runtime.patterns import InvalidPattern, matching
from moldau.machines.transactions import TransactionState
from moldau.model.errors import InvalidRegularExpression
from moldau.wire.messages import ListTransactionsRequest, ListTransactionsResponse

STATES: Final = frozenset(each.kafka_name for each in TransactionState)

Listed = ListTransactionsResponse.TransactionState


async def handle(request: ListTransactionsRequest, context: TxnContext) -> ListTransactionsResponse:
    """Omit ids that the client may not describe. With an error the list is incomplete but still returned."""
    listed, error = await read_all(
        context.broker.transactions.shards(),
        lambda machine, now: machine.list_transactions(
            states=request.state_filters,
            producer_ids=request.producer_id_filters,
            longer_than_ms=request.duration_filter,
            now=now,
        ),
    )
    return ListTransactionsResponse(
        error_code=int(error),
        unknown_state_filters=[each for each in request.state_filters if each not in STATES],
        transaction_states=_visible(_matching(listed, request.transactional_id_pattern), context),
    )


def _matching(listed: list[Listed], pattern: str | None) -> list[Listed]:
    if not pattern:
        return listed
    try:
        found = set(matching(pattern, [each.transactional_id for each in listed]))
    except InvalidPattern as error:
        raise InvalidRegularExpression(f"The pattern {pattern!r} is not a valid regular expression: {error}.") from None
    return [each for each in listed if each.transactional_id in found]


def _visible(listed: list[Listed], context: TxnContext) -> list[Listed]:
    return [
        each
        for each in listed
        if context.is_allowed(
            Operation.DESCRIBE, Resource(ResourceKind.TRANSACTIONAL_ID, each.transactional_id), is_audited=False
        )
    ]
