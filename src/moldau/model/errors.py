"""Kafka's error codes, and the exceptions that carry one to a client."""

from enum import IntEnum
from typing import ClassVar, Final

MESSAGE_CHARACTERS_MAX: Final = 1000


class ErrorCode(IntEnum):
    """Every error code of the protocol, by Kafka's name."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133


class KafkaError(Exception):
    """Something the client should hear: a wire code and a sentence it can act on."""

    code: ClassVar[ErrorCode] = ErrorCode.UNKNOWN_SERVER_ERROR

    @property
    def message(self) -> str:
        """Of bounded length, because it may repeat a name that a peer made up."""
        text = str(self) or self.code.name.lower().replace("_", " ")
        return text if len(text) <= MESSAGE_CHARACTERS_MAX else text[:MESSAGE_CHARACTERS_MAX] + "…"


class OffsetOutOfRange(KafkaError):
    code = ErrorCode.OFFSET_OUT_OF_RANGE


class CorruptMessage(KafkaError):
    code = ErrorCode.CORRUPT_MESSAGE


class UnknownTopicOrPartition(KafkaError):
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class UnknownTopicId(KafkaError):
    code = ErrorCode.UNKNOWN_TOPIC_ID


class InconsistentTopicId(KafkaError):
    code = ErrorCode.INCONSISTENT_TOPIC_ID


class LeaderNotAvailable(KafkaError):
    code = ErrorCode.LEADER_NOT_AVAILABLE


class NotLeaderOrFollower(KafkaError):
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER


class RequestTimedOut(KafkaError):
    code = ErrorCode.REQUEST_TIMED_OUT


class BrokerNotAvailable(KafkaError):
    code = ErrorCode.BROKER_NOT_AVAILABLE


class MessageTooLarge(KafkaError):
    code = ErrorCode.MESSAGE_TOO_LARGE


class RecordListTooLarge(KafkaError):
    code = ErrorCode.RECORD_LIST_TOO_LARGE


class NotCoordinator(KafkaError):
    code = ErrorCode.NOT_COORDINATOR


class CoordinatorNotAvailable(KafkaError):
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE


class CoordinatorLoadInProgress(KafkaError):
    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


class OffsetMetadataTooLarge(KafkaError):
    code = ErrorCode.OFFSET_METADATA_TOO_LARGE


class IllegalGeneration(KafkaError):
    code = ErrorCode.ILLEGAL_GENERATION


class InconsistentGroupProtocol(KafkaError):
    code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL


class InvalidGroupId(KafkaError):
    code = ErrorCode.INVALID_GROUP_ID


class UnknownMemberId(KafkaError):
    code = ErrorCode.UNKNOWN_MEMBER_ID


class InvalidSessionTimeout(KafkaError):
    code = ErrorCode.INVALID_SESSION_TIMEOUT


class RebalanceInProgress(KafkaError):
    code = ErrorCode.REBALANCE_IN_PROGRESS


class InvalidCommitOffsetSize(KafkaError):
    code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE


class NonEmptyGroup(KafkaError):
    code = ErrorCode.NON_EMPTY_GROUP


class GroupIdNotFound(KafkaError):
    code = ErrorCode.GROUP_ID_NOT_FOUND


class MemberIdRequired(KafkaError):
    code = ErrorCode.MEMBER_ID_REQUIRED


class GroupMaxSizeReached(KafkaError):
    code = ErrorCode.GROUP_MAX_SIZE_REACHED


class FencedInstanceId(KafkaError):
    code = ErrorCode.FENCED_INSTANCE_ID


class GroupSubscribedToTopic(KafkaError):
    code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


class UnstableOffsetCommit(KafkaError):
    code = ErrorCode.UNSTABLE_OFFSET_COMMIT


class FencedMemberEpoch(KafkaError):
    code = ErrorCode.FENCED_MEMBER_EPOCH


class StaleMemberEpoch(KafkaError):
    code = ErrorCode.STALE_MEMBER_EPOCH


class UnreleasedInstanceId(KafkaError):
    code = ErrorCode.UNRELEASED_INSTANCE_ID


class UnsupportedAssignor(KafkaError):
    code = ErrorCode.UNSUPPORTED_ASSIGNOR


class InvalidRegularExpression(KafkaError):
    code = ErrorCode.INVALID_REGULAR_EXPRESSION


class InvalidTopic(KafkaError):
    code = ErrorCode.INVALID_TOPIC_EXCEPTION


class NotEnoughReplicas(KafkaError):
    code = ErrorCode.NOT_ENOUGH_REPLICAS


class NotEnoughReplicasAfterAppend(KafkaError):
    """It is in the log, but fewer are in sync by now than acks=all asks for."""

    code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


class InvalidRequiredAcks(KafkaError):
    code = ErrorCode.INVALID_REQUIRED_ACKS


class TopicAuthorizationFailed(KafkaError):
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class GroupAuthorizationFailed(KafkaError):
    code = ErrorCode.GROUP_AUTHORIZATION_FAILED


class ClusterAuthorizationFailed(KafkaError):
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


class TransactionalIdAuthorizationFailed(KafkaError):
    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


class InvalidTimestamp(KafkaError):
    code = ErrorCode.INVALID_TIMESTAMP


class UnsupportedVersion(KafkaError):
    code = ErrorCode.UNSUPPORTED_VERSION


class TopicAlreadyExists(KafkaError):
    code = ErrorCode.TOPIC_ALREADY_EXISTS


class InvalidPartitions(KafkaError):
    code = ErrorCode.INVALID_PARTITIONS


class InvalidReplicationFactor(KafkaError):
    code = ErrorCode.INVALID_REPLICATION_FACTOR


class InvalidReplicaAssignment(KafkaError):
    code = ErrorCode.INVALID_REPLICA_ASSIGNMENT


class InvalidConfig(KafkaError):
    code = ErrorCode.INVALID_CONFIG


class NotController(KafkaError):
    code = ErrorCode.NOT_CONTROLLER


class InvalidRequest(KafkaError):
    code = ErrorCode.INVALID_REQUEST


class PolicyViolation(KafkaError):
    code = ErrorCode.POLICY_VIOLATION


class OutOfOrderSequence(KafkaError):
    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class DuplicateSequence(KafkaError):
    code = ErrorCode.DUPLICATE_SEQUENCE_NUMBER


class InvalidProducerEpoch(KafkaError):
    code = ErrorCode.INVALID_PRODUCER_EPOCH


class UnknownProducerId(KafkaError):
    code = ErrorCode.UNKNOWN_PRODUCER_ID


class InvalidTxnState(KafkaError):
    code = ErrorCode.INVALID_TXN_STATE


class InvalidProducerIdMapping(KafkaError):
    code = ErrorCode.INVALID_PRODUCER_ID_MAPPING


class InvalidTransactionTimeout(KafkaError):
    code = ErrorCode.INVALID_TRANSACTION_TIMEOUT


class ConcurrentTransactions(KafkaError):
    code = ErrorCode.CONCURRENT_TRANSACTIONS


class TransactionCoordinatorFenced(KafkaError):
    code = ErrorCode.TRANSACTION_COORDINATOR_FENCED


class ProducerFenced(KafkaError):
    code = ErrorCode.PRODUCER_FENCED


class TransactionalIdNotFound(KafkaError):
    code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


class TransactionAbortable(KafkaError):
    code = ErrorCode.TRANSACTION_ABORTABLE


class StorageFailed(KafkaError):
    code = ErrorCode.KAFKA_STORAGE_ERROR


class LogDirNotFound(KafkaError):
    code = ErrorCode.LOG_DIR_NOT_FOUND


class FetchSessionIdNotFound(KafkaError):
    code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND


class InvalidFetchSessionEpoch(KafkaError):
    code = ErrorCode.INVALID_FETCH_SESSION_EPOCH


class FetchSessionTopicIdError(KafkaError):
    code = ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


class FencedLeaderEpoch(KafkaError):
    code = ErrorCode.FENCED_LEADER_EPOCH


class UnknownLeaderEpoch(KafkaError):
    code = ErrorCode.UNKNOWN_LEADER_EPOCH


class UnsupportedCompressionType(KafkaError):
    code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


class StaleBrokerEpoch(KafkaError):
    code = ErrorCode.STALE_BROKER_EPOCH


class OffsetNotAvailable(KafkaError):
    code = ErrorCode.OFFSET_NOT_AVAILABLE


class InvalidRecord(KafkaError):
    code = ErrorCode.INVALID_RECORD


class DuplicateResource(KafkaError):
    code = ErrorCode.DUPLICATE_RESOURCE


class ThrottlingQuotaExceeded(KafkaError):
    code = ErrorCode.THROTTLING_QUOTA_EXCEEDED


class TopicDeletionDisabled(KafkaError):
    code = ErrorCode.TOPIC_DELETION_DISABLED


class BrokerIdNotRegistered(KafkaError):
    code = ErrorCode.BROKER_ID_NOT_REGISTERED


class DuplicateBrokerRegistration(KafkaError):
    code = ErrorCode.DUPLICATE_BROKER_REGISTRATION


class SnapshotNotFound(KafkaError):
    code = ErrorCode.SNAPSHOT_NOT_FOUND


class PositionOutOfRange(KafkaError):
    code = ErrorCode.POSITION_OUT_OF_RANGE


class InconsistentClusterId(KafkaError):
    code = ErrorCode.INCONSISTENT_CLUSTER_ID


class InvalidUpdateVersion(KafkaError):
    code = ErrorCode.INVALID_UPDATE_VERSION


class IneligibleReplica(KafkaError):
    code = ErrorCode.INELIGIBLE_REPLICA


class NoReassignmentInProgress(KafkaError):
    code = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


class ElectionNotNeeded(KafkaError):
    code = ErrorCode.ELECTION_NOT_NEEDED


class PreferredLeaderNotAvailable(KafkaError):
    code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


class EligibleLeadersNotAvailable(KafkaError):
    code = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


class UnknownServerFailure(KafkaError):
    code = ErrorCode.UNKNOWN_SERVER_ERROR
