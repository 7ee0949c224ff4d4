"""DescribeTransactions: the state of transactional ids, and the partitions of their open transactions."""

from moldau.broker.access import Operation, Resource, ResourceKind
from moldau.broker.handlers.contexts import TxnContext
from moldau.broker.runtime.time_slice import TimeSlice
from moldau.model.errors import InvalidRequest, KafkaError
from moldau.wire.messages import DescribeTransactionsRequest, DescribeTransactionsResponse

Described = DescribeTransactionsResponse.TransactionState


async def handle(request: DescribeTransactionsRequest, context: TxnContext) -> DescribeTransactionsResponse:
    """Describe or reject each transactional id on its own."""
    turn = TimeSlice(context)
    states = []
    for transactional_id in dict.fromkeys(request.transactional_ids):
        states.append(await _describe(transactional_id, context))
        if turn.is_over():
            await turn.next()
    return DescribeTransactionsResponse(transaction_states=states)


async def _describe(transactional_id: str, context: TxnContext) -> Described:
    """Topics that the client may not describe are omitted."""
    try:
        context.authorize(Operation.DESCRIBE, Resource(ResourceKind.TRANSACTIONAL_ID, transactional_id))
        if not transactional_id:
            raise InvalidRequest("A transactional id must not be empty.")
        shard = context.broker.transactions.shard_for(transactional_id)
        described = await shard.read(lambda machine: machine.describe(transactional_id))
    except KafkaError as error:
        return _error_result(transactional_id, error)
    described.topics = [
        each for each in described.topics if context.may(Operation.DESCRIBE, each.topic, is_audited=False)
    ]
    return described


def _error_result(transactional_id: str, error: KafkaError) -> Described:
    return Described(transactional_id=transactional_id, error_code=int(error.code))


def error_response(
    request: DescribeTransactionsRequest,
    error: KafkaError,
    version: int,  # noqa: ARG001 - the common shape
) -> DescribeTransactionsResponse:
    """Return the same error for every transactional id."""
    return DescribeTransactionsResponse(
        transaction_states=[_error_result(each, error) for each in request.transactional_ids]
    )
