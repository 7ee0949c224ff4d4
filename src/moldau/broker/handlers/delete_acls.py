"""DeleteAcls: remove the ACLs that match each filter."""

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.handlers.acl_fields import check_security, filter_of
from moldau.broker.handlers.contexts import QuorumContext
from moldau.machines.access.acls import AclBinding
from moldau.machines.metadata.acls import AclsDeleted
from moldau.machines.metadata.settings import RESOURCES_PER_REQUEST_MAX
from moldau.model.errors import InvalidRequest, KafkaError
from moldau.wire.messages import DeleteAclsRequest, DeleteAclsResponse

Result = DeleteAclsResponse.DeleteAclsFilterResult


async def handle(request: DeleteAclsRequest, context: QuorumContext) -> DeleteAclsResponse:
    """Respond once the deletion is committed and in effect on this node."""
    context.authorize(Operation.ALTER, CLUSTER)
    check_security(context)
    if len(request.filters) > RESOURCES_PER_REQUEST_MAX:
        raise InvalidRequest(f"A request may have at most {RESOURCES_PER_REQUEST_MAX} filters.")
    filters = [
        filter_of(
            each.resource_type_filter,
            each.resource_name_filter,
            each.pattern_type_filter,
            each.principal_filter,
            each.host_filter,
            each.operation,
            each.permission_type,
        )
        for each in request.filters
    ]
    deleted = await context.broker.metadata.write(lambda machine: machine.decide_delete_acls(filters))
    await context.broker.catch_up_with_metadata()
    return DeleteAclsResponse(filter_results=[_result(each) for each in deleted])


def _result(outcome: AclsDeleted) -> Result:
    return Result(
        error_code=int(outcome.error),
        error_message=outcome.message,
        matching_acls=[_matching(acl) for acl in outcome.acls],
    )


def _matching(acl: AclBinding) -> DeleteAclsResponse.DeleteAclsMatchingAcl:
    return DeleteAclsResponse.DeleteAclsMatchingAcl(
        error_code=0,
        error_message=None,
        resource_type=int(acl.kind),
        resource_name=acl.name,
        pattern_type=int(acl.pattern),
        principal=acl.principal,
        host=acl.host,
        operation=int(acl.operation),
        permission_type=int(acl.permission),
    )


def error_response(request: DeleteAclsRequest, error: KafkaError, version: int) -> DeleteAclsResponse:  # noqa: ARG001
    """Return the same error for every filter."""
    result = Result(error_code=int(error.code), error_message=error.message, matching_acls=[])
    return DeleteAclsResponse(filter_results=[result] * len(request.filters))
