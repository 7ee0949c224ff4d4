"""Authorization: operations, resources, and the authorizer that handlers consult."""

from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from moldau.model.errors import (
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    KafkaError,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
)

ANONYMOUS: Final = "User:ANONYMOUS"


class Operation(Enum):
    """Operations, with Kafka's numbers."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class ResourceKind(Enum):
    """Kinds of resources, with Kafka's numbers."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource that ACLs protect."""

    kind: ResourceKind
    name: str


CLUSTER: Final = Resource(ResourceKind.CLUSTER, "kafka-cluster")

_ERRORS: Final[dict[ResourceKind, type[KafkaError]]] = {
    ResourceKind.TOPIC: TopicAuthorizationFailed,
    ResourceKind.GROUP: GroupAuthorizationFailed,
    ResourceKind.CLUSTER: ClusterAuthorizationFailed,
    ResourceKind.TRANSACTIONAL_ID: TransactionalIdAuthorizationFailed,
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
    """Decides whether a principal may perform an operation on a resource.

    `generation` changes whenever a decision may change. Fast paths keep a decision while the generation is the same,
    so every change of an ACL takes effect with the next request.
    """

    @property
    def generation(self) -> int: ...

    def is_allowed(self, principal: str, operation: Operation, resource: Resource) -> bool: ...


class AllowAll:
    """Without security, every operation is allowed."""

    generation: Final = 0

    def is_allowed(self, principal: str, operation: Operation, resource: Resource) -> bool:  # noqa: ARG002
        return True


def authorization_error(resource: Resource) -> KafkaError:
    return _ERRORS[resource.kind](f"Not authorized to access {resource.kind.name.lower()} {resource.name}.")
