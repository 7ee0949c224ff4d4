"""CreateAcls: add ACLs to the metadata; each has its own result."""

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.handlers.acl_fields import check_security
from moldau.broker.handlers.contexts import QuorumContext
from moldau.machines.access.acls import AclBinding, PatternType, Permission, ResourceKind, known
from moldau.machines.metadata.settings import RESOURCES_PER_REQUEST_MAX
from moldau.model.errors import InvalidRequest, KafkaError
from moldau.model.ids import UUID_BYTES
from moldau.wire.messages import CreateAclsRequest, CreateAclsResponse

Requested = CreateAclsRequest.AclCreation
Result = CreateAclsResponse.AclCreationResult


async def handle(request: CreateAclsRequest, context: QuorumContext) -> CreateAclsResponse:
    """Respond once the ACLs are committed and in effect on this node."""
    context.authorize(Operation.ALTER, CLUSTER)
    check_security(context)
    if len(request.creations) > RESOURCES_PER_REQUEST_MAX:
        raise InvalidRequest(f"A request may create at most {RESOURCES_PER_REQUEST_MAX} ACLs.")
    wanted = [_binding(each) for each in request.creations]
    randomness = [context.broker.random.randbytes(UUID_BYTES) for _ in wanted]
    created = await context.broker.metadata.write(
        lambda machine: machine.decide_create_acls(wanted, randomness=randomness)
    )
    await context.broker.catch_up_with_metadata()
    for acl, outcome in zip(wanted, created, strict=True):
        if outcome.error:
            context.log_rejection("an ACL", acl.name, outcome.message)
    return CreateAclsResponse(
        results=[Result(error_code=int(each.error), error_message=each.message) for each in created]
    )


def _binding(creation: Requested) -> AclBinding:
    return AclBinding(
        known(ResourceKind, creation.resource_type),
        creation.resource_name,
        known(PatternType, creation.resource_pattern_type),
        creation.principal,
        creation.host,
        known(Operation, creation.operation),
        known(Permission, creation.permission_type),
    )


def error_response(request: CreateAclsRequest, error: KafkaError, version: int) -> CreateAclsResponse:  # noqa: ARG001
    """Return the same error for every ACL."""
    result = Result(error_code=int(error.code), error_message=error.message)
    return CreateAclsResponse(results=[result] * len(request.creations))
