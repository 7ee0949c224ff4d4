"""The authorizer of Kafka's StandardAuthorizer: super users, then the ACLs of the metadata, then the default.

    super user ──> allowed
    metadata not loaded ──> error: the request may be retried
    deny matches ──> denied;  allow matches ──> allowed
    resource has ACLs, none matches ──> denied;  resource has none ──> allow.everyone.if.no.acl.found

Decisions are cached until the ACLs change, so a repeated check costs one lookup.
"""

from collections.abc import Mapping
from typing import Final

from moldau.broker.access import Client, Operation, Resource, ResourceKind
from moldau.machines.access.acls import ANY_NAME, AclBinding, AclIndex, Verdict
from moldau.machines.metadata.image import MetadataImage
from moldau.model.errors import AuthorizerNotReady

STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
DECISIONS_MAX: Final = 50_000  # cached; names come from clients


class StandardAuthorizer:
    """Decides by super users and ACLs."""

    def __init__(self, super_users: frozenset[str], *, allows_without_acl: bool) -> None:
        self.generation = 0
        self._super_users = super_users
        self._allows_without_acl = allows_without_acl
        self._is_loaded = False
        self._acls: Mapping[bytes, AclBinding] = {}
        self._index = AclIndex()
        self._decisions: dict[tuple[Client, Operation, Resource], bool] = {}

    def follow(self, image: MetadataImage, *, is_caught_up: bool) -> None:
        """Take over the ACLs of the image; those of a partly loaded log decide nothing yet."""
        if image.acls is not self._acls:
            self._update(image.acls)
        if is_caught_up and not self._is_loaded:
            self._is_loaded = True
            self._forget_decisions()

    def _update(self, acls: Mapping[bytes, AclBinding]) -> None:
        removed, added = self._acls.keys() - acls.keys(), acls.keys() - self._acls.keys()
        for acl_id in removed:
            self._index.remove(self._acls[acl_id])
        for acl_id in added:
            self._index.add(acls[acl_id])
        self._acls = acls
        if removed or added:
            self._forget_decisions()

    def _forget_decisions(self) -> None:
        self._decisions.clear()
        self.generation += 1

    def is_allowed(self, client: Client, operation: Operation, resource: Resource) -> bool:
        decision = self._decisions.get((client, operation, resource))
        return self._decide(client, operation, resource) if decision is None else decision

    def _decide(self, client: Client, operation: Operation, resource: Resource) -> bool:
        if client.principal in self._super_users:
            decision = True
        elif not self._is_loaded:
            raise AuthorizerNotReady("The ACLs are not loaded yet; retry.")
        else:
            verdict = self._index.decide(client, operation, resource.kind, resource.name)
            decision = verdict is Verdict.ALLOWED or (verdict is Verdict.NO_ACL and self._allows_without_acl)
        if len(self._decisions) >= DECISIONS_MAX:
            self._decisions.clear()
        self._decisions[client, operation, resource] = decision
        return decision

    def allows_any(self, client: Client, operation: Operation, kind: ResourceKind) -> bool:
        """Whether the operation is allowed on any resource of this kind, existing or not.

        As Kafka does, ask for one name first: this covers super users and the default without ACLs.
        """
        return self.is_allowed(client, operation, Resource(kind, ANY_NAME)) or self._index.allows_any(
            client, operation, kind
        )
