"""DescribeClientQuotas: the quotas of the entities that match a filter."""

from collections.abc import Mapping

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.handlers.contexts import MetadataContext
from moldau.broker.runtime.time_slice import TimeSlice
from moldau.machines.metadata.client_quotas import QuotaFilter, describe_client_quotas
from moldau.machines.metadata.image import QuotaEntity
from moldau.model.errors import KafkaError
from moldau.wire.messages import DescribeClientQuotasRequest, DescribeClientQuotasResponse

Entry = DescribeClientQuotasResponse.EntryData


async def handle(request: DescribeClientQuotasRequest, context: MetadataContext) -> DescribeClientQuotasResponse:
    """Describe quotas from this broker's image."""
    context.authorize(Operation.DESCRIBE_CONFIGS, CLUSTER)
    components = [QuotaFilter(each.entity_type, each.match_type, each.match) for each in request.components]
    turn = TimeSlice(context)
    entries = []
    for entity, values in describe_client_quotas(context.broker.image, components, strict=request.strict):
        entries.append(_entry(entity, values))
        if turn.is_over():
            await turn.next()
    return DescribeClientQuotasResponse(entries=entries)


def _entry(entity: QuotaEntity, values: Mapping[str, float]) -> Entry:
    return Entry(
        entity=[
            DescribeClientQuotasResponse.EntityData(entity_type=entity_type, entity_name=name)
            for entity_type, name in entity
        ],
        values=[DescribeClientQuotasResponse.ValueData(key=key, value=value) for key, value in values.items()],
    )


def error_response(
    request: DescribeClientQuotasRequest,  # noqa: ARG001
    error: KafkaError,
    version: int,  # noqa: ARG001
) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(error_code=int(error.code), error_message=error.message, entries=None)
