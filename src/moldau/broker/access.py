"""Authorization: the authorizer that handlers consult, and the errors of what it denies."""

from typing import Final, NamedTuple, Protocol

from moldau.machines.access.acls import Client, Operation, ResourceKind
from moldau.machines.metadata.acls import CLUSTER_NAME
from moldau.machines.metadata.image import MetadataImage
from moldau.model.errors import (
    ClusterAuthorizationFailed,
    DelegationTokenAuthorizationFailed,
    GroupAuthorizationFailed,
    KafkaError,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
)

__all__ = [
    "ANONYMOUS",
    "CLUSTER",
    "CLUSTER_OPERATIONS",
    "GROUP_OPERATIONS",
    "TOPIC_OPERATIONS",
    "AllowAll",
    "Authorizer",
    "Client",
    "Operation",
    "Resource",
    "ResourceKind",
    "authorization_error",
]

ANONYMOUS: Final = "User:ANONYMOUS"


class Resource(NamedTuple):
    """A resource that ACLs protect."""

    kind: ResourceKind
    name: str


CLUSTER: Final = Resource(ResourceKind.CLUSTER, CLUSTER_NAME)

_ERRORS: Final[dict[ResourceKind, type[KafkaError]]] = {
    ResourceKind.TOPIC: TopicAuthorizationFailed,
    ResourceKind.GROUP: GroupAuthorizationFailed,
    ResourceKind.CLUSTER: ClusterAuthorizationFailed,
    ResourceKind.TRANSACTIONAL_ID: TransactionalIdAuthorizationFailed,
    ResourceKind.DELEGATION_TOKEN: DelegationTokenAuthorizationFailed,
    ResourceKind.USER: DelegationTokenAuthorizationFailed,  # users are resources of delegation tokens only
}

# Operations that Metadata and DescribeCluster report to a client (one bit per operation).
TOPIC_OPERATIONS: Final = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
CLUSTER_OPERATIONS: Final = (
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.CLUSTER_ACTION,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
    Operation.IDEMPOTENT_WRITE,
)
GROUP_OPERATIONS: Final = (
    Operation.READ,
    Operation.DELETE,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)


class Authorizer(Protocol):
    """Decides whether a client may perform an operation on a resource.

    `generation` changes whenever a decision may change. Fast paths keep a decision while the generation is the same,
    so every change of an ACL takes effect with the next request.
    """

    @property
    def generation(self) -> int: ...

    def is_allowed(self, client: Client, operation: Operation, resource: Resource) -> bool: ...

    def allows_any(self, client: Client, operation: Operation, kind: ResourceKind) -> bool:
        """Whether the operation is allowed on some resource of a kind."""
        ...

    def follow(self, image: MetadataImage, *, is_caught_up: bool) -> None:
        """Decide by the ACLs of this image from now on; `is_caught_up`: it holds everything that was committed."""
        ...


class AllowAll:
    """Without security, every operation is allowed."""

    generation: Final = 0

    def is_allowed(self, client: Client, operation: Operation, resource: Resource) -> bool:  # noqa: ARG002
        return True

    def allows_any(self, client: Client, operation: Operation, kind: ResourceKind) -> bool:  # noqa: ARG002
        return True

    def follow(self, image: MetadataImage, *, is_caught_up: bool) -> None:
        """ACLs do not matter."""


def authorization_error(resource: Resource) -> KafkaError:
    return _ERRORS[resource.kind](f"Not authorized to access {resource.kind.name.lower()} {resource.name}.")
