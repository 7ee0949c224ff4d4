"""Brokers with the StandardAuthorizer, and connections with a principal of their own."""

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pytest
from broker_scene import BROKER, Scene, Talker, on_broker

from moldau.broker.authorizer import STANDARD_AUTHORIZER
from moldau.broker.network.connection import ServedConnection
from moldau.machines.access.acls import AclBinding, AclFilter, Operation, PatternType, Permission, ResourceKind
from moldau.model.ids import Address
from moldau.model.ports import Connection
from moldau.wire import messages as m

ADMIN: Final = "User:admin"
ALICE: Final = "User:alice"
EVERY_ACL: Final = AclFilter()
SECURE: Final = (f"authorizer.class.name={STANDARD_AUTHORIZER}", f"super.users={ADMIN};User:ANONYMOUS")


class Principals:
    """Gives the next connections a principal, as an authenticated listener does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._next: str | None = None
        original = ServedConnection.connected

        def connected(served: ServedConnection, transport: Connection) -> None:
            if self._next is not None:
                served.principal = self._next
            original(served, transport)

        monkeypatch.setattr(ServedConnection, "connected", connected)

    @contextmanager
    def connecting_as(self, principal: str) -> Iterator[None]:
        self._next = principal
        yield
        self._next = None


class AclScene:
    """A broker with an authorizer, and connections of any principal."""

    def __init__(self, scene: Scene, principals: Principals) -> None:
        self.scene = scene
        self.node = scene.node
        self._principals = principals

    async def connect(self, principal: str, address: Address = BROKER) -> Talker:
        with self._principals.connecting_as(principal):
            return await self.scene.connect(address)

    async def allow(self, *acls: AclBinding) -> None:
        """Create ACLs as a super user."""
        talker = await self.connect(ADMIN)
        response = await talker.ask(3, creation(*acls))
        assert [each.error_code for each in response.results] == [0] * len(acls), response
        talker.connection.close()

    async def revoke(self, selected: AclFilter = EVERY_ACL) -> None:
        talker = await self.connect(ADMIN)
        response = await talker.ask(3, deletion(selected))
        assert [each.error_code for each in response.filter_results] == [0], response
        talker.connection.close()


def with_acls(
    script: Callable[[AclScene], Coroutine[Any, Any, None]],
    monkeypatch: pytest.MonkeyPatch,
    *,
    settings: Sequence[str] = (),
) -> None:
    """Run a script against a broker with an authorizer."""
    principals = Principals(monkeypatch)

    async def play(scene: Scene) -> None:
        await script(AclScene(scene, principals))

    on_broker(play, settings=[*SECURE, *settings])


def acl(
    operation: Operation = Operation.READ,
    name: str = "t",
    kind: ResourceKind = ResourceKind.TOPIC,
    permission: Permission = Permission.ALLOW,
    *,
    principal: str = ALICE,
    host: str = "*",
    pattern: PatternType = PatternType.LITERAL,
) -> AclBinding:
    return AclBinding(kind, name, pattern, principal, host, operation, permission)


def creation(*acls: AclBinding) -> m.CreateAclsRequest:
    return m.CreateAclsRequest(
        creations=[
            m.CreateAclsRequest.AclCreation(
                resource_type=int(each.kind),
                resource_name=each.name,
                resource_pattern_type=int(each.pattern),
                principal=each.principal,
                host=each.host,
                operation=int(each.operation),
                permission_type=int(each.permission),
            )
            for each in acls
        ]
    )


def deletion(*filters: AclFilter) -> m.DeleteAclsRequest:
    return m.DeleteAclsRequest(
        filters=[
            m.DeleteAclsRequest.DeleteAclsFilter(
                resource_type_filter=int(each.kind),
                resource_name_filter=each.name,
                pattern_type_filter=int(each.pattern),
                principal_filter=each.principal,
                host_filter=each.host,
                operation=int(each.operation),
                permission_type=int(each.permission),
            )
            for each in filters
        ]
    )


def description(selected: AclFilter = EVERY_ACL) -> m.DescribeAclsRequest:
    return m.DescribeAclsRequest(
        resource_type_filter=int(selected.kind),
        resource_name_filter=selected.name,
        pattern_type_filter=int(selected.pattern),
        principal_filter=selected.principal,
        host_filter=selected.host,
        operation=int(selected.operation),
        permission_type=int(selected.permission),
    )


def described(response: Any) -> list[AclBinding]:
    """The ACLs in a DescribeAcls response."""
    return [
        AclBinding(
            ResourceKind(resource.resource_type),
            resource.resource_name,
            PatternType(resource.pattern_type),
            each.principal,
            each.host,
            Operation(each.operation),
            Permission(each.permission_type),
        )
        for resource in response.resources
        for each in resource.acls
    ]
