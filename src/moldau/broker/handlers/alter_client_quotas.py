"""AlterClientQuotas: set and remove quotas of users, client ids and IP addresses."""

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.handlers.contexts import QuorumContext
from moldau.machines.metadata.client_quotas import QuotaAlteration, QuotaAltered, QuotaChange
from moldau.model.errors import ErrorCode, KafkaError
from moldau.wire.messages import AlterClientQuotasRequest, AlterClientQuotasResponse

Entry = AlterClientQuotasResponse.EntryData
Entity = AlterClientQuotasResponse.EntityData


async def handle(request: AlterClientQuotasRequest, context: QuorumContext) -> AlterClientQuotasResponse:
    """Alter or reject the quotas of each entity on its own."""
    context.authorize(Operation.ALTER_CONFIGS, CLUSTER)
    alterations = [_alteration(entry) for entry in request.entries]
    altered = await context.broker.metadata.write(
        lambda machine: machine.decide_alter_client_quotas(alterations, validate_only=request.validate_only)
    )
    await context.broker.catch_up_with_metadata()
    for each in altered:
        if each.error is not ErrorCode.NONE:
            context.log_rejection("a change of client quotas", str(each.entity), each.message)
    return AlterClientQuotasResponse(entries=[_entry(each) for each in altered])


def _alteration(entry: AlterClientQuotasRequest.EntryData) -> QuotaAlteration:
    return QuotaAlteration(
        [(each.entity_type, each.entity_name) for each in entry.entity],
        [QuotaChange(each.key, None if each.remove else each.value) for each in entry.ops],
    )


def _entry(altered: QuotaAltered) -> Entry:
    return Entry(
        error_code=int(altered.error),
        error_message=altered.message,
        entity=[Entity(entity_type=entity_type, entity_name=name) for entity_type, name in altered.entity],
    )


def error_response(
    request: AlterClientQuotasRequest,
    error: KafkaError,
    version: int,  # noqa: ARG001
) -> AlterClientQuotasResponse:
    """Return the same error for every entity."""
    rejected = [
        QuotaAltered([(each.entity_type, each.entity_name) for each in entry.entity], error.code, error.message)
        for entry in request.entries
    ]
    return AlterClientQuotasResponse(entries=[_entry(each) for each in rejected])
