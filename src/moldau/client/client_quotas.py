"""Administration of client quotas: described and altered on any Kafka-compatible cluster."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from moldau.client.async_client import AsyncClient
from moldau.client.errors import check, error_of
from moldau.model.errors import ErrorCode
from moldau.wire import messages

EXACT: Final = 0
DEFAULT: Final = 1
ANY: Final = 2

Entity = Mapping[str, str | None]
"""Names by entity type (user, client-id, ip); None stands for the default entity."""


@dataclass(frozen=True, slots=True)
class DescribedQuota:
    """The quotas of one entity."""

    entity: Entity
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class QuotaFilter:
    """One component of a filter: an exact name, the default entity, or any of the type."""

    entity_type: str
    match_type: int
    name: str | None = None


def filter_of(entity: Entity) -> list[QuotaFilter]:
    """A filter that matches exactly this entity, if it is strict."""
    return [QuotaFilter(entity_type, DEFAULT if name is None else EXACT, name) for entity_type, name in entity.items()]


class ClientQuotas:
    """Administers client quotas."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client

    async def describe(self, components: Sequence[QuotaFilter] = (), *, strict: bool = False) -> list[DescribedQuota]:
        """Return the quotas that match all components, sorted by entity."""
        request = messages.DescribeClientQuotasRequest(
            components=[
                messages.DescribeClientQuotasRequest.ComponentData(
                    entity_type=each.entity_type, match_type=each.match_type, match=each.name
                )
                for each in components
            ],
            strict=strict,
        )
        response = await self.client.send(request)
        check(response.error_code, response.error_message)
        found = [
            DescribedQuota(
                {each.entity_type: each.entity_name for each in sorted(entry.entity, key=_entity_order)},
                {each.key: each.value for each in sorted(entry.values, key=lambda value: str(value.key))},
            )
            for entry in response.entries or ()
        ]
        return sorted(found, key=lambda quota: [(kind, name or "") for kind, name in quota.entity.items()])

    async def alter(
        self,
        entity: Entity,
        *,
        set_to: Mapping[str, float] | None = None,
        remove: Iterable[str] = (),
        validate_only: bool = False,
    ) -> None:
        """Set and remove quotas of one entity, or raise its error."""
        operation = messages.AlterClientQuotasRequest.OpData
        request = messages.AlterClientQuotasRequest(
            entries=[
                messages.AlterClientQuotasRequest.EntryData(
                    entity=[
                        messages.AlterClientQuotasRequest.EntityData(entity_type=kind, entity_name=name)
                        for kind, name in entity.items()
                    ],
                    ops=[
                        *(operation(key=key, value=value, remove=False) for key, value in (set_to or {}).items()),
                        *(operation(key=key, value=0.0, remove=True) for key in remove),
                    ],
                )
            ],
            validate_only=validate_only,
        )
        response = await self.client.send_to_controller(request)
        for entry in response.entries:
            if entry.error_code != ErrorCode.NONE:
                raise error_of(entry.error_code, entry.error_message)


def _entity_order(entity: messages.DescribeClientQuotasResponse.EntityData) -> int:
    return {"user": 0, "client-id": 1}.get(entity.entity_type, 2)
