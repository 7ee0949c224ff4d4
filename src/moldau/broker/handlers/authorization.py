"""The permissions that each API needs, as Kafka's brokers and controllers check them.

The handlers enforce these rules where they know the resources. This table states them in one place: the reference page
is generated from it, and a test compares it with every handler for each ACL that could matter.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from moldau.broker.access import Operation, ResourceKind
from moldau.model.error_codes import ErrorCode


class Effect(Enum):
    """The outcome without the permission."""

    REJECT_REQUEST = "the request is rejected"
    REJECT_ITEM = "that topic, group or id is rejected"
    LEAVE_OUT = "left out of the response, without an error"


class Permission(NamedTuple):
    """An operation on the resource that the request names; for CLUSTER, on the cluster."""

    operation: Operation
    kind: ResourceKind


@dataclass(frozen=True, slots=True)
class Rule:
    """One of the permissions is needed."""

    any_of: tuple[Permission, ...]
    effect: Effect
    error: ErrorCode = ErrorCode.NONE
    when: str = ""  # the requests that the rule is for; empty for all


_ERRORS: Final = {
    ResourceKind.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceKind.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceKind.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceKind.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceKind.DELEGATION_TOKEN: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    ResourceKind.USER: ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
}

# Conditions of rules, which the test uses as names of request variants
IDEMPOTENT: Final = "without a transactional id"
TRANSACTIONAL: Final = "with a transactional id"
OF_CONSUMER: Final = "from a consumer"
OF_FOLLOWER: Final = "from a follower"
NAMED: Final = "for named topics"
ALL_TOPICS: Final = "for all topics"
CREATING: Final = "for a missing topic, with automatic creation"
BY_NAME: Final = "by name"
OF_GROUP: Final = "for a group"
OF_TRANSACTION: Final = "for a transactional id"
OF_SHARE_PARTITION: Final = "for a share partition"
FROM_BROKER: Final = "from version 4, which brokers send"
FROM_CLIENT: Final = "up to version 3"
ON_CONTROLLER: Final = "on a controller listener"
OF_TOPIC: Final = "for a topic"
OF_METRICS: Final = "for a broker or client metrics"
OF_BROKER: Final = "for a broker, its loggers or client metrics"
FOR_OTHERS: Final = "for a token of another owner"


def _cluster(operation: Operation, when: str = "") -> Rule:
    return _request(operation, ResourceKind.CLUSTER, when)


def _request(operation: Operation, kind: ResourceKind, when: str = "") -> Rule:
    return Rule((Permission(operation, kind),), Effect.REJECT_REQUEST, _ERRORS[kind], when)


def _item(operation: Operation, kind: ResourceKind, when: str = "") -> Rule:
    return Rule((Permission(operation, kind),), Effect.REJECT_ITEM, _ERRORS[kind], when)


def _hidden(operation: Operation, kind: ResourceKind, when: str = "") -> Rule:
    return Rule((Permission(operation, kind),), Effect.LEAVE_OUT, when=when)


def _or_cluster(operation: Operation, rule: Rule) -> Rule:
    """The same rule, to which an operation on the cluster is an alternative."""
    return Rule((Permission(operation, ResourceKind.CLUSTER), *rule.any_of), rule.effect, rule.error, rule.when)


_TOPIC: Final = ResourceKind.TOPIC
_GROUP: Final = ResourceKind.GROUP
_TRANSACTION: Final = ResourceKind.TRANSACTIONAL_ID

_DATA: Final[Mapping[str, tuple[Rule, ...]]] = {
    "Produce": (
        _request(Operation.WRITE, _TRANSACTION, TRANSACTIONAL),
        _item(Operation.WRITE, _TOPIC),
    ),
    "Fetch": (
        Rule(
            (Permission(Operation.CLUSTER_ACTION, ResourceKind.CLUSTER),),
            Effect.REJECT_ITEM,
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            OF_FOLLOWER,
        ),
        _cluster(Operation.CLUSTER_ACTION, ON_CONTROLLER),
        _item(Operation.READ, _TOPIC, OF_CONSUMER),
    ),
    "ListOffsets": (_item(Operation.DESCRIBE, _TOPIC),),
    "OffsetForLeaderEpoch": (_or_cluster(Operation.CLUSTER_ACTION, _item(Operation.DESCRIBE, _TOPIC)),),
    "DeleteRecords": (_item(Operation.DELETE, _TOPIC),),
    "DescribeProducers": (_item(Operation.READ, _TOPIC),),
}

_TOPICS: Final[Mapping[str, tuple[Rule, ...]]] = {
    "Metadata": (
        _item(Operation.DESCRIBE, _TOPIC, NAMED),
        _hidden(Operation.DESCRIBE, _TOPIC, ALL_TOPICS),
        _item(Operation.DESCRIBE, _TOPIC, CREATING),
        _or_cluster(Operation.CREATE, _item(Operation.CREATE, _TOPIC, CREATING)),
    ),
    "DescribeTopicPartitions": (
        _item(Operation.DESCRIBE, _TOPIC, NAMED),
        _hidden(Operation.DESCRIBE, _TOPIC, ALL_TOPICS),
    ),
    "CreateTopics": (_or_cluster(Operation.CREATE, _item(Operation.CREATE, _TOPIC)),),
    "CreatePartitions": (_item(Operation.ALTER, _TOPIC),),
    "DeleteTopics": (
        _or_cluster(Operation.DELETE, _item(Operation.DESCRIBE, _TOPIC, BY_NAME)),
        _or_cluster(Operation.DELETE, _item(Operation.DELETE, _TOPIC)),
    ),
    "DescribeConfigs": (
        _item(Operation.DESCRIBE_CONFIGS, _TOPIC, OF_TOPIC),
        _item(Operation.DESCRIBE_CONFIGS, _GROUP, OF_GROUP),
        _item(Operation.DESCRIBE_CONFIGS, ResourceKind.CLUSTER, OF_BROKER),
    ),
    "AlterConfigs": (
        _item(Operation.ALTER_CONFIGS, _TOPIC, OF_TOPIC),
        _item(Operation.ALTER_CONFIGS, _GROUP, OF_GROUP),
        _item(Operation.ALTER_CONFIGS, ResourceKind.CLUSTER, OF_METRICS),
    ),
    "IncrementalAlterConfigs": (
        _item(Operation.ALTER_CONFIGS, _TOPIC, OF_TOPIC),
        _item(Operation.ALTER_CONFIGS, _GROUP, OF_GROUP),
        _item(Operation.ALTER_CONFIGS, ResourceKind.CLUSTER, OF_BROKER),
    ),
    "ListConfigResources": (_cluster(Operation.DESCRIBE_CONFIGS),),
}

_GROUPS: Final[Mapping[str, tuple[Rule, ...]]] = {
    "FindCoordinator": (
        _item(Operation.DESCRIBE, _GROUP, OF_GROUP),
        _item(Operation.DESCRIBE, _TRANSACTION, OF_TRANSACTION),
        _item(Operation.CLUSTER_ACTION, ResourceKind.CLUSTER, OF_SHARE_PARTITION),
    ),
    "JoinGroup": (_request(Operation.READ, _GROUP),),
    "SyncGroup": (_request(Operation.READ, _GROUP),),
    "Heartbeat": (_request(Operation.READ, _GROUP),),
    "LeaveGroup": (_request(Operation.READ, _GROUP),),
    "OffsetCommit": (_request(Operation.READ, _GROUP), _item(Operation.READ, _TOPIC)),
    "OffsetFetch": (
        _item(Operation.DESCRIBE, _GROUP),
        _item(Operation.DESCRIBE, _TOPIC, NAMED),
        _hidden(Operation.DESCRIBE, _TOPIC, ALL_TOPICS),
    ),
    "OffsetDelete": (_request(Operation.DELETE, _GROUP), _item(Operation.READ, _TOPIC)),
    "DescribeGroups": (_item(Operation.DESCRIBE, _GROUP),),
    "ListGroups": (_or_cluster(Operation.DESCRIBE, _hidden(Operation.DESCRIBE, _GROUP)),),
    "DeleteGroups": (_item(Operation.DELETE, _GROUP),),
    "ConsumerGroupHeartbeat": (_request(Operation.READ, _GROUP), _request(Operation.DESCRIBE, _TOPIC)),
    "ShareFetch": (_request(Operation.READ, _GROUP), _item(Operation.READ, _TOPIC)),
    "ShareAcknowledge": (_request(Operation.READ, _GROUP), _item(Operation.READ, _TOPIC)),
    "ShareGroupHeartbeat": (_request(Operation.READ, _GROUP), _request(Operation.DESCRIBE, _TOPIC)),
    "ShareGroupDescribe": (_item(Operation.DESCRIBE, _GROUP), _item(Operation.DESCRIBE, _TOPIC)),
    "DescribeShareGroupOffsets": (
        _item(Operation.DESCRIBE, _GROUP),
        _item(Operation.DESCRIBE, _TOPIC, NAMED),
        _hidden(Operation.DESCRIBE, _TOPIC, ALL_TOPICS),
    ),
    "AlterShareGroupOffsets": (_request(Operation.READ, _GROUP), _item(Operation.READ, _TOPIC)),
    "DeleteShareGroupOffsets": (_request(Operation.DELETE, _GROUP), _item(Operation.READ, _TOPIC)),
    "ConsumerGroupDescribe": (_item(Operation.DESCRIBE, _GROUP), _item(Operation.DESCRIBE, _TOPIC)),
}

_TRANSACTIONS: Final[Mapping[str, tuple[Rule, ...]]] = {
    "InitProducerId": (
        _request(Operation.WRITE, _TRANSACTION, TRANSACTIONAL),
        Rule(
            (Permission(Operation.IDEMPOTENT_WRITE, ResourceKind.CLUSTER), Permission(Operation.WRITE, _TOPIC)),
            Effect.REJECT_REQUEST,
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            IDEMPOTENT,
        ),
    ),
    "AddPartitionsToTxn": (
        _cluster(Operation.CLUSTER_ACTION, FROM_BROKER),
        _request(Operation.WRITE, _TRANSACTION, FROM_CLIENT),
        _item(Operation.WRITE, _TOPIC, FROM_CLIENT),
    ),
    "AddOffsetsToTxn": (_request(Operation.WRITE, _TRANSACTION), _request(Operation.READ, _GROUP)),
    "TxnOffsetCommit": (
        _request(Operation.WRITE, _TRANSACTION),
        _request(Operation.READ, _GROUP),
        _item(Operation.READ, _TOPIC),
    ),
    "EndTxn": (_request(Operation.WRITE, _TRANSACTION),),
    "WriteTxnMarkers": (_or_cluster(Operation.ALTER, _cluster(Operation.CLUSTER_ACTION)),),
    "DescribeTransactions": (
        _item(Operation.DESCRIBE, _TRANSACTION),
        _hidden(Operation.DESCRIBE, _TOPIC),
    ),
    "ListTransactions": (_hidden(Operation.DESCRIBE, _TRANSACTION),),
}

_CLUSTER: Final[Mapping[str, tuple[Rule, ...]]] = {
    "DescribeCluster": (_cluster(Operation.ALTER, ON_CONTROLLER),),
    "DescribeLogDirs": (_cluster(Operation.DESCRIBE),),
    "AlterReplicaLogDirs": (_cluster(Operation.ALTER),),
    "ElectLeaders": (_cluster(Operation.ALTER),),
    "AlterPartitionReassignments": (_cluster(Operation.ALTER),),
    "ListPartitionReassignments": (_cluster(Operation.DESCRIBE),),
    "UpdateFeatures": (_cluster(Operation.ALTER),),
    "UnregisterBroker": (_cluster(Operation.ALTER),),
    "DescribeQuorum": (_cluster(Operation.DESCRIBE),),
    "AddRaftVoter": (_cluster(Operation.ALTER),),
    "RemoveRaftVoter": (_cluster(Operation.ALTER),),
}

_SECURITY: Final[Mapping[str, tuple[Rule, ...]]] = {
    "ApiVersions": (),
    "SaslHandshake": (),
    "SaslAuthenticate": (),
    "GetTelemetrySubscriptions": (),
    "PushTelemetry": (),
    "DescribeAcls": (_cluster(Operation.DESCRIBE),),
    "CreateAcls": (_cluster(Operation.ALTER),),
    "DeleteAcls": (_cluster(Operation.ALTER),),
    "DescribeClientQuotas": (_cluster(Operation.DESCRIBE_CONFIGS),),
    "AlterClientQuotas": (_cluster(Operation.ALTER_CONFIGS),),
    "DescribeUserScramCredentials": (_cluster(Operation.DESCRIBE),),
    "AlterUserScramCredentials": (_cluster(Operation.ALTER),),
    "CreateDelegationToken": (_request(Operation.CREATE_TOKENS, ResourceKind.USER, FOR_OTHERS),),
    "RenewDelegationToken": (),
    "ExpireDelegationToken": (),
    "DescribeDelegationToken": (
        Rule(
            (
                Permission(Operation.DESCRIBE_TOKENS, ResourceKind.USER),
                Permission(Operation.DESCRIBE, ResourceKind.DELEGATION_TOKEN),
            ),
            Effect.LEAVE_OUT,
            when=FOR_OTHERS,
        ),
    ),
}

_BETWEEN_NODES: Final = (
    "AllocateProducerIds",
    "AlterPartition",
    "AssignReplicasToDirs",
    "BeginQuorumEpoch",
    "BrokerHeartbeat",
    "BrokerRegistration",
    "ControllerRegistration",
    "DeleteShareGroupState",
    "EndQuorumEpoch",
    "Envelope",
    "FetchSnapshot",
    "InitializeShareGroupState",
    "ReadShareGroupState",
    "ReadShareGroupStateSummary",
    "UpdateRaftVoter",
    "Vote",
    "WriteShareGroupState",
)

RULES: Final[Mapping[str, tuple[Rule, ...]]] = {
    **_DATA,
    **_TOPICS,
    **_GROUPS,
    **_TRANSACTIONS,
    **_CLUSTER,
    **_SECURITY,
    **dict.fromkeys(_BETWEEN_NODES, (_cluster(Operation.CLUSTER_ACTION),)),
}
"""The rules of each API by its name, in the order in which they are checked."""
