"""Who may do what: the questions every handler asks, and the authoriser that answers them."""

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
    """What somebody wants to do, with Kafka's numbers."""

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
    """What it is done to, with Kafka's numbers."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


@dataclass(frozen=True, slots=True)
class Resource:
    """One thing that can be protected."""

    kind: ResourceKind
    name: str


CLUSTER: Final = Resource(ResourceKind.CLUSTER, "kafka-cluster")

_REFUSALS: Final[dict[ResourceKind, type[KafkaError]]] = {
    ResourceKind.TOPIC: TopicAuthorizationFailed,
    ResourceKind.GROUP: GroupAuthorizationFailed,
    ResourceKind.CLUSTER: ClusterAuthorizationFailed,
    ResourceKind.TRANSACTIONAL_ID: TransactionalIdAuthorizationFailed,
}

# The operations a client may be told about, as Metadata and DescribeCluster answer them (a bit per operation).
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
    """Answers whether a principal may do something."""

    def is_allowed(self, principal: str, operation: Operation, resource: Resource) -> bool: ...


class AllowAll:
    """Without security, everybody may do everything."""

    def is_allowed(self, principal: str, operation: Operation, resource: Resource) -> bool:  # noqa: ARG002
        return True


def refusal(resource: Resource) -> KafkaError:
    return _REFUSALS[resource.kind](f"Not authorized to access {resource.kind.name.lower()} {resource.name}.")
