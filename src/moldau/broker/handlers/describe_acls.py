"""DescribeAcls: list the ACLs that match a filter, grouped by resource pattern."""

from itertools import groupby

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.handlers.acl_fields import check_security, filter_of
from moldau.broker.handlers.contexts import MetadataContext
from moldau.machines.access.acls import AclBinding
from moldau.machines.metadata.acls import matching_acls
from moldau.wire.messages import DescribeAclsRequest, DescribeAclsResponse


async def handle(request: DescribeAclsRequest, context: MetadataContext) -> DescribeAclsResponse:
    """List the ACLs that are in effect on this node."""
    context.authorize(Operation.DESCRIBE, CLUSTER)
    check_security(context)
    selected = filter_of(
        request.resource_type_filter,
        request.resource_name_filter,
        request.pattern_type_filter,
        request.principal_filter,
        request.host_filter,
        request.operation,
        request.permission_type,
    )
    found = matching_acls(context.broker.image.acls.values(), selected)
    return DescribeAclsResponse(
        error_message=None,
        resources=[
            DescribeAclsResponse.DescribeAclsResource(
                resource_type=int(kind),
                resource_name=name,
                pattern_type=int(pattern),
                acls=[_description(acl) for acl in acls],
            )
            for (kind, name, pattern), acls in groupby(found, lambda acl: (acl.kind, acl.name, acl.pattern))
        ],
    )


def _description(acl: AclBinding) -> DescribeAclsResponse.AclDescription:
    return DescribeAclsResponse.AclDescription(
        principal=acl.principal, host=acl.host, operation=int(acl.operation), permission_type=int(acl.permission)
    )
