"""Client quotas: limits by user, client id and IP address, altered and described as Kafka does (KIP-546, 599, 612)."""

import ipaddress
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from moldau.machines.decision import Decision, respond
from moldau.machines.metadata.image import MetadataImage, QuotaEntity, quota_entity
from moldau.machines.metadata.records import Record
from moldau.model.errors import ErrorCode, InvalidRequest, KafkaError, PolicyViolation, UnsupportedVersion
from moldau.wire import messages
from moldau.wire.limits import STRING_BYTES_MAX

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
ENTITY_TYPES: Final = (USER, CLIENT_ID, IP)

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

_LARGEST: Final[Mapping[str, int | None]] = {  # None: the value may be a fraction
    PRODUCER_BYTE_RATE: 2**63 - 1,
    CONSUMER_BYTE_RATE: 2**63 - 1,
    REQUEST_PERCENTAGE: None,
    CONTROLLER_MUTATION_RATE: None,
    CONNECTION_CREATION_RATE: 2**31 - 1,
}
_CLIENT_KEYS: Final = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
_IP_KEYS: Final = (CONNECTION_CREATION_RATE,)
_FRACTION_TOLERANCE: Final = 1e-6

ENTITIES_PER_REQUEST_MAX: Final = 5_000


class MatchType(IntEnum):
    """How a filter component matches an entity, by DescribeClientQuotas' number."""

    EXACT = 0
    DEFAULT = 1
    ANY = 2


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """A new value for a key of an entity; None removes it."""

    key: str
    value: float | None


@dataclass(frozen=True, slots=True)
class QuotaAlteration:
    """All changes of one entity, unvalidated: pairs of entity type and name, where None is the default entity."""

    entity: Sequence[tuple[str, str | None]]
    changes: Sequence[QuotaChange]


@dataclass(frozen=True, slots=True)
class QuotaAltered:
    """The result for one entity."""

    entity: Sequence[tuple[str, str | None]]
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


@dataclass(frozen=True, slots=True)
class QuotaFilter:
    """One component of a filter, unvalidated."""

    entity_type: str
    match_type: int
    match: str | None


def quota_record(entity: QuotaEntity, key: str, value: float | None) -> messages.ClientQuotaRecord:
    """The record that sets a quota, or removes it with None."""
    return messages.ClientQuotaRecord(
        entity=[
            messages.ClientQuotaRecord.EntityData(entity_type=entity_type, entity_name=name)
            for entity_type, name in entity
        ],
        key=key,
        value=0.0 if value is None else value,
        remove=value is None,
    )


def decide_alter_client_quotas(
    image: MetadataImage, alterations: Sequence[QuotaAlteration], *, validate_only: bool = False
) -> Decision[Record, list[QuotaAltered]]:
    """Alter the quotas of each entity or reject it; each has its own error."""
    if len(alterations) > ENTITIES_PER_REQUEST_MAX:
        raise PolicyViolation(f"A request may alter the quotas of at most {ENTITIES_PER_REQUEST_MAX} entities.")
    records: list[Record] = []
    outcomes: dict[QuotaEntity, QuotaAltered] = {}
    for alteration in alterations:
        entity = quota_entity(alteration.entity)
        try:
            if entity in outcomes:
                raise InvalidRequest(f"Ignoring duplicate entity {_text(entity)}")
            records.extend(_records(image, entity, alteration))
            outcomes[entity] = QuotaAltered(alteration.entity)
        except KafkaError as error:
            outcomes[entity] = QuotaAltered(alteration.entity, error.code, error.message)
    return respond(list(outcomes.values()), () if validate_only else records)


def _records(image: MetadataImage, entity: QuotaEntity, alteration: QuotaAlteration) -> list[Record]:
    _check_keys_are_unique(entity, alteration.changes)
    keys = _allowed_keys(entity)
    present = image.client_quotas.get(entity, {})
    records: list[Record] = []
    for change in alteration.changes:
        if change.value is not None:
            _check_value(keys, change.key, change.value)
        if change.value != present.get(change.key):
            records.append(quota_record(entity, change.key, change.value))
    return records


def _check_keys_are_unique(entity: QuotaEntity, changes: Sequence[QuotaChange]) -> None:
    seen = set()
    for change in changes:
        if change.key in seen:
            raise InvalidRequest(f"Duplicate quota key {change.key} not updating quota for this entity {_text(entity)}")
        seen.add(change.key)


def _allowed_keys(entity: QuotaEntity) -> tuple[str, ...]:
    """The keys of quotas that an entity may have. Raises for invalid entities."""
    if not entity:
        raise InvalidRequest("Invalid empty client quota entity")
    for entity_type, name in entity:
        if entity_type not in ENTITY_TYPES:
            raise InvalidRequest(f"Unhandled client quota entity type: {entity_type}")
        if name == "":
            raise InvalidRequest(f"Empty {entity_type} not supported")
        if name is not None and len(name.encode()) > STRING_BYTES_MAX:
            raise InvalidRequest(f"The name of a {entity_type} may have at most {STRING_BYTES_MAX} bytes")
    names = dict(entity)
    if len(names) < len(entity):
        raise InvalidRequest("Invalid client quota entity: an entity type appears more than once")
    if IP not in names:
        return _CLIENT_KEYS
    if len(names) > 1:
        raise InvalidRequest("Invalid quota entity combination, IP entity should not be combined with User or ClientId")
    if names[IP] is not None and not is_ip_address(names[IP]):
        raise InvalidRequest(f"{names[IP]} is not a valid IP address; host names are not resolved here.")
    return _IP_KEYS


def is_ip_address(text: str | None) -> bool:
    try:
        ipaddress.ip_address(text or "")
    except ValueError:
        return False
    return True


def _check_value(keys: tuple[str, ...], key: str, value: float) -> None:
    if key not in keys:
        raise InvalidRequest(f"Invalid configuration key {key}")
    if not math.isfinite(value):
        raise InvalidRequest(f"Quota {key} must be a finite number")
    if value <= 0.0:
        raise InvalidRequest(f"Quota {key} must be greater than 0")
    largest = _LARGEST[key]
    if largest is None:
        return
    if value > largest:
        raise InvalidRequest(f"Proposed value for {key} is too large: {value}, at most {largest}.")
    if abs(math.floor(value + _FRACTION_TOLERANCE) - value) > _FRACTION_TOLERANCE:
        raise InvalidRequest(f"{key} cannot be a fractional value.")


def _text(entity: QuotaEntity) -> str:
    return ", ".join(f"{entity_type}={'<default>' if name is None else name}" for entity_type, name in entity)


def describe_client_quotas(
    image: MetadataImage, components: Sequence[QuotaFilter], *, strict: bool
) -> Iterator[tuple[QuotaEntity, Mapping[str, float]]]:
    """Yield the entities that match every component; with `strict`, those that have no other entity type.

    A filter without components matches all entities, unless it is strict: then it matches none.
    """
    wanted = _checked_filter(components)
    for entity, values in image.client_quotas.items():
        if strict and len(entity) != len(wanted):
            continue
        names = dict(entity)
        if all(
            entity_type in names and (each.match_type == MatchType.ANY or names[entity_type] == each.match)
            for entity_type, each in wanted.items()
        ):
            yield entity, values


def _checked_filter(components: Sequence[QuotaFilter]) -> dict[str, QuotaFilter]:
    wanted: dict[str, QuotaFilter] = {}
    for each in components:
        if not each.entity_type:
            raise InvalidRequest("Invalid empty entity type.")
        if each.entity_type in wanted:
            raise InvalidRequest(f"Entity type {each.entity_type} cannot appear more than once in the filter.")
        if each.entity_type not in ENTITY_TYPES:
            raise UnsupportedVersion(f"Unsupported entity type {each.entity_type}")
        _check_match(each)
        wanted[each.entity_type] = each
    if IP in wanted and len(wanted) > 1:
        raise InvalidRequest(
            "Invalid entity filter component combination. IP filter component should not be used with user or "
            "clientId filter component."
        )
    return wanted


def _check_match(component: QuotaFilter) -> None:
    match component.match_type:
        case MatchType.EXACT:
            if component.match is None:
                raise InvalidRequest("Request specified MATCH_TYPE_EXACT, but set match string to null.")
        case MatchType.DEFAULT | MatchType.ANY:
            if component.match is not None:
                kind = "MATCH_TYPE_DEFAULT" if component.match_type == MatchType.DEFAULT else "MATCH_TYPE_SPECIFIED"
                raise InvalidRequest(f"Request specified {kind}, but also specified a match string.")
        case _:
            raise InvalidRequest(f"Unknown match type {component.match_type}")
