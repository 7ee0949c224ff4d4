"""ACLs of any Kafka cluster: create, list and delete them."""

from collections.abc import Iterable, Sequence
from typing import Final

from moldau.client.async_client import AsyncClient
from moldau.client.errors import NO_ACTIVE_CONTROLLER, check, error_of
from moldau.machines.access.acls import AclBinding as AclBinding
from moldau.machines.access.acls import AclFilter as AclFilter
from moldau.machines.access.acls import Operation as Operation
from moldau.machines.access.acls import PatternType as PatternType
from moldau.machines.access.acls import Permission as Permission
from moldau.machines.access.acls import ResourceKind as ResourceKind
from moldau.machines.access.acls import known
from moldau.model.errors import ErrorCode, KafkaError
from moldau.wire.messages import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeClusterRequest,
    MetadataRequest,
)

NOT_SENT: Final = -(1 << 31)  # of a cluster that does not send permitted operations


async def permitted_operations(client: AsyncClient, topics: Iterable[str]) -> dict[str, frozenset[Operation]]:
    """Return the operations that the user of the client may do on topics, which need not exist."""
    wanted = [MetadataRequest.MetadataRequestTopic(name=each) for each in topics]
    request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False, include_topic_authorized_operations=True)
    response = await client.retry(lambda: client.send(request))
    return {each.name or "": _operations(each.topic_authorized_operations) for each in response.topics}


async def permitted_cluster_operations(client: AsyncClient) -> frozenset[Operation]:
    """Return the operations that the user of the client may do on the cluster."""
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    response = await client.retry(lambda: client.send(request))
    check(response.error_code, response.error_message)
    return _operations(response.cluster_authorized_operations)


def _operations(bits: int) -> frozenset[Operation]:
    if bits == NOT_SENT:
        return frozenset()
    return frozenset(each for each in Operation if bits >> each & 1)


class Acls:
    """The ACLs of a cluster."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def create(self, acls: Sequence[AclBinding]) -> list[KafkaError | None]:
        """Create ACLs; return the error of each, None where it exists now."""
        request = CreateAclsRequest(creations=[_creation(each) for each in acls])

        async def attempt() -> CreateAclsResponse:
            response: CreateAclsResponse = await self._client.send_to_controller(request)
            _raise_common_error([(each.error_code, each.error_message) for each in response.results])
            return response

        response = await self._client.retry(attempt, final=NO_ACTIVE_CONTROLLER)
        return [
            None if each.error_code == ErrorCode.NONE else error_of(each.error_code, each.error_message)
            for each in response.results
        ]

    async def delete(self, filters: Sequence[AclFilter]) -> list[AclBinding]:
        """Delete the ACLs that match any of the filters; return them."""
        request = DeleteAclsRequest(filters=[_deletion(each) for each in filters])

        async def attempt() -> DeleteAclsResponse:
            response: DeleteAclsResponse = await self._client.send_to_controller(request)
            for each in response.filter_results:
                check(each.error_code, each.error_message)
            return response

        response = await self._client.retry(attempt, final=NO_ACTIVE_CONTROLLER)
        deleted: dict[AclBinding, None] = {}
        for result in response.filter_results:
            for each in result.matching_acls:
                check(each.error_code, each.error_message)
                deleted[_binding(each, each)] = None
        return list(deleted)

    async def list(self, selected: AclFilter) -> list[AclBinding]:
        """Return the ACLs that match a filter, ordered by resource."""
        request = DescribeAclsRequest(
            resource_type_filter=int(selected.kind),
            resource_name_filter=selected.name,
            pattern_type_filter=int(selected.pattern),
            principal_filter=selected.principal,
            host_filter=selected.host,
            operation=int(selected.operation),
            permission_type=int(selected.permission),
        )

        async def attempt() -> DescribeAclsResponse:
            response: DescribeAclsResponse = await self._client.send(request)
            check(response.error_code, response.error_message)
            return response

        response = await self._client.retry(attempt)
        return sorted(_binding(resource, each) for resource in response.resources for each in resource.acls)


def _raise_common_error(results: Sequence[tuple[int, str | None]]) -> None:
    """Raise an error that concerns the whole request: it is the same for every ACL, and may be retriable."""
    codes = {code for code, _ in results}
    if len(codes) == 1 and not codes & {ErrorCode.NONE, ErrorCode.INVALID_REQUEST}:
        check(*results[0])


def _binding(
    resource: DescribeAclsResponse.DescribeAclsResource | DeleteAclsResponse.DeleteAclsMatchingAcl,
    entry: DescribeAclsResponse.AclDescription | DeleteAclsResponse.DeleteAclsMatchingAcl,
) -> AclBinding:
    return AclBinding(
        known(ResourceKind, resource.resource_type),
        resource.resource_name,
        known(PatternType, resource.pattern_type),
        entry.principal,
        entry.host,
        known(Operation, entry.operation),
        known(Permission, entry.permission_type),
    )


def _creation(acl: AclBinding) -> CreateAclsRequest.AclCreation:
    return CreateAclsRequest.AclCreation(
        resource_type=int(acl.kind),
        resource_name=acl.name,
        resource_pattern_type=int(acl.pattern),
        principal=acl.principal,
        host=acl.host,
        operation=int(acl.operation),
        permission_type=int(acl.permission),
    )


def _deletion(selected: AclFilter) -> DeleteAclsRequest.DeleteAclsFilter:
    return DeleteAclsRequest.DeleteAclsFilter(
        resource_type_filter=int(selected.kind),
        resource_name_filter=selected.name,
        pattern_type_filter=int(selected.pattern),
        principal_filter=selected.principal,
        host_filter=selected.host,
        operation=int(selected.operation),
        permission_type=int(selected.permission),
    )
