"""Exceptions that map to Kafka's error codes."""

from collections.abc import Sequence
from typing import ClassVar, Final, NamedTuple

from moldau.model.error_codes import ErrorCode as ErrorCode

MESSAGE_CHARACTERS_MAX: Final = 1000


class KafkaError(Exception):
    """An error for the client: a wire code and an actionable message."""

    code: ClassVar[ErrorCode] = ErrorCode.UNKNOWN_SERVER_ERROR

    @property
    def message(self) -> str:
        """The message, of bounded length because it may contain names chosen by a peer."""
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
    """The batch is appended, but the ISR has since shrunk below min.insync.replicas."""

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


class RecordError(NamedTuple):
    """Why one record of a batch is invalid (KIP-467)."""

    batch_index: int
    message: str


class RecordsRejected(KafkaError):
    """A rejected batch; names its invalid records where they are known."""

    def __init__(self, message: str = "", record_errors: Sequence[RecordError] = ()) -> None:
        super().__init__(message)
        self.record_errors = record_errors


class InvalidTimestamp(RecordsRejected):
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


class ReplicaNotAvailable(KafkaError):
    code = ErrorCode.REPLICA_NOT_AVAILABLE


class FetchSessionIdNotFound(KafkaError):
    code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND


class InvalidFetchSessionEpoch(KafkaError):
    code = ErrorCode.INVALID_FETCH_SESSION_EPOCH


class FetchSessionTopicIdError(KafkaError):
    code = ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


class FencedLeaderEpoch(KafkaError):
    code = ErrorCode.FENCED_LEADER_EPOCH


class FencedStateEpoch(KafkaError):
    code = ErrorCode.FENCED_STATE_EPOCH


class UnknownLeaderEpoch(KafkaError):
    code = ErrorCode.UNKNOWN_LEADER_EPOCH


class UnsupportedCompressionType(KafkaError):
    code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


class StaleBrokerEpoch(KafkaError):
    code = ErrorCode.STALE_BROKER_EPOCH


class OffsetNotAvailable(KafkaError):
    code = ErrorCode.OFFSET_NOT_AVAILABLE


class InvalidRecord(RecordsRejected):
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


class UnsupportedSaslMechanism(KafkaError):
    code = ErrorCode.UNSUPPORTED_SASL_MECHANISM


class IllegalSaslState(KafkaError):
    code = ErrorCode.ILLEGAL_SASL_STATE


class SaslAuthenticationFailed(KafkaError):
    code = ErrorCode.SASL_AUTHENTICATION_FAILED


class DelegationTokenAuthDisabled(KafkaError):
    code = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED


class DelegationTokenNotFound(KafkaError):
    code = ErrorCode.DELEGATION_TOKEN_NOT_FOUND


class DelegationTokenOwnerMismatch(KafkaError):
    code = ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH


class DelegationTokenRequestNotAllowed(KafkaError):
    code = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


class DelegationTokenAuthorizationFailed(KafkaError):
    code = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED


class DelegationTokenExpired(KafkaError):
    code = ErrorCode.DELEGATION_TOKEN_EXPIRED


class InvalidPrincipalType(KafkaError):
    code = ErrorCode.INVALID_PRINCIPAL_TYPE


class UnknownSubscriptionId(KafkaError):
    code = ErrorCode.UNKNOWN_SUBSCRIPTION_ID


class TelemetryTooLarge(KafkaError):
    code = ErrorCode.TELEMETRY_TOO_LARGE


class UnacceptableCredential(KafkaError):
    code = ErrorCode.UNACCEPTABLE_CREDENTIAL


class ResourceNotFound(KafkaError):
    code = ErrorCode.RESOURCE_NOT_FOUND


class PrincipalDeserializationFailed(KafkaError):
    code = ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE


class AuthorizerNotReady(KafkaError):
    """The ACLs are not loaded yet; Kafka has no code of its own for this."""

    code = ErrorCode.UNKNOWN_SERVER_ERROR


class InvalidRecordState(KafkaError):
    code = ErrorCode.INVALID_RECORD_STATE


class ShareSessionNotFound(KafkaError):
    code = ErrorCode.SHARE_SESSION_NOT_FOUND


class InvalidShareSessionEpoch(KafkaError):
    code = ErrorCode.INVALID_SHARE_SESSION_EPOCH


class ShareSessionLimitReached(KafkaError):
    code = ErrorCode.SHARE_SESSION_LIMIT_REACHED


class SecurityDisabled(KafkaError):
    code = ErrorCode.SECURITY_DISABLED


class UnknownServerFailure(KafkaError):
    code = ErrorCode.UNKNOWN_SERVER_ERROR
