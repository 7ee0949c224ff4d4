"""ACLs in the metadata log: created and deleted by decisions, each ACL under an id of its own."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from moldau.machines.access.acls import AclBinding, AclFilter, Operation, PatternType, Permission, ResourceKind, known
from moldau.machines.decision import Decision, respond
from moldau.machines.metadata.image import MetadataImage
from moldau.machines.metadata.records import Record
from moldau.model.errors import ErrorCode, InvalidRequest, KafkaError
from moldau.wire import messages
from moldau.wire.limits import STRING_BYTES_MAX

CLUSTER_NAME: Final = "kafka-cluster"  # the name of the only resource of type CLUSTER


@dataclass(frozen=True, slots=True)
class AclCreated:
    """The result for one requested ACL."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


@dataclass(frozen=True, slots=True)
class AclsDeleted:
    """The result for one filter: the deleted ACLs, or an error."""

    acls: Sequence[AclBinding] = ()
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def acl_of(record: messages.AccessControlEntryRecord) -> AclBinding:
    return AclBinding(
        known(ResourceKind, record.resource_type),
        record.resource_name,
        known(PatternType, record.pattern_type),
        record.principal,
        record.host,
        known(Operation, record.operation),
        known(Permission, record.permission_type),
    )


def acl_record(acl_id: bytes, acl: AclBinding) -> messages.AccessControlEntryRecord:
    return messages.AccessControlEntryRecord(
        id=acl_id,
        resource_type=int(acl.kind),
        resource_name=acl.name,
        pattern_type=int(acl.pattern),
        principal=acl.principal,
        host=acl.host,
        operation=int(acl.operation),
        permission_type=int(acl.permission),
    )


def decide_create_acls(
    image: MetadataImage, wanted: Sequence[AclBinding], *, randomness: Sequence[bytes]
) -> Decision[Record, list[AclCreated]]:
    """Create ACLs; each has its own error. An ACL that exists is not created again. `randomness`: 16 bytes per ACL."""
    existing = set(image.acls.values())
    records: list[Record] = []
    outcomes: list[AclCreated] = []
    for acl, acl_id in zip(wanted, randomness, strict=True):
        try:
            check_new_acl(acl)
        except KafkaError as error:
            outcomes.append(AclCreated(error.code, error.message))
            continue
        if acl not in existing:
            existing.add(acl)
            records.append(acl_record(acl_id, acl))
        outcomes.append(AclCreated())
    return respond(outcomes, records)


def check_new_acl(acl: AclBinding) -> None:
    """Raise `InvalidRequest` for an ACL that only a filter may describe, or that can never match."""
    if acl.kind in (ResourceKind.UNKNOWN, ResourceKind.ANY):
        raise InvalidRequest(f"Invalid resourceType {acl.kind.name}")
    if acl.pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise InvalidRequest(f"Invalid patternType {acl.pattern.name}")
    if acl.operation in (Operation.UNKNOWN, Operation.ANY):
        raise InvalidRequest(f"Invalid operation {acl.operation.name}")
    if acl.permission not in (Permission.ALLOW, Permission.DENY):
        raise InvalidRequest(f"Invalid permissionType {acl.permission.name}")
    if not acl.name:
        raise InvalidRequest("Resource name should not be empty")
    if acl.kind is ResourceKind.CLUSTER and acl.name != CLUSTER_NAME:
        raise InvalidRequest(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if ":" not in acl.principal:
        raise InvalidRequest(
            f"Could not parse principal from `{acl.principal}` (no colon is present separating the principal type "
            "from the principal name)"
        )
    if any(len(text.encode()) > STRING_BYTES_MAX for text in (acl.name, acl.principal, acl.host)):
        raise InvalidRequest(f"Name, principal and host of an ACL are limited to {STRING_BYTES_MAX} bytes each")


def decide_delete_acls(image: MetadataImage, filters: Sequence[AclFilter]) -> Decision[Record, list[AclsDeleted]]:
    """Delete the ACLs that match the filters; each filter has its own error."""
    unwanted: dict[bytes, None] = {}
    outcomes: list[AclsDeleted] = []
    for each in filters:
        try:
            check_filter(each)
        except KafkaError as error:
            outcomes.append(AclsDeleted((), error.code, error.message))
            continue
        found = [(acl_id, acl) for acl_id, acl in image.acls.items() if each.matches(acl)]
        unwanted.update((acl_id, None) for acl_id, _ in found)
        outcomes.append(AclsDeleted([acl for _, acl in found]))
    return respond(outcomes, [messages.RemoveAccessControlEntryRecord(id=acl_id) for acl_id in unwanted])


def check_filter(selected: AclFilter) -> None:
    """Raise `InvalidRequest` for values that this version does not know."""
    if selected.kind is ResourceKind.UNKNOWN or selected.pattern is PatternType.UNKNOWN:
        raise InvalidRequest("Unknown patternFilter.")
    if selected.operation is Operation.UNKNOWN or selected.permission is Permission.UNKNOWN:
        raise InvalidRequest("Unknown entryFilter.")


def matching_acls(acls: Iterable[AclBinding], selected: AclFilter) -> list[AclBinding]:
    """Return the ACLs that match a filter, each once, ordered by resource."""
    check_filter(selected)
    return sorted({acl for acl in acls if selected.matches(acl)})
