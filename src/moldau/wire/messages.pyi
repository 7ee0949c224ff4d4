"""Every message of the protocol, for type checkers. Written by tools/generate_wire.py; not by hand."""

from collections.abc import Sequence
from typing import Any, ClassVar

class Message:
    API_KEY: ClassVar[int]
    def __eq__(self, other: object) -> bool: ...

class AbortTransactionRecord(Message):
    reason: str | None
    def __init__(
        self,
        *,
        reason: str | None = ...,
    ) -> None: ...

class AccessControlEntryRecord(Message):
    id: bytes
    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int
    def __init__(
        self,
        *,
        id: bytes = ...,
        resource_type: int = ...,
        resource_name: str = ...,
        pattern_type: int = ...,
        principal: str = ...,
        host: str = ...,
        operation: int = ...,
        permission_type: int = ...,
    ) -> None: ...

class AddOffsetsToTxnRequest(Message):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    group_id: str
    def __init__(
        self,
        *,
        transactional_id: str = ...,
        producer_id: int = ...,
        producer_epoch: int = ...,
        group_id: str = ...,
    ) -> None: ...

class AddOffsetsToTxnResponse(Message):
    throttle_time_ms: int
    error_code: int
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
    ) -> None: ...

class AddPartitionsToTxnRequest(Message):
    class AddPartitionsToTxnTransaction(Message):
        transactional_id: str
        producer_id: int
        producer_epoch: int
        verify_only: bool
        topics: Sequence[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic]
        def __init__(
            self,
            *,
            transactional_id: str = ...,
            producer_id: int = ...,
            producer_epoch: int = ...,
            verify_only: bool = ...,
            topics: Sequence[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic] = ...,
        ) -> None: ...

    class AddPartitionsToTxnTopic(Message):
        name: str
        partitions: Sequence[int]
        def __init__(
            self,
            *,
            name: str = ...,
            partitions: Sequence[int] = ...,
        ) -> None: ...

    transactions: Sequence[AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction]
    v3_and_below_transactional_id: str
    v3_and_below_producer_id: int
    v3_and_below_producer_epoch: int
    v3_and_below_topics: Sequence[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic]
    def __init__(
        self,
        *,
        transactions: Sequence[AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction] = ...,
        v3_and_below_transactional_id: str = ...,
        v3_and_below_producer_id: int = ...,
        v3_and_below_producer_epoch: int = ...,
        v3_and_below_topics: Sequence[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic] = ...,
    ) -> None: ...

class AddPartitionsToTxnResponse(Message):
    class AddPartitionsToTxnResult(Message):
        transactional_id: str
        topic_results: Sequence[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult]
        def __init__(
            self,
            *,
            transactional_id: str = ...,
            topic_results: Sequence[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult] = ...,
        ) -> None: ...

    class AddPartitionsToTxnTopicResult(Message):
        name: str
        results_by_partition: Sequence[AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult]
        def __init__(
            self,
            *,
            name: str = ...,
            results_by_partition: Sequence[AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult] = ...,
        ) -> None: ...

    class AddPartitionsToTxnPartitionResult(Message):
        partition_index: int
        partition_error_code: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
            partition_error_code: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    results_by_transaction: Sequence[AddPartitionsToTxnResponse.AddPartitionsToTxnResult]
    results_by_topic_v3_and_below: Sequence[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        results_by_transaction: Sequence[AddPartitionsToTxnResponse.AddPartitionsToTxnResult] = ...,
        results_by_topic_v3_and_below: Sequence[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult] = ...,
    ) -> None: ...

class AddRaftVoterRequest(Message):
    class Listener(Message):
        name: str
        host: str
        port: int
        def __init__(
            self,
            *,
            name: str = ...,
            host: str = ...,
            port: int = ...,
        ) -> None: ...

    cluster_id: str | None
    timeout_ms: int
    voter_id: int
    voter_directory_id: bytes
    listeners: Sequence[AddRaftVoterRequest.Listener]
    ack_when_committed: bool
    def __init__(
        self,
        *,
        cluster_id: str | None = ...,
        timeout_ms: int = ...,
        voter_id: int = ...,
        voter_directory_id: bytes = ...,
        listeners: Sequence[AddRaftVoterRequest.Listener] = ...,
        ack_when_committed: bool = ...,
    ) -> None: ...

class AddRaftVoterResponse(Message):
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        error_message: str | None = ...,
    ) -> None: ...

class AllocateProducerIdsRequest(Message):
    broker_id: int
    broker_epoch: int
    def __init__(
        self,
        *,
        broker_id: int = ...,
        broker_epoch: int = ...,
    ) -> None: ...

class AllocateProducerIdsResponse(Message):
    throttle_time_ms: int
    error_code: int
    producer_id_start: int
    producer_id_len: int
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        producer_id_start: int = ...,
        producer_id_len: int = ...,
    ) -> None: ...

class AlterClientQuotasRequest(Message):
    class EntryData(Message):
        entity: Sequence[AlterClientQuotasRequest.EntityData]
        ops: Sequence[AlterClientQuotasRequest.OpData]
        def __init__(
            self,
            *,
            entity: Sequence[AlterClientQuotasRequest.EntityData] = ...,
            ops: Sequence[AlterClientQuotasRequest.OpData] = ...,
        ) -> None: ...

    class EntityData(Message):
        entity_type: str
        entity_name: str | None
        def __init__(
            self,
            *,
            entity_type: str = ...,
            entity_name: str | None = ...,
        ) -> None: ...

    class OpData(Message):
        key: str
        value: float
        remove: bool
        def __init__(
            self,
            *,
            key: str = ...,
            value: float = ...,
            remove: bool = ...,
        ) -> None: ...

    entries: Sequence[AlterClientQuotasRequest.EntryData]
    validate_only: bool
    def __init__(
        self,
        *,
        entries: Sequence[AlterClientQuotasRequest.EntryData] = ...,
        validate_only: bool = ...,
    ) -> None: ...

class AlterClientQuotasResponse(Message):
    class EntryData(Message):
        error_code: int
        error_message: str | None
        entity: Sequence[AlterClientQuotasResponse.EntityData]
        def __init__(
            self,
            *,
            error_code: int = ...,
            error_message: str | None = ...,
            entity: Sequence[AlterClientQuotasResponse.EntityData] = ...,
        ) -> None: ...

    class EntityData(Message):
        entity_type: str
        entity_name: str | None
        def __init__(
            self,
            *,
            entity_type: str = ...,
            entity_name: str | None = ...,
        ) -> None: ...

    throttle_time_ms: int
    entries: Sequence[AlterClientQuotasResponse.EntryData]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        entries: Sequence[AlterClientQuotasResponse.EntryData] = ...,
    ) -> None: ...

class AlterConfigsRequest(Message):
    class AlterConfigsResource(Message):
        resource_type: int
        resource_name: str
        configs: Sequence[AlterConfigsRequest.AlterableConfig]
        def __init__(
            self,
            *,
            resource_type: int = ...,
            resource_name: str = ...,
            configs: Sequence[AlterConfigsRequest.AlterableConfig] = ...,
        ) -> None: ...

    class AlterableConfig(Message):
        name: str
        value: str | None
        def __init__(
            self,
            *,
            name: str = ...,
            value: str | None = ...,
        ) -> None: ...

    resources: Sequence[AlterConfigsRequest.AlterConfigsResource]
    validate_only: bool
    def __init__(
        self,
        *,
        resources: Sequence[AlterConfigsRequest.AlterConfigsResource] = ...,
        validate_only: bool = ...,
    ) -> None: ...

class AlterConfigsResponse(Message):
    class AlterConfigsResourceResponse(Message):
        error_code: int
        error_message: str | None
        resource_type: int
        resource_name: str
        def __init__(
            self,
            *,
            error_code: int = ...,
            error_message: str | None = ...,
            resource_type: int = ...,
            resource_name: str = ...,
        ) -> None: ...

    throttle_time_ms: int
    responses: Sequence[AlterConfigsResponse.AlterConfigsResourceResponse]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        responses: Sequence[AlterConfigsResponse.AlterConfigsResourceResponse] = ...,
    ) -> None: ...

class AlterPartitionReassignmentsRequest(Message):
    class ReassignableTopic(Message):
        name: str
        partitions: Sequence[AlterPartitionReassignmentsRequest.ReassignablePartition]
        def __init__(
            self,
            *,
            name: str = ...,
            partitions: Sequence[AlterPartitionReassignmentsRequest.ReassignablePartition] = ...,
        ) -> None: ...

    class ReassignablePartition(Message):
        partition_index: int
        replicas: Sequence[int] | None
        def __init__(
            self,
            *,
            partition_index: int = ...,
            replicas: Sequence[int] | None = ...,
        ) -> None: ...

    timeout_ms: int
    allow_replication_factor_change: bool
    topics: Sequence[AlterPartitionReassignmentsRequest.ReassignableTopic]
    def __init__(
        self,
        *,
        timeout_ms: int = ...,
        allow_replication_factor_change: bool = ...,
        topics: Sequence[AlterPartitionReassignmentsRequest.ReassignableTopic] = ...,
    ) -> None: ...

class AlterPartitionReassignmentsResponse(Message):
    class ReassignableTopicResponse(Message):
        name: str
        partitions: Sequence[AlterPartitionReassignmentsResponse.ReassignablePartitionResponse]
        def __init__(
            self,
            *,
            name: str = ...,
            partitions: Sequence[AlterPartitionReassignmentsResponse.ReassignablePartitionResponse] = ...,
        ) -> None: ...

    class ReassignablePartitionResponse(Message):
        partition_index: int
        error_code: int
        error_message: str | None
        def __init__(
            self,
            *,
            partition_index: int = ...,
            error_code: int = ...,
            error_message: str | None = ...,
        ) -> None: ...

    throttle_time_ms: int
    allow_replication_factor_change: bool
    error_code: int
    error_message: str | None
    responses: Sequence[AlterPartitionReassignmentsResponse.ReassignableTopicResponse]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        allow_replication_factor_change: bool = ...,
        error_code: int = ...,
        error_message: str | None = ...,
        responses: Sequence[AlterPartitionReassignmentsResponse.ReassignableTopicResponse] = ...,
    ) -> None: ...

class AlterPartitionRequest(Message):
    class TopicData(Message):
        topic_id: bytes
        partitions: Sequence[AlterPartitionRequest.PartitionData]
        def __init__(
            self,
            *,
            topic_id: bytes = ...,
            partitions: Sequence[AlterPartitionRequest.PartitionData] = ...,
        ) -> None: ...

    class PartitionData(Message):
        partition_index: int
        leader_epoch: int
        new_isr_with_epochs: Sequence[AlterPartitionRequest.BrokerState]
        new_isr: Sequence[int]
        leader_recovery_state: int
        partition_epoch: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
            leader_epoch: int = ...,
            new_isr_with_epochs: Sequence[AlterPartitionRequest.BrokerState] = ...,
            new_isr: Sequence[int] = ...,
            leader_recovery_state: int = ...,
            partition_epoch: int = ...,
        ) -> None: ...

    class BrokerState(Message):
        broker_id: int
        broker_epoch: int
        def __init__(
            self,
            *,
            broker_id: int = ...,
            broker_epoch: int = ...,
        ) -> None: ...

    broker_id: int
    broker_epoch: int
    topics: Sequence[AlterPartitionRequest.TopicData]
    def __init__(
        self,
        *,
        broker_id: int = ...,
        broker_epoch: int = ...,
        topics: Sequence[AlterPartitionRequest.TopicData] = ...,
    ) -> None: ...

class AlterPartitionResponse(Message):
    class TopicData(Message):
        topic_id: bytes
        partitions: Sequence[AlterPartitionResponse.PartitionData]
        def __init__(
            self,
            *,
            topic_id: bytes = ...,
            partitions: Sequence[AlterPartitionResponse.PartitionData] = ...,
        ) -> None: ...

    class PartitionData(Message):
        partition_index: int
        error_code: int
        leader_id: int
        leader_epoch: int
        isr: Sequence[int]
        leader_recovery_state: int
        partition_epoch: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
            error_code: int = ...,
            leader_id: int = ...,
            leader_epoch: int = ...,
            isr: Sequence[int] = ...,
            leader_recovery_state: int = ...,
            partition_epoch: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    topics: Sequence[AlterPartitionResponse.TopicData]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        topics: Sequence[AlterPartitionResponse.TopicData] = ...,
    ) -> None: ...

class AlterReplicaLogDirsRequest(Message):
    class AlterReplicaLogDir(Message):
        path: str
        topics: Sequence[AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic]
        def __init__(
            self,
            *,
            path: str = ...,
            topics: Sequence[AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic] = ...,
        ) -> None: ...

    class AlterReplicaLogDirTopic(Message):
        name: str
        partitions: Sequence[int]
        def __init__(
            self,
            *,
            name: str = ...,
            partitions: Sequence[int] = ...,
        ) -> None: ...

    dirs: Sequence[AlterReplicaLogDirsRequest.AlterReplicaLogDir]
    def __init__(
        self,
        *,
        dirs: Sequence[AlterReplicaLogDirsRequest.AlterReplicaLogDir] = ...,
    ) -> None: ...

class AlterReplicaLogDirsResponse(Message):
    class AlterReplicaLogDirTopicResult(Message):
        topic_name: str
        partitions: Sequence[AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult]
        def __init__(
            self,
            *,
            topic_name: str = ...,
            partitions: Sequence[AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult] = ...,
        ) -> None: ...

    class AlterReplicaLogDirPartitionResult(Message):
        partition_index: int
        error_code: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
            error_code: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    results: Sequence[AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        results: Sequence[AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult] = ...,
    ) -> None: ...

class AlterShareGroupOffsetsRequest(Message):
    class AlterShareGroupOffsetsRequestTopic(Message):
        topic_name: str
        partitions: Sequence[AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestPartition]
        def __init__(
            self,
            *,
            topic_name: str = ...,
            partitions: Sequence[AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestPartition] = ...,
        ) -> None: ...

    class AlterShareGroupOffsetsRequestPartition(Message):
        partition_index: int
        start_offset: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
            start_offset: int = ...,
        ) -> None: ...

    group_id: str
    topics: Sequence[AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestTopic]
    def __init__(
        self,
        *,
        group_id: str = ...,
        topics: Sequence[AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestTopic] = ...,
    ) -> None: ...

class AlterShareGroupOffsetsResponse(Message):
    class AlterShareGroupOffsetsResponseTopic(Message):
        topic_name: str
        topic_id: bytes
        partitions: Sequence[AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponsePartition]
        def __init__(
            self,
            *,
            topic_name: str = ...,
            topic_id: bytes = ...,
            partitions: Sequence[AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponsePartition] = ...,
        ) -> None: ...

    class AlterShareGroupOffsetsResponsePartition(Message):
        partition_index: int
        error_code: int
        error_message: str | None
        def __init__(
            self,
            *,
            partition_index: int = ...,
            error_code: int = ...,
            error_message: str | None = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    error_message: str | None
    responses: Sequence[AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponseTopic]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        error_message: str | None = ...,
        responses: Sequence[AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponseTopic] = ...,
    ) -> None: ...

class AlterUserScramCredentialsRequest(Message):
    class ScramCredentialDeletion(Message):
        name: str
        mechanism: int
        def __init__(
            self,
            *,
            name: str = ...,
            mechanism: int = ...,
        ) -> None: ...

    class ScramCredentialUpsertion(Message):
        name: str
        mechanism: int
        iterations: int
        salt: bytes
        salted_password: bytes
        def __init__(
            self,
            *,
            name: str = ...,
            mechanism: int = ...,
            iterations: int = ...,
            salt: bytes = ...,
            salted_password: bytes = ...,
        ) -> None: ...

    deletions: Sequence[AlterUserScramCredentialsRequest.ScramCredentialDeletion]
    upsertions: Sequence[AlterUserScramCredentialsRequest.ScramCredentialUpsertion]
    def __init__(
        self,
        *,
        deletions: Sequence[AlterUserScramCredentialsRequest.ScramCredentialDeletion] = ...,
        upsertions: Sequence[AlterUserScramCredentialsRequest.ScramCredentialUpsertion] = ...,
    ) -> None: ...

class AlterUserScramCredentialsResponse(Message):
    class AlterUserScramCredentialsResult(Message):
        user: str
        error_code: int
        error_message: str | None
        def __init__(
            self,
            *,
            user: str = ...,
            error_code: int = ...,
            error_message: str | None = ...,
        ) -> None: ...

    throttle_time_ms: int
    results: Sequence[AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        results: Sequence[AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult] = ...,
    ) -> None: ...

class ApiVersionsRequest(Message):
    client_software_name: str
    client_software_version: str
    def __init__(
        self,
        *,
        client_software_name: str = ...,
        client_software_version: str = ...,
    ) -> None: ...

class ApiVersionsResponse(Message):
    class ApiVersion(Message):
        api_key: int
        min_version: int
        max_version: int
        def __init__(
            self,
            *,
            api_key: int = ...,
            min_version: int = ...,
            max_version: int = ...,
        ) -> None: ...

    class SupportedFeatureKey(Message):
        name: str
        min_version: int
        max_version: int
        def __init__(
            self,
            *,
            name: str = ...,
            min_version: int = ...,
            max_version: int = ...,
        ) -> None: ...

    class FinalizedFeatureKey(Message):
        name: str
        max_version_level: int
        min_version_level: int
        def __init__(
            self,
            *,
            name: str = ...,
            max_version_level: int = ...,
            min_version_level: int = ...,
        ) -> None: ...

    error_code: int
    api_keys: Sequence[ApiVersionsResponse.ApiVersion]
    throttle_time_ms: int
    supported_features: Sequence[ApiVersionsResponse.SupportedFeatureKey]
    finalized_features_epoch: int
    finalized_features: Sequence[ApiVersionsResponse.FinalizedFeatureKey]
    zk_migration_ready: bool
    def __init__(
        self,
        *,
        error_code: int = ...,
        api_keys: Sequence[ApiVersionsResponse.ApiVersion] = ...,
        throttle_time_ms: int = ...,
        supported_features: Sequence[ApiVersionsResponse.SupportedFeatureKey] = ...,
        finalized_features_epoch: int = ...,
        finalized_features: Sequence[ApiVersionsResponse.FinalizedFeatureKey] = ...,
        zk_migration_ready: bool = ...,
    ) -> None: ...

class AssignReplicasToDirsRequest(Message):
    class DirectoryData(Message):
        id_: bytes
        topics: Sequence[AssignReplicasToDirsRequest.TopicData]
        def __init__(
            self,
            *,
            id_: bytes = ...,
            topics: Sequence[AssignReplicasToDirsRequest.TopicData] = ...,
        ) -> None: ...

    class TopicData(Message):
        topic_id: bytes
        partitions: Sequence[AssignReplicasToDirsRequest.PartitionData]
        def __init__(
            self,
            *,
            topic_id: bytes = ...,
            partitions: Sequence[AssignReplicasToDirsRequest.PartitionData] = ...,
        ) -> None: ...

    class PartitionData(Message):
        partition_index: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
        ) -> None: ...

    broker_id: int
    broker_epoch: int
    directories: Sequence[AssignReplicasToDirsRequest.DirectoryData]
    def __init__(
        self,
        *,
        broker_id: int = ...,
        broker_epoch: int = ...,
        directories: Sequence[AssignReplicasToDirsRequest.DirectoryData] = ...,
    ) -> None: ...

class AssignReplicasToDirsResponse(Message):
    class DirectoryData(Message):
        id_: bytes
        topics: Sequence[AssignReplicasToDirsResponse.TopicData]
        def __init__(
            self,
            *,
            id_: bytes = ...,
            topics: Sequence[AssignReplicasToDirsResponse.TopicData] = ...,
        ) -> None: ...

    class TopicData(Message):
        topic_id: bytes
        partitions: Sequence[AssignReplicasToDirsResponse.PartitionData]
        def __init__(
            self,
            *,
            topic_id: bytes = ...,
            partitions: Sequence[AssignReplicasToDirsResponse.PartitionData] = ...,
        ) -> None: ...

    class PartitionData(Message):
        partition_index: int
        error_code: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
            error_code: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    directories: Sequence[AssignReplicasToDirsResponse.DirectoryData]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        directories: Sequence[AssignReplicasToDirsResponse.DirectoryData] = ...,
    ) -> None: ...

class BeginQuorumEpochRequest(Message):
    class TopicData(Message):
        topic_name: str
        partitions: Sequence[BeginQuorumEpochRequest.PartitionData]
        def __init__(
            self,
            *,
            topic_name: str = ...,
            partitions: Sequence[BeginQuorumEpochRequest.PartitionData] = ...,
        ) -> None: ...

    class PartitionData(Message):
        partition_index: int
        voter_directory_id: bytes
        leader_id: int
        leader_epoch: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
            voter_directory_id: bytes = ...,
            leader_id: int = ...,
            leader_epoch: int = ...,
        ) -> None: ...

    class LeaderEndpoint(Message):
        name: str
        host: str
        port: int
        def __init__(
            self,
            *,
            name: str = ...,
            host: str = ...,
            port: int = ...,
        ) -> None: ...

    cluster_id: str | None
    voter_id: int
    topics: Sequence[BeginQuorumEpochRequest.TopicData]
    leader_endpoints: Sequence[BeginQuorumEpochRequest.LeaderEndpoint]
    def __init__(
        self,
        *,
        cluster_id: str | None = ...,
        voter_id: int = ...,
        topics: Sequence[BeginQuorumEpochRequest.TopicData] = ...,
        leader_endpoints: Sequence[BeginQuorumEpochRequest.LeaderEndpoint] = ...,
    ) -> None: ...

class BeginQuorumEpochResponse(Message):
    class TopicData(Message):
        topic_name: str
        partitions: Sequence[BeginQuorumEpochResponse.PartitionData]
        def __init__(
            self,
            *,
            topic_name: str = ...,
            partitions: Sequence[BeginQuorumEpochResponse.PartitionData] = ...,
        ) -> None: ...

    class PartitionData(Message):
        partition_index: int
        error_code: int
        leader_id: int
        leader_epoch: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
            error_code: int = ...,
            leader_id: int = ...,
            leader_epoch: int = ...,
        ) -> None: ...

    class NodeEndpoint(Message):
        node_id: int
        host: str
        port: int
        def __init__(
            self,
            *,
            node_id: int = ...,
            host: str = ...,
            port: int = ...,
        ) -> None: ...

    error_code: int
    topics: Sequence[BeginQuorumEpochResponse.TopicData]
    node_endpoints: Sequence[BeginQuorumEpochResponse.NodeEndpoint]
    def __init__(
        self,
        *,
        error_code: int = ...,
        topics: Sequence[BeginQuorumEpochResponse.TopicData] = ...,
        node_endpoints: Sequence[BeginQuorumEpochResponse.NodeEndpoint] = ...,
    ) -> None: ...

class BeginTransactionRecord(Message):
    name: str | None
    def __init__(
        self,
        *,
        name: str | None = ...,
    ) -> None: ...

class BrokerHeartbeatRequest(Message):
    broker_id: int
    broker_epoch: int
    current_metadata_offset: int
    want_fence: bool
    want_shut_down: bool
    offline_log_dirs: Sequence[bytes]
    cordoned_log_dirs: Sequence[bytes] | None
    def __init__(
        self,
        *,
        broker_id: int = ...,
        broker_epoch: int = ...,
        current_metadata_offset: int = ...,
        want_fence: bool = ...,
        want_shut_down: bool = ...,
        offline_log_dirs: Sequence[bytes] = ...,
        cordoned_log_dirs: Sequence[bytes] | None = ...,
    ) -> None: ...

class BrokerHeartbeatResponse(Message):
    throttle_time_ms: int
    error_code: int
    is_caught_up: bool
    is_fenced: bool
    should_shut_down: bool
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        is_caught_up: bool = ...,
        is_fenced: bool = ...,
        should_shut_down: bool = ...,
    ) -> None: ...

class BrokerRegistrationChangeRecord(Message):
    broker_id: int
    broker_epoch: int
    fenced: int
    in_controlled_shutdown: int
    log_dirs: Sequence[bytes]
    cordoned_log_dirs: Sequence[bytes] | None
    def __init__(
        self,
        *,
        broker_id: int = ...,
        broker_epoch: int = ...,
        fenced: int = ...,
        in_controlled_shutdown: int = ...,
        log_dirs: Sequence[bytes] = ...,
        cordoned_log_dirs: Sequence[bytes] | None = ...,
    ) -> None: ...

class BrokerRegistrationRequest(Message):
    class Listener(Message):
        name: str
        host: str
        port: int
        security_protocol: int
        def __init__(
            self,
            *,
            name: str = ...,
            host: str = ...,
            port: int = ...,
            security_protocol: int = ...,
        ) -> None: ...

    class Feature(Message):
        name: str
        min_supported_version: int
        max_supported_version: int
        def __init__(
            self,
            *,
            name: str = ...,
            min_supported_version: int = ...,
            max_supported_version: int = ...,
        ) -> None: ...

    broker_id: int
    cluster_id: str
    incarnation_id: bytes
    listeners: Sequence[BrokerRegistrationRequest.Listener]
    features: Sequence[BrokerRegistrationRequest.Feature]
    rack: str | None
    is_migrating_zk_broker: bool
    log_dirs: Sequence[bytes]
    previous_broker_epoch: int
    def __init__(
        self,
        *,
        broker_id: int = ...,
        cluster_id: str = ...,
        incarnation_id: bytes = ...,
        listeners: Sequence[BrokerRegistrationRequest.Listener] = ...,
        features: Sequence[BrokerRegistrationRequest.Feature] = ...,
        rack: str | None = ...,
        is_migrating_zk_broker: bool = ...,
        log_dirs: Sequence[bytes] = ...,
        previous_broker_epoch: int = ...,
    ) -> None: ...

class BrokerRegistrationResponse(Message):
    throttle_time_ms: int
    error_code: int
    broker_epoch: int
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        broker_epoch: int = ...,
    ) -> None: ...

class ClearElrRecord(Message):
    topic_name: str
    def __init__(
        self,
        *,
        topic_name: str = ...,
    ) -> None: ...

class ClientQuotaRecord(Message):
    class EntityData(Message):
        entity_type: str
        entity_name: str | None
        def __init__(
            self,
            *,
            entity_type: str = ...,
            entity_name: str | None = ...,
        ) -> None: ...

    entity: Sequence[ClientQuotaRecord.EntityData]
    key: str
    value: float
    remove: bool
    def __init__(
        self,
        *,
        entity: Sequence[ClientQuotaRecord.EntityData] = ...,
        key: str = ...,
        value: float = ...,
        remove: bool = ...,
    ) -> None: ...

class ConfigRecord(Message):
    resource_type: int
    resource_name: str
    name: str
    value: str | None
    def __init__(
        self,
        *,
        resource_type: int = ...,
        resource_name: str = ...,
        name: str = ...,
        value: str | None = ...,
    ) -> None: ...

class ConsumerGroupCurrentMemberAssignmentKey(Message):
    group_id: str
    member_id: str
    def __init__(
        self,
        *,
        group_id: str = ...,
        member_id: str = ...,
    ) -> None: ...

class ConsumerGroupCurrentMemberAssignmentValue(Message):
    class TopicPartitions(Message):
        topic_id: bytes
        partitions: Sequence[int]
        assignment_epochs: Sequence[int] | None
        def __init__(
            self,
            *,
            topic_id: bytes = ...,
            partitions: Sequence[int] = ...,
            assignment_epochs: Sequence[int] | None = ...,
        ) -> None: ...

    member_epoch: int
    previous_member_epoch: int
    state: int
    assigned_partitions: Sequence[ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions]
    partitions_pending_revocation: Sequence[ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions]
    def __init__(
        self,
        *,
        member_epoch: int = ...,
        previous_member_epoch: int = ...,
        state: int = ...,
        assigned_partitions: Sequence[ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions] = ...,
        partitions_pending_revocation: Sequence[ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions] = ...,
    ) -> None: ...

class ConsumerGroupDescribeRequest(Message):
    group_ids: Sequence[str]
    include_authorized_operations: bool
    def __init__(
        self,
        *,
        group_ids: Sequence[str] = ...,
        include_authorized_operations: bool = ...,
    ) -> None: ...

class ConsumerGroupDescribeResponse(Message):
    class DescribedGroup(Message):
        error_code: int
        error_message: str | None
        group_id: str
        group_state: str
        group_epoch: int
        assignment_epoch: int
        assignor_name: str
        members: Sequence[ConsumerGroupDescribeResponse.Member]
        authorized_operations: int
        def __init__(
            self,
            *,
            error_code: int = ...,
            error_message: str | None = ...,
            group_id: str = ...,
            group_state: str = ...,
            group_epoch: int = ...,
            assignment_epoch: int = ...,
            assignor_name: str = ...,
            members: Sequence[ConsumerGroupDescribeResponse.Member] = ...,
            authorized_operations: int = ...,
        ) -> None: ...

    class Member(Message):
        member_id: str
        instance_id: str | None
        rack_id: str | None
        member_epoch: int
        client_id: str
        client_host: str
        subscribed_topic_names: Sequence[str]
        subscribed_topic_regex: str | None
        assignment: ConsumerGroupDescribeResponse.Assignment
        target_assignment: ConsumerGroupDescribeResponse.Assignment
        member_type: int
        def __init__(
            self,
            *,
            member_id: str = ...,
            instance_id: str | None = ...,
            rack_id: str | None = ...,
            member_epoch: int = ...,
            client_id: str = ...,
            client_host: str = ...,
            subscribed_topic_names: Sequence[str] = ...,
            subscribed_topic_regex: str | None = ...,
            assignment: ConsumerGroupDescribeResponse.Assignment = ...,
            target_assignment: ConsumerGroupDescribeResponse.Assignment = ...,
            member_type: int = ...,
        ) -> None: ...

    class Assignment(Message):
        topic_partitions: Sequence[ConsumerGroupDescribeResponse.TopicPartitions]
        def __init__(
            self,
            *,
            topic_partitions: Sequence[ConsumerGroupDescribeResponse.TopicPartitions] = ...,
        ) -> None: ...

    class TopicPartitions(Message):
        topic_id: bytes
        topic_name: str
        partitions: Sequence[int]
        def __init__(
            self,
            *,
            topic_id: bytes = ...,
            topic_name: str = ...,
            partitions: Sequence[int] = ...,
        ) -> None: ...

    throttle_time_ms: int
    groups: Sequence[ConsumerGroupDescribeResponse.DescribedGroup]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        groups: Sequence[ConsumerGroupDescribeResponse.DescribedGroup] = ...,
    ) -> None: ...

class ConsumerGroupHeartbeatRequest(Message):
    class TopicPartitions(Message):
        topic_id: bytes
        partitions: Sequence[int]
        def __init__(
            self,
            *,
            topic_id: bytes = ...,
            partitions: Sequence[int] = ...,
        ) -> None: ...

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None
    rack_id: str | None
    rebalance_timeout_ms: int
    subscribed_topic_names: Sequence[str] | None
    subscribed_topic_regex: str | None
    server_assignor: str | None
    topic_partitions: Sequence[ConsumerGroupHeartbeatRequest.TopicPartitions] | None
    def __init__(
        self,
        *,
        group_id: str = ...,
        member_id: str = ...,
        member_epoch: int = ...,
        instance_id: str | None = ...,
        rack_id: str | None = ...,
        rebalance_timeout_ms: int = ...,
        subscribed_topic_names: Sequence[str] | None = ...,
        subscribed_topic_regex: str | None = ...,
        server_assignor: str | None = ...,
        topic_partitions: Sequence[ConsumerGroupHeartbeatRequest.TopicPartitions] | None = ...,
    ) -> None: ...

class ConsumerGroupHeartbeatResponse(Message):
    class Assignment(Message):
        topic_partitions: Sequence[ConsumerGroupHeartbeatResponse.TopicPartitions]
        def __init__(
            self,
            *,
            topic_partitions: Sequence[ConsumerGroupHeartbeatResponse.TopicPartitions] = ...,
        ) -> None: ...

    class TopicPartitions(Message):
        topic_id: bytes
        partitions: Sequence[int]
        def __init__(
            self,
            *,
            topic_id: bytes = ...,
            partitions: Sequence[int] = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    error_message: str | None
    member_id: str | None
    member_epoch: int
    heartbeat_interval_ms: int
    assignment: ConsumerGroupHeartbeatResponse.Assignment | None
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        error_message: str | None = ...,
        member_id: str | None = ...,
        member_epoch: int = ...,
        heartbeat_interval_ms: int = ...,
        assignment: ConsumerGroupHeartbeatResponse.Assignment | None = ...,
    ) -> None: ...

class ConsumerGroupMemberMetadataKey(Message):
    group_id: str
    member_id: str
    def __init__(
        self,
        *,
        group_id: str = ...,
        member_id: str = ...,
    ) -> None: ...

class ConsumerGroupMemberMetadataValue(Message):
    class ClassicMemberMetadata(Message):
        session_timeout_ms: int
        supported_protocols: Sequence[ConsumerGroupMemberMetadataValue.ClassicProtocol]
        def __init__(
            self,
            *,
            session_timeout_ms: int = ...,
            supported_protocols: Sequence[ConsumerGroupMemberMetadataValue.ClassicProtocol] = ...,
        ) -> None: ...

    class ClassicProtocol(Message):
        name: str
        metadata: bytes
        def __init__(
            self,
            *,
            name: str = ...,
            metadata: bytes = ...,
        ) -> None: ...

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: Sequence[str]
    subscribed_topic_regex: str | None
    rebalance_timeout_ms: int
    server_assignor: str | None
    classic_member_metadata: ConsumerGroupMemberMetadataValue.ClassicMemberMetadata | None
    def __init__(
        self,
        *,
        instance_id: str | None = ...,
        rack_id: str | None = ...,
        client_id: str = ...,
        client_host: str = ...,
        subscribed_topic_names: Sequence[str] = ...,
        subscribed_topic_regex: str | None = ...,
        rebalance_timeout_ms: int = ...,
        server_assignor: str | None = ...,
        classic_member_metadata: ConsumerGroupMemberMetadataValue.ClassicMemberMetadata | None = ...,
    ) -> None: ...

class ConsumerGroupMetadataKey(Message):
    group_id: str
    def __init__(
        self,
        *,
        group_id: str = ...,
    ) -> None: ...

class ConsumerGroupMetadataValue(Message):
    epoch: int
    metadata_hash: int
    creation_time_ms: int
    def __init__(
        self,
        *,
        epoch: int = ...,
        metadata_hash: int = ...,
        creation_time_ms: int = ...,
    ) -> None: ...

class ConsumerGroupPartitionMetadataKey(Message):
    group_id: str
    def __init__(
        self,
        *,
        group_id: str = ...,
    ) -> None: ...

class ConsumerGroupPartitionMetadataValue(Message):
    class TopicMetadata(Message):
        topic_id: bytes
        topic_name: str
        num_partitions: int
        partition_racks: Sequence[ConsumerGroupPartitionMetadataValue.PartitionMetadata]
        def __init__(
            self,
            *,
            topic_id: bytes = ...,
            topic_name: str = ...,
            num_partitions: int = ...,
            partition_racks: Sequence[ConsumerGroupPartitionMetadataValue.PartitionMetadata] = ...,
        ) -> None: ...

    class PartitionMetadata(Message):
        partition: int
        racks: Sequence[str]
        def __init__(
            self,
            *,
            partition: int = ...,
            racks: Sequence[str] = ...,
        ) -> None: ...

    epoch: int
    topics: Sequence[ConsumerGroupPartitionMetadataValue.TopicMetadata]
    def __init__(
        self,
        *,
        epoch: int = ...,
        topics: Sequence[ConsumerGroupPartitionMetadataValue.TopicMetadata] = ...,
    ) -> None: ...

class ConsumerGroupRegularExpressionKey(Message):
    group_id: str
    regular_expression: str
    def __init__(
        self,
        *,
        group_id: str = ...,
        regular_expression: str = ...,
    ) -> None: ...

class ConsumerGroupRegularExpressionValue(Message):
    topics: Sequence[str]
    version: int
    timestamp: int
    def __init__(
        self,
        *,
        topics: Sequence[str] = ...,
        version: int = ...,
        timestamp: int = ...,
    ) -> None: ...

class ConsumerGroupTargetAssignmentMemberKey(Message):
    group_id: str
    member_id: str
    def __init__(
        self,
        *,
        group_id: str = ...,
        member_id: str = ...,
    ) -> None: ...

class ConsumerGroupTargetAssignmentMemberValue(Message):
    class TopicPartition(Message):
        topic_id: bytes
        partitions: Sequence[int]
        def __init__(
            self,
            *,
            topic_id: bytes = ...,
            partitions: Sequence[int] = ...,
        ) -> None: ...

    topic_partitions: Sequence[ConsumerGroupTargetAssignmentMemberValue.TopicPartition]
    def __init__(
        self,
        *,
        topic_partitions: Sequence[ConsumerGroupTargetAssignmentMemberValue.TopicPartition] = ...,
    ) -> None: ...

class ConsumerGroupTargetAssignmentMetadataKey(Message):
    group_id: str
    def __init__(
        self,
        *,
        group_id: str = ...,
    ) -> None: ...

class ConsumerGroupTargetAssignmentMetadataValue(Message):
    assignment_epoch: int
    assignment_timestamp: int
    def __init__(
        self,
        *,
        assignment_epoch: int = ...,
        assignment_timestamp: int = ...,
    ) -> None: ...

class ConsumerProtocolAssignment(Message):
    class TopicPartition(Message):
        topic: str
        partitions: Sequence[int]
        def __init__(
            self,
            *,
            topic: str = ...,
            partitions: Sequence[int] = ...,
        ) -> None: ...

    assigned_partitions: Sequence[ConsumerProtocolAssignment.TopicPartition]
    user_data: bytes | None
    def __init__(
        self,
        *,
        assigned_partitions: Sequence[ConsumerProtocolAssignment.TopicPartition] = ...,
        user_data: bytes | None = ...,
    ) -> None: ...

class ConsumerProtocolSubscription(Message):
    class TopicPartition(Message):
        topic: str
        partitions: Sequence[int]
        def __init__(
            self,
            *,
            topic: str = ...,
            partitions: Sequence[int] = ...,
        ) -> None: ...

    topics: Sequence[str]
    user_data: bytes | None
    owned_partitions: Sequence[ConsumerProtocolSubscription.TopicPartition]
    generation_id: int
    rack_id: str | None
    def __init__(
        self,
        *,
        topics: Sequence[str] = ...,
        user_data: bytes | None = ...,
        owned_partitions: Sequence[ConsumerProtocolSubscription.TopicPartition] = ...,
        generation_id: int = ...,
        rack_id: str | None = ...,
    ) -> None: ...

class ControllerRegistrationRequest(Message):
    class Listener(Message):
        name: str
        host: str
        port: int
        security_protocol: int
        def __init__(
            self,
            *,
            name: str = ...,
            host: str = ...,
            port: int = ...,
            security_protocol: int = ...,
        ) -> None: ...

    class Feature(Message):
        name: str
        min_supported_version: int
        max_supported_version: int
        def __init__(
            self,
            *,
            name: str = ...,
            min_supported_version: int = ...,
            max_supported_version: int = ...,
        ) -> None: ...

    controller_id: int
    incarnation_id: bytes
    zk_migration_ready: bool
    listeners: Sequence[ControllerRegistrationRequest.Listener]
    features: Sequence[ControllerRegistrationRequest.Feature]
    def __init__(
        self,
        *,
        controller_id: int = ...,
        incarnation_id: bytes = ...,
        zk_migration_ready: bool = ...,
        listeners: Sequence[ControllerRegistrationRequest.Listener] = ...,
        features: Sequence[ControllerRegistrationRequest.Feature] = ...,
    ) -> None: ...

class ControllerRegistrationResponse(Message):
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        error_message: str | None = ...,
    ) -> None: ...

class CreateAclsRequest(Message):
    class AclCreation(Message):
        resource_type: int
        resource_name: str
        resource_pattern_type: int
        principal: str
        host: str
        operation: int
        permission_type: int
        def __init__(
            self,
            *,
            resource_type: int = ...,
            resource_name: str = ...,
            resource_pattern_type: int = ...,
            principal: str = ...,
            host: str = ...,
            operation: int = ...,
            permission_type: int = ...,
        ) -> None: ...

    creations: Sequence[CreateAclsRequest.AclCreation]
    def __init__(
        self,
        *,
        creations: Sequence[CreateAclsRequest.AclCreation] = ...,
    ) -> None: ...

class CreateAclsResponse(Message):
    class AclCreationResult(Message):
        error_code: int
        error_message: str | None
        def __init__(
            self,
            *,
            error_code: int = ...,
            error_message: str | None = ...,
        ) -> None: ...

    throttle_time_ms: int
    results: Sequence[CreateAclsResponse.AclCreationResult]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        results: Sequence[CreateAclsResponse.AclCreationResult] = ...,
    ) -> None: ...

class CreateDelegationTokenRequest(Message):
    class CreatableRenewers(Message):
        principal_type: str
        principal_name: str
        def __init__(
            self,
            *,
            principal_type: str = ...,
            principal_name: str = ...,
        ) -> None: ...

    owner_principal_type: str | None
    owner_principal_name: str | None
    renewers: Sequence[CreateDelegationTokenRequest.CreatableRenewers]
    max_lifetime_ms: int
    def __init__(
        self,
        *,
        owner_principal_type: str | None = ...,
        owner_principal_name: str | None = ...,
        renewers: Sequence[CreateDelegationTokenRequest.CreatableRenewers] = ...,
        max_lifetime_ms: int = ...,
    ) -> None: ...

class CreateDelegationTokenResponse(Message):
    error_code: int
    principal_type: str
    principal_name: str
    token_requester_principal_type: str
    token_requester_principal_name: str
    issue_timestamp_ms: int
    expiry_timestamp_ms: int
    max_timestamp_ms: int
    token_id: str
    hmac: bytes
    throttle_time_ms: int
    def __init__(
        self,
        *,
        error_code: int = ...,
        principal_type: str = ...,
        principal_name: str = ...,
        token_requester_principal_type: str = ...,
        token_requester_principal_name: str = ...,
        issue_timestamp_ms: int = ...,
        expiry_timestamp_ms: int = ...,
        max_timestamp_ms: int = ...,
        token_id: str = ...,
        hmac: bytes = ...,
        throttle_time_ms: int = ...,
    ) -> None: ...

class CreatePartitionsRequest(Message):
    class CreatePartitionsTopic(Message):
        name: str
        count: int
        assignments: Sequence[CreatePartitionsRequest.CreatePartitionsAssignment] | None
        def __init__(
            self,
            *,
            name: str = ...,
            count: int = ...,
            assignments: Sequence[CreatePartitionsRequest.CreatePartitionsAssignment] | None = ...,
        ) -> None: ...

    class CreatePartitionsAssignment(Message):
        broker_ids: Sequence[int]
        def __init__(
            self,
            *,
            broker_ids: Sequence[int] = ...,
        ) -> None: ...

    topics: Sequence[CreatePartitionsRequest.CreatePartitionsTopic]
    timeout_ms: int
    validate_only: bool
    def __init__(
        self,
        *,
        topics: Sequence[CreatePartitionsRequest.CreatePartitionsTopic] = ...,
        timeout_ms: int = ...,
        validate_only: bool = ...,
    ) -> None: ...

class CreatePartitionsResponse(Message):
    class CreatePartitionsTopicResult(Message):
        name: str
        error_code: int
        error_message: str | None
        def __init__(
            self,
            *,
            name: str = ...,
            error_code: int = ...,
            error_message: str | None = ...,
        ) -> None: ...

    throttle_time_ms: int
    results: Sequence[CreatePartitionsResponse.CreatePartitionsTopicResult]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        results: Sequence[CreatePartitionsResponse.CreatePartitionsTopicResult] = ...,
    ) -> None: ...

class CreateTopicsRequest(Message):
    class CreatableTopic(Message):
        name: str
        num_partitions: int
        replication_factor: int
        assignments: Sequence[CreateTopicsRequest.CreatableReplicaAssignment]
        configs: Sequence[CreateTopicsRequest.CreatableTopicConfig]
        def __init__(
            self,
            *,
            name: str = ...,
            num_partitions: int = ...,
            replication_factor: int = ...,
            assignments: Sequence[CreateTopicsRequest.CreatableReplicaAssignment] = ...,
            configs: Sequence[CreateTopicsRequest.CreatableTopicConfig] = ...,
        ) -> None: ...

    class CreatableReplicaAssignment(Message):
        partition_index: int
        broker_ids: Sequence[int]
        def __init__(
            self,
            *,
            partition_index: int = ...,
            broker_ids: Sequence[int] = ...,
        ) -> None: ...

    class CreatableTopicConfig(Message):
        name: str
        value: str | None
        def __init__(
            self,
            *,
            name: str = ...,
            value: str | None = ...,
        ) -> None: ...

    topics: Sequence[CreateTopicsRequest.CreatableTopic]
    timeout_ms: int
    validate_only: bool
    def __init__(
        self,
        *,
        topics: Sequence[CreateTopicsRequest.CreatableTopic] = ...,
        timeout_ms: int = ...,
        validate_only: bool = ...,
    ) -> None: ...

class CreateTopicsResponse(Message):
    class CreatableTopicResult(Message):
        name: str
        topic_id: bytes
        error_code: int
        error_message: str | None
        topic_config_error_code: int
        num_partitions: int
        replication_factor: int
        configs: Sequence[CreateTopicsResponse.CreatableTopicConfigs] | None
        def __init__(
            self,
            *,
            name: str = ...,
            topic_id: bytes = ...,
            error_code: int = ...,
            error_message: str | None = ...,
            topic_config_error_code: int = ...,
            num_partitions: int = ...,
            replication_factor: int = ...,
            configs: Sequence[CreateTopicsResponse.CreatableTopicConfigs] | None = ...,
        ) -> None: ...

    class CreatableTopicConfigs(Message):
        name: str
        value: str | None
        read_only: bool
        config_source: int
        is_sensitive: bool
        def __init__(
            self,
            *,
            name: str = ...,
            value: str | None = ...,
            read_only: bool = ...,
            config_source: int = ...,
            is_sensitive: bool = ...,
        ) -> None: ...

    throttle_time_ms: int
    topics: Sequence[CreateTopicsResponse.CreatableTopicResult]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        topics: Sequence[CreateTopicsResponse.CreatableTopicResult] = ...,
    ) -> None: ...

class DefaultPrincipalData(Message):
    type_: str
    name: str
    token_authenticated: bool
    def __init__(
        self,
        *,
        type_: str = ...,
        name: str = ...,
        token_authenticated: bool = ...,
    ) -> None: ...

class DelegationTokenRecord(Message):
    owner: str
    requester: str
    renewers: Sequence[str]
    issue_timestamp: int
    max_timestamp: int
    expiration_timestamp: int
    token_id: str
    def __init__(
        self,
        *,
        owner: str = ...,
        requester: str = ...,
        renewers: Sequence[str] = ...,
        issue_timestamp: int = ...,
        max_timestamp: int = ...,
        expiration_timestamp: int = ...,
        token_id: str = ...,
    ) -> None: ...

class DeleteAclsRequest(Message):
    class DeleteAclsFilter(Message):
        resource_type_filter: int
        resource_name_filter: str | None
        pattern_type_filter: int
        principal_filter: str | None
        host_filter: str | None
        operation: int
        permission_type: int
        def __init__(
            self,
            *,
            resource_type_filter: int = ...,
            resource_name_filter: str | None = ...,
            pattern_type_filter: int = ...,
            principal_filter: str | None = ...,
            host_filter: str | None = ...,
            operation: int = ...,
            permission_type: int = ...,
        ) -> None: ...

    filters: Sequence[DeleteAclsRequest.DeleteAclsFilter]
    def __init__(
        self,
        *,
        filters: Sequence[DeleteAclsRequest.DeleteAclsFilter] = ...,
    ) -> None: ...

class DeleteAclsResponse(Message):
    class DeleteAclsFilterResult(Message):
        error_code: int
        error_message: str | None
        matching_acls: Sequence[DeleteAclsResponse.DeleteAclsMatchingAcl]
        def __init__(
            self,
            *,
            error_code: int = ...,
            error_message: str | None = ...,
            matching_acls: Sequence[DeleteAclsResponse.DeleteAclsMatchingAcl] = ...,
        ) -> None: ...

    class DeleteAclsMatchingAcl(Message):
        error_code: int
        error_message: str | None
        resource_type: int
        resource_name: str
        pattern_type: int
        principal: str
        host: str
        operation: int
        permission_type: int
        def __init__(
            self,
            *,
            error_code: int = ...,
            error_message: str | None = ...,
            resource_type: int = ...,
            resource_name: str = ...,
            pattern_type: int = ...,
            principal: str = ...,
            host: str = ...,
            operation: int = ...,
            permission_type: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    filter_results: Sequence[DeleteAclsResponse.DeleteAclsFilterResult]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        filter_results: Sequence[DeleteAclsResponse.DeleteAclsFilterResult] = ...,
    ) -> None: ...

class DeleteGroupsRequest(Message):
    groups_names: Sequence[str]
    def __init__(
        self,
        *,
        groups_names: Sequence[str] = ...,
    ) -> None: ...

class DeleteGroupsResponse(Message):
    class DeletableGroupResult(Message):
        group_id: str
        error_code: int
        def __init__(
            self,
            *,
            group_id: str = ...,
            error_code: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    results: Sequence[DeleteGroupsResponse.DeletableGroupResult]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        results: Sequence[DeleteGroupsResponse.DeletableGroupResult] = ...,
    ) -> None: ...

class DeleteRecordsRequest(Message):
    class DeleteRecordsTopic(Message):
        name: str
        partitions: Sequence[DeleteRecordsRequest.DeleteRecordsPartition]
        def __init__(
            self,
            *,
            name: str = ...,
            partitions: Sequence[DeleteRecordsRequest.DeleteRecordsPartition] = ...,
        ) -> None: ...

    class DeleteRecordsPartition(Message):
        partition_index: int
        offset: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
            offset: int = ...,
        ) -> None: ...

    topics: Sequence[DeleteRecordsRequest.DeleteRecordsTopic]
    timeout_ms: int
    def __init__(
        self,
        *,
        topics: Sequence[DeleteRecordsRequest.DeleteRecordsTopic] = ...,
        timeout_ms: int = ...,
    ) -> None: ...

class DeleteRecordsResponse(Message):
    class DeleteRecordsTopicResult(Message):
        name: str
        partitions: Sequence[DeleteRecordsResponse.DeleteRecordsPartitionResult]
        def __init__(
            self,
            *,
            name: str = ...,
            partitions: Sequence[DeleteRecordsResponse.DeleteRecordsPartitionResult] = ...,
        ) -> None: ...

    class DeleteRecordsPartitionResult(Message):
        partition_index: int
        low_watermark: int
        error_code: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
            low_watermark: int = ...,
            error_code: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    topics: Sequence[DeleteRecordsResponse.DeleteRecordsTopicResult]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        topics: Sequence[DeleteRecordsResponse.DeleteRecordsTopicResult] = ...,
    ) -> None: ...

class DeleteShareGroupOffsetsRequest(Message):
    class DeleteShareGroupOffsetsRequestTopic(Message):
        topic_name: str
        def __init__(
            self,
            *,
            topic_name: str = ...,
        ) -> None: ...

    group_id: str
    topics: Sequence[DeleteShareGroupOffsetsRequest.DeleteShareGroupOffsetsRequestTopic]
    def __init__(
        self,
        *,
        group_id: str = ...,
        topics: Sequence[DeleteShareGroupOffsetsRequest.DeleteShareGroupOffsetsRequestTopic] = ...,
    ) -> None: ...

class DeleteShareGroupOffsetsResponse(Message):
    class DeleteShareGroupOffsetsResponseTopic(Message):
        topic_name: str
        topic_id: bytes
        error_code: int
        error_message: str | None
        def __init__(
            self,
            *,
            topic_name: str = ...,
            topic_id: bytes = ...,
            error_code: int = ...,
            error_message: str | None = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    error_message: str | None
    responses: Sequence[DeleteShareGroupOffsetsResponse.DeleteShareGroupOffsetsResponseTopic]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        error_message: str | None = ...,
        responses: Sequence[DeleteShareGroupOffsetsResponse.DeleteShareGroupOffsetsResponseTopic] = ...,
    ) -> None: ...

class DeleteShareGroupStateRequest(Message):
    class DeleteStateData(Message):
        topic_id: bytes
        partitions: Sequence[DeleteShareGroupStateRequest.PartitionData]
        def __init__(
            self,
            *,
            topic_id: bytes = ...,
            partitions: Sequence[DeleteShareGroupStateRequest.PartitionData] = ...,
        ) -> None: ...

    class PartitionData(Message):
        partition: int
        def __init__(
            self,
            *,
            partition: int = ...,
        ) -> None: ...

    group_id: str
    topics: Sequence[DeleteShareGroupStateRequest.DeleteStateData]
    def __init__(
        self,
        *,
        group_id: str = ...,
        topics: Sequence[DeleteShareGroupStateRequest.DeleteStateData] = ...,
    ) -> None: ...

class DeleteShareGroupStateResponse(Message):
    class DeleteStateResult(Message):
        topic_id: bytes
        partitions: Sequence[DeleteShareGroupStateResponse.PartitionResult]
        def __init__(
            self,
            *,
            topic_id: bytes = ...,
            partitions: Sequence[DeleteShareGroupStateResponse.PartitionResult] = ...,
        ) -> None: ...

    class PartitionResult(Message):
        partition: int
        error_code: int
        error_message: str | None
        def __init__(
            self,
            *,
            partition: int = ...,
            error_code: int = ...,
            error_message: str | None = ...,
        ) -> None: ...

    results: Sequence[DeleteShareGroupStateResponse.DeleteStateResult]
    def __init__(
        self,
        *,
        results: Sequence[DeleteShareGroupStateResponse.DeleteStateResult] = ...,
    ) -> None: ...

class DeleteTopicsRequest(Message):
    class DeleteTopicState(Message):
        name: str | None
        topic_id: bytes
        def __init__(
            self,
            *,
            name: str | None = ...,
            topic_id: bytes = ...,
        ) -> None: ...

    topics: Sequence[DeleteTopicsRequest.DeleteTopicState]
    topic_names: Sequence[str]
    timeout_ms: int
    def __init__(
        self,
        *,
        topics: Sequence[DeleteTopicsRequest.DeleteTopicState] = ...,
        topic_names: Sequence[str] = ...,
        timeout_ms: int = ...,
    ) -> None: ...

class DeleteTopicsResponse(Message):
    class DeletableTopicResult(Message):
        name: str | None
        topic_id: bytes
        error_code: int
        error_message: str | None
        def __init__(
            self,
            *,
            name: str | None = ...,
            topic_id: bytes = ...,
            error_code: int = ...,
            error_message: str | None = ...,
        ) -> None: ...

    throttle_time_ms: int
    responses: Sequence[DeleteTopicsResponse.DeletableTopicResult]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        responses: Sequence[DeleteTopicsResponse.DeletableTopicResult] = ...,
    ) -> None: ...

class DescribeAclsRequest(Message):
    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int
    def __init__(
        self,
        *,
        resource_type_filter: int = ...,
        resource_name_filter: str | None = ...,
        pattern_type_filter: int = ...,
        principal_filter: str | None = ...,
        host_filter: str | None = ...,
        operation: int = ...,
        permission_type: int = ...,
    ) -> None: ...

class DescribeAclsResponse(Message):
    class DescribeAclsResource(Message):
        resource_type: int
        resource_name: str
        pattern_type: int
        acls: Sequence[DescribeAclsResponse.AclDescription]
        def __init__(
            self,
            *,
            resource_type: int = ...,
            resource_name: str = ...,
            pattern_type: int = ...,
            acls: Sequence[DescribeAclsResponse.AclDescription] = ...,
        ) -> None: ...

    class AclDescription(Message):
        principal: str
        host: str
        operation: int
        permission_type: int
        def __init__(
            self,
            *,
            principal: str = ...,
            host: str = ...,
            operation: int = ...,
            permission_type: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    error_message: str | None
    resources: Sequence[DescribeAclsResponse.DescribeAclsResource]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        error_message: str | None = ...,
        resources: Sequence[DescribeAclsResponse.DescribeAclsResource] = ...,
    ) -> None: ...

class DescribeClientQuotasRequest(Message):
    class ComponentData(Message):
        entity_type: str
        match_type: int
        match: str | None
        def __init__(
            self,
            *,
            entity_type: str = ...,
            match_type: int = ...,
            match: str | None = ...,
        ) -> None: ...

    components: Sequence[DescribeClientQuotasRequest.ComponentData]
    strict: bool
    def __init__(
        self,
        *,
        components: Sequence[DescribeClientQuotasRequest.ComponentData] = ...,
        strict: bool = ...,
    ) -> None: ...

class DescribeClientQuotasResponse(Message):
    class EntryData(Message):
        entity: Sequence[DescribeClientQuotasResponse.EntityData]
        values: Sequence[DescribeClientQuotasResponse.ValueData]
        def __init__(
            self,
            *,
            entity: Sequence[DescribeClientQuotasResponse.EntityData] = ...,
            values: Sequence[DescribeClientQuotasResponse.ValueData] = ...,
        ) -> None: ...

    class EntityData(Message):
        entity_type: str
        entity_name: str | None
        def __init__(
            self,
            *,
            entity_type: str = ...,
            entity_name: str | None = ...,
        ) -> None: ...

    class ValueData(Message):
        key: str
        value: float
        def __init__(
            self,
            *,
            key: str = ...,
            value: float = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    error_message: str | None
    entries: Sequence[DescribeClientQuotasResponse.EntryData] | None
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        error_message: str | None = ...,
        entries: Sequence[DescribeClientQuotasResponse.EntryData] | None = ...,
    ) -> None: ...

class DescribeClusterRequest(Message):
    include_cluster_authorized_operations: bool
    endpoint_type: int
    include_fenced_brokers: bool
    def __init__(
        self,
        *,
        include_cluster_authorized_operations: bool = ...,
        endpoint_type: int = ...,
        include_fenced_brokers: bool = ...,
    ) -> None: ...

class DescribeClusterResponse(Message):
    class DescribeClusterBroker(Message):
        broker_id: int
        host: str
        port: int
        rack: str | None
        is_fenced: bool
        def __init__(
            self,
            *,
            broker_id: int = ...,
            host: str = ...,
            port: int = ...,
            rack: str | None = ...,
            is_fenced: bool = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    error_message: str | None
    endpoint_type: int
    cluster_id: str
    controller_id: int
    brokers: Sequence[DescribeClusterResponse.DescribeClusterBroker]
    cluster_authorized_operations: int
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        error_message: str | None = ...,
        endpoint_type: int = ...,
        cluster_id: str = ...,
        controller_id: int = ...,
        brokers: Sequence[DescribeClusterResponse.DescribeClusterBroker] = ...,
        cluster_authorized_operations: int = ...,
    ) -> None: ...

class DescribeConfigsRequest(Message):
    class DescribeConfigsResource(Message):
        resource_type: int
        resource_name: str
        configuration_keys: Sequence[str] | None
        def __init__(
            self,
            *,
            resource_type: int = ...,
            resource_name: str = ...,
            configuration_keys: Sequence[str] | None = ...,
        ) -> None: ...

    resources: Sequence[DescribeConfigsRequest.DescribeConfigsResource]
    include_synonyms: bool
    include_documentation: bool
    def __init__(
        self,
        *,
        resources: Sequence[DescribeConfigsRequest.DescribeConfigsResource] = ...,
        include_synonyms: bool = ...,
        include_documentation: bool = ...,
    ) -> None: ...

class DescribeConfigsResponse(Message):
    class DescribeConfigsResult(Message):
        error_code: int
        error_message: str | None
        resource_type: int
        resource_name: str
        configs: Sequence[DescribeConfigsResponse.DescribeConfigsResourceResult]
        def __init__(
            self,
            *,
            error_code: int = ...,
            error_message: str | None = ...,
            resource_type: int = ...,
            resource_name: str = ...,
            configs: Sequence[DescribeConfigsResponse.DescribeConfigsResourceResult] = ...,
        ) -> None: ...

    class DescribeConfigsResourceResult(Message):
        name: str
        value: str | None
        read_only: bool
        config_source: int
        is_sensitive: bool
        synonyms: Sequence[DescribeConfigsResponse.DescribeConfigsSynonym]
        config_type: int
        documentation: str | None
        def __init__(
            self,
            *,
            name: str = ...,
            value: str | None = ...,
            read_only: bool = ...,
            config_source: int = ...,
            is_sensitive: bool = ...,
            synonyms: Sequence[DescribeConfigsResponse.DescribeConfigsSynonym] = ...,
            config_type: int = ...,
            documentation: str | None = ...,
        ) -> None: ...

    class DescribeConfigsSynonym(Message):
        name: str
        value: str | None
        source: int
        def __init__(
            self,
            *,
            name: str = ...,
            value: str | None = ...,
            source: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    results: Sequence[DescribeConfigsResponse.DescribeConfigsResult]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        results: Sequence[DescribeConfigsResponse.DescribeConfigsResult] = ...,
    ) -> None: ...

class DescribeDelegationTokenRequest(Message):
    class DescribeDelegationTokenOwner(Message):
        principal_type: str
        principal_name: str
        def __init__(
            self,
            *,
            principal_type: str = ...,
            principal_name: str = ...,
        ) -> None: ...

    owners: Sequence[DescribeDelegationTokenRequest.DescribeDelegationTokenOwner] | None
    def __init__(
        self,
        *,
        owners: Sequence[DescribeDelegationTokenRequest.DescribeDelegationTokenOwner] | None = ...,
    ) -> None: ...

class DescribeDelegationTokenResponse(Message):
    class DescribedDelegationToken(Message):
        principal_type: str
        principal_name: str
        token_requester_principal_type: str
        token_requester_principal_name: str
        issue_timestamp: int
        expiry_timestamp: int
        max_timestamp: int
        token_id: str
        hmac: bytes
        renewers: Sequence[DescribeDelegationTokenResponse.DescribedDelegationTokenRenewer]
        def __init__(
            self,
            *,
            principal_type: str = ...,
            principal_name: str = ...,
            token_requester_principal_type: str = ...,
            token_requester_principal_name: str = ...,
            issue_timestamp: int = ...,
            expiry_timestamp: int = ...,
            max_timestamp: int = ...,
            token_id: str = ...,
            hmac: bytes = ...,
            renewers: Sequence[DescribeDelegationTokenResponse.DescribedDelegationTokenRenewer] = ...,
        ) -> None: ...

    class DescribedDelegationTokenRenewer(Message):
        principal_type: str
        principal_name: str
        def __init__(
            self,
            *,
            principal_type: str = ...,
            principal_name: str = ...,
        ) -> None: ...

    error_code: int
    tokens: Sequence[DescribeDelegationTokenResponse.DescribedDelegationToken]
    throttle_time_ms: int
    def __init__(
        self,
        *,
        error_code: int = ...,
        tokens: Sequence[DescribeDelegationTokenResponse.DescribedDelegationToken] = ...,
        throttle_time_ms: int = ...,
    ) -> None: ...

class DescribeGroupsRequest(Message):
    groups: Sequence[str]
    include_authorized_operations: bool
    def __init__(
        self,
        *,
        groups: Sequence[str] = ...,
        include_authorized_operations: bool = ...,
    ) -> None: ...

class DescribeGroupsResponse(Message):
    class DescribedGroup(Message):
        error_code: int
        error_message: str | None
        group_id: str
        group_state: str
        protocol_type: str
        protocol_data: str
        members: Sequence[DescribeGroupsResponse.DescribedGroupMember]
        authorized_operations: int
        def __init__(
            self,
            *,
            error_code: int = ...,
            error_message: str | None = ...,
            group_id: str = ...,
            group_state: str = ...,
            protocol_type: str = ...,
            protocol_data: str = ...,
            members: Sequence[DescribeGroupsResponse.DescribedGroupMember] = ...,
            authorized_operations: int = ...,
        ) -> None: ...

    class DescribedGroupMember(Message):
        member_id: str
        group_instance_id: str | None
        client_id: str
        client_host: str
        member_metadata: bytes
        member_assignment: bytes
        def __init__(
            self,
            *,
            member_id: str = ...,
            group_instance_id: str | None = ...,
            client_id: str = ...,
            client_host: str = ...,
            member_metadata: bytes = ...,
            member_assignment: bytes = ...,
        ) -> None: ...

    throttle_time_ms: int
    groups: Sequence[DescribeGroupsResponse.DescribedGroup]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        groups: Sequence[DescribeGroupsResponse.DescribedGroup] = ...,
    ) -> None: ...

class DescribeLogDirsRequest(Message):
    class DescribableLogDirTopic(Message):
        topic: str
        partitions: Sequence[int]
        def __init__(
            self,
            *,
            topic: str = ...,
            partitions: Sequence[int] = ...,
        ) -> None: ...

    topics: Sequence[DescribeLogDirsRequest.DescribableLogDirTopic] | None
    def __init__(
        self,
        *,
        topics: Sequence[DescribeLogDirsRequest.DescribableLogDirTopic] | None = ...,
    ) -> None: ...

class DescribeLogDirsResponse(Message):
    class DescribeLogDirsResult(Message):
        error_code: int
        log_dir: str
        topics: Sequence[DescribeLogDirsResponse.DescribeLogDirsTopic]
        total_bytes: int
        usable_bytes: int
        is_cordoned: bool
        def __init__(
            self,
            *,
            error_code: int = ...,
            log_dir: str = ...,
            topics: Sequence[DescribeLogDirsResponse.DescribeLogDirsTopic] = ...,
            total_bytes: int = ...,
            usable_bytes: int = ...,
            is_cordoned: bool = ...,
        ) -> None: ...

    class DescribeLogDirsTopic(Message):
        name: str
        partitions: Sequence[DescribeLogDirsResponse.DescribeLogDirsPartition]
        def __init__(
            self,
            *,
            name: str = ...,
            partitions: Sequence[DescribeLogDirsResponse.DescribeLogDirsPartition] = ...,
        ) -> None: ...

    class DescribeLogDirsPartition(Message):
        partition_index: int
        partition_size: int
        offset_lag: int
        is_future_key: bool
        def __init__(
            self,
            *,
            partition_index: int = ...,
            partition_size: int = ...,
            offset_lag: int = ...,
            is_future_key: bool = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    results: Sequence[DescribeLogDirsResponse.DescribeLogDirsResult]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        results: Sequence[DescribeLogDirsResponse.DescribeLogDirsResult] = ...,
    ) -> None: ...

class DescribeProducersRequest(Message):
    class TopicRequest(Message):
        name: str
        partition_indexes: Sequence[int]
        def __init__(
            self,
            *,
            name: str = ...,
            partition_indexes: Sequence[int] = ...,
        ) -> None: ...

    topics: Sequence[DescribeProducersRequest.TopicRequest]
    def __init__(
        self,
        *,
        topics: Sequence[DescribeProducersRequest.TopicRequest] = ...,
    ) -> None: ...

class DescribeProducersResponse(Message):
    class TopicResponse(Message):
        name: str
        partitions: Sequence[DescribeProducersResponse.PartitionResponse]
        def __init__(
            self,
            *,
            name: str = ...,
            partitions: Sequence[DescribeProducersResponse.PartitionResponse] = ...,
        ) -> None: ...

    class PartitionResponse(Message):
        partition_index: int
        error_code: int
        error_message: str | None
        active_producers: Sequence[DescribeProducersResponse.ProducerState]
        def __init__(
            self,
            *,
            partition_index: int = ...,
            error_code: int = ...,
            error_message: str | None = ...,
            active_producers: Sequence[DescribeProducersResponse.ProducerState] = ...,
        ) -> None: ...

    class ProducerState(Message):
        producer_id: int
        producer_epoch: int
        last_sequence: int
        last_timestamp: int
        coordinator_epoch: int
        current_txn_start_offset: int
        def __init__(
            self,
            *,
            producer_id: int = ...,
            producer_epoch: int = ...,
            last_sequence: int = ...,
            last_timestamp: int = ...,
            coordinator_epoch: int = ...,
            current_txn_start_offset: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    topics: Sequence[DescribeProducersResponse.TopicResponse]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        topics: Sequence[DescribeProducersResponse.TopicResponse] = ...,
    ) -> None: ...

class DescribeQuorumRequest(Message):
    class TopicData(Message):
        topic_name: str
        partitions: Sequence[DescribeQuorumRequest.PartitionData]
        def __init__(
            self,
            *,
            topic_name: str = ...,
            partitions: Sequence[DescribeQuorumRequest.PartitionData] = ...,
        ) -> None: ...

    class PartitionData(Message):
        partition_index: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
        ) -> None: ...

    topics: Sequence[DescribeQuorumRequest.TopicData]
    def __init__(
        self,
        *,
        topics: Sequence[DescribeQuorumRequest.TopicData] = ...,
    ) -> None: ...

class DescribeQuorumResponse(Message):
    class TopicData(Message):
        topic_name: str
        partitions: Sequence[DescribeQuorumResponse.PartitionData]
        def __init__(
            self,
            *,
            topic_name: str = ...,
            partitions: Sequence[DescribeQuorumResponse.PartitionData] = ...,
        ) -> None: ...

    class PartitionData(Message):
        partition_index: int
        error_code: int
        error_message: str | None
        leader_id: int
        leader_epoch: int
        high_watermark: int
        current_voters: Sequence[DescribeQuorumResponse.ReplicaState]
        observers: Sequence[DescribeQuorumResponse.ReplicaState]
        def __init__(
            self,
            *,
            partition_index: int = ...,
            error_code: int = ...,
            error_message: str | None = ...,
            leader_id: int = ...,
            leader_epoch: int = ...,
            high_watermark: int = ...,
            current_voters: Sequence[DescribeQuorumResponse.ReplicaState] = ...,
            observers: Sequence[DescribeQuorumResponse.ReplicaState] = ...,
        ) -> None: ...

    class ReplicaState(Message):
        replica_id: int
        replica_directory_id: bytes
        log_end_offset: int
        last_fetch_timestamp: int
        last_caught_up_timestamp: int
        def __init__(
            self,
            *,
            replica_id: int = ...,
            replica_directory_id: bytes = ...,
            log_end_offset: int = ...,
            last_fetch_timestamp: int = ...,
            last_caught_up_timestamp: int = ...,
        ) -> None: ...

    class Node(Message):
        node_id: int
        listeners: Sequence[DescribeQuorumResponse.Listener]
        def __init__(
            self,
            *,
            node_id: int = ...,
            listeners: Sequence[DescribeQuorumResponse.Listener] = ...,
        ) -> None: ...

    class Listener(Message):
        name: str
        host: str
        port: int
        def __init__(
            self,
            *,
            name: str = ...,
            host: str = ...,
            port: int = ...,
        ) -> None: ...

    error_code: int
    error_message: str | None
    topics: Sequence[DescribeQuorumResponse.TopicData]
    nodes: Sequence[DescribeQuorumResponse.Node]
    def __init__(
        self,
        *,
        error_code: int = ...,
        error_message: str | None = ...,
        topics: Sequence[DescribeQuorumResponse.TopicData] = ...,
        nodes: Sequence[DescribeQuorumResponse.Node] = ...,
    ) -> None: ...

class DescribeShareGroupOffsetsRequest(Message):
    class DescribeShareGroupOffsetsRequestGroup(Message):
        group_id: str
        topics: Sequence[DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestTopic] | None
        def __init__(
            self,
            *,
            group_id: str = ...,
            topics: Sequence[DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestTopic] | None = ...,
        ) -> None: ...

    class DescribeShareGroupOffsetsRequestTopic(Message):
        topic_name: str
        partitions: Sequence[int]
        def __init__(
            self,
            *,
            topic_name: str = ...,
            partitions: Sequence[int] = ...,
        ) -> None: ...

    groups: Sequence[DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup]
    def __init__(
        self,
        *,
        groups: Sequence[DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup] = ...,
    ) -> None: ...

class DescribeShareGroupOffsetsResponse(Message):
    class DescribeShareGroupOffsetsResponseGroup(Message):
        group_id: str
        topics: Sequence[DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseTopic]
        error_code: int
        error_message: str | None
        def __init__(
            self,
            *,
            group_id: str = ...,
            topics: Sequence[DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseTopic] = ...,
            error_code: int = ...,
            error_message: str | None = ...,
        ) -> None: ...

    class DescribeShareGroupOffsetsResponseTopic(Message):
        topic_name: str
        topic_id: bytes
        partitions: Sequence[DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponsePartition]
        def __init__(
            self,
            *,
            topic_name: str = ...,
            topic_id: bytes = ...,
            partitions: Sequence[DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponsePartition] = ...,
        ) -> None: ...

    class DescribeShareGroupOffsetsResponsePartition(Message):
        partition_index: int
        start_offset: int
        leader_epoch: int
        lag: int
        error_code: int
        error_message: str | None
        def __init__(
            self,
            *,
            partition_index: int = ...,
            start_offset: int = ...,
            leader_epoch: int = ...,
            lag: int = ...,
            error_code: int = ...,
            error_message: str | None = ...,
        ) -> None: ...

    throttle_time_ms: int
    groups: Sequence[DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        groups: Sequence[DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup] = ...,
    ) -> None: ...

class DescribeTopicPartitionsRequest(Message):
    class TopicRequest(Message):
        name: str
        def __init__(
            self,
            *,
            name: str = ...,
        ) -> None: ...

    class Cursor(Message):
        topic_name: str
        partition_index: int
        def __init__(
            self,
            *,
            topic_name: str = ...,
            partition_index: int = ...,
        ) -> None: ...

    topics: Sequence[DescribeTopicPartitionsRequest.TopicRequest]
    response_partition_limit: int
    cursor: DescribeTopicPartitionsRequest.Cursor | None
    def __init__(
        self,
        *,
        topics: Sequence[DescribeTopicPartitionsRequest.TopicRequest] = ...,
        response_partition_limit: int = ...,
        cursor: DescribeTopicPartitionsRequest.Cursor | None = ...,
    ) -> None: ...

class DescribeTopicPartitionsResponse(Message):
    class DescribeTopicPartitionsResponseTopic(Message):
        error_code: int
        name: str | None
        topic_id: bytes
        is_internal: bool
        partitions: Sequence[DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition]
        topic_authorized_operations: int
        def __init__(
            self,
            *,
            error_code: int = ...,
            name: str | None = ...,
            topic_id: bytes = ...,
            is_internal: bool = ...,
            partitions: Sequence[DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition] = ...,
            topic_authorized_operations: int = ...,
        ) -> None: ...

    class DescribeTopicPartitionsResponsePartition(Message):
        error_code: int
        partition_index: int
        leader_id: int
        leader_epoch: int
        replica_nodes: Sequence[int]
        isr_nodes: Sequence[int]
        eligible_leader_replicas: Sequence[int] | None
        last_known_elr: Sequence[int] | None
        offline_replicas: Sequence[int]
        def __init__(
            self,
            *,
            error_code: int = ...,
            partition_index: int = ...,
            leader_id: int = ...,
            leader_epoch: int = ...,
            replica_nodes: Sequence[int] = ...,
            isr_nodes: Sequence[int] = ...,
            eligible_leader_replicas: Sequence[int] | None = ...,
            last_known_elr: Sequence[int] | None = ...,
            offline_replicas: Sequence[int] = ...,
        ) -> None: ...

    class Cursor(Message):
        topic_name: str
        partition_index: int
        def __init__(
            self,
            *,
            topic_name: str = ...,
            partition_index: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    topics: Sequence[DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic]
    next_cursor: DescribeTopicPartitionsResponse.Cursor | None
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        topics: Sequence[DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic] = ...,
        next_cursor: DescribeTopicPartitionsResponse.Cursor | None = ...,
    ) -> None: ...

class DescribeTransactionsRequest(Message):
    transactional_ids: Sequence[str]
    def __init__(
        self,
        *,
        transactional_ids: Sequence[str] = ...,
    ) -> None: ...

class DescribeTransactionsResponse(Message):
    class TransactionState(Message):
        error_code: int
        transactional_id: str
        transaction_state: str
        transaction_timeout_ms: int
        transaction_start_time_ms: int
        producer_id: int
        producer_epoch: int
        topics: Sequence[DescribeTransactionsResponse.TopicData]
        def __init__(
            self,
            *,
            error_code: int = ...,
            transactional_id: str = ...,
            transaction_state: str = ...,
            transaction_timeout_ms: int = ...,
            transaction_start_time_ms: int = ...,
            producer_id: int = ...,
            producer_epoch: int = ...,
            topics: Sequence[DescribeTransactionsResponse.TopicData] = ...,
        ) -> None: ...

    class TopicData(Message):
        topic: str
        partitions: Sequence[int]
        def __init__(
            self,
            *,
            topic: str = ...,
            partitions: Sequence[int] = ...,
        ) -> None: ...

    throttle_time_ms: int
    transaction_states: Sequence[DescribeTransactionsResponse.TransactionState]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        transaction_states: Sequence[DescribeTransactionsResponse.TransactionState] = ...,
    ) -> None: ...

class DescribeUserScramCredentialsRequest(Message):
    class UserName(Message):
        name: str
        def __init__(
            self,
            *,
            name: str = ...,
        ) -> None: ...

    users: Sequence[DescribeUserScramCredentialsRequest.UserName] | None
    def __init__(
        self,
        *,
        users: Sequence[DescribeUserScramCredentialsRequest.UserName] | None = ...,
    ) -> None: ...

class DescribeUserScramCredentialsResponse(Message):
    class DescribeUserScramCredentialsResult(Message):
        user: str
        error_code: int
        error_message: str | None
        credential_infos: Sequence[DescribeUserScramCredentialsResponse.CredentialInfo]
        def __init__(
            self,
            *,
            user: str = ...,
            error_code: int = ...,
            error_message: str | None = ...,
            credential_infos: Sequence[DescribeUserScramCredentialsResponse.CredentialInfo] = ...,
        ) -> None: ...

    class CredentialInfo(Message):
        mechanism: int
        iterations: int
        def __init__(
            self,
            *,
            mechanism: int = ...,
            iterations: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    error_message: str | None
    results: Sequence[DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        error_message: str | None = ...,
        results: Sequence[DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult] = ...,
    ) -> None: ...

class ElectLeadersRequest(Message):
    class TopicPartitions(Message):
        topic: str
        partitions: Sequence[int]
        def __init__(
            self,
            *,
            topic: str = ...,
            partitions: Sequence[int] = ...,
        ) -> None: ...

    election_type: int
    topic_partitions: Sequence[ElectLeadersRequest.TopicPartitions] | None
    timeout_ms: int
    def __init__(
        self,
        *,
        election_type: int = ...,
        topic_partitions: Sequence[ElectLeadersRequest.TopicPartitions] | None = ...,
        timeout_ms: int = ...,
    ) -> None: ...

class ElectLeadersResponse(Message):
    class ReplicaElectionResult(Message):
        topic: str
        partition_result: Sequence[ElectLeadersResponse.PartitionResult]
        def __init__(
            self,
            *,
            topic: str = ...,
            partition_result: Sequence[ElectLeadersResponse.PartitionResult] = ...,
        ) -> None: ...

    class PartitionResult(Message):
        partition_id: int
        error_code: int
        error_message: str | None
        def __init__(
            self,
            *,
            partition_id: int = ...,
            error_code: int = ...,
            error_message: str | None = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    replica_election_results: Sequence[ElectLeadersResponse.ReplicaElectionResult]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        replica_election_results: Sequence[ElectLeadersResponse.ReplicaElectionResult] = ...,
    ) -> None: ...

class EndQuorumEpochRequest(Message):
    class TopicData(Message):
        topic_name: str
        partitions: Sequence[EndQuorumEpochRequest.PartitionData]
        def __init__(
            self,
            *,
            topic_name: str = ...,
            partitions: Sequence[EndQuorumEpochRequest.PartitionData] = ...,
        ) -> None: ...

    class PartitionData(Message):
        partition_index: int
        leader_id: int
        leader_epoch: int
        preferred_candidates: Sequence[EndQuorumEpochRequest.ReplicaInfo]
        preferred_successors: Sequence[int]
        def __init__(
            self,
            *,
            partition_index: int = ...,
            leader_id: int = ...,
            leader_epoch: int = ...,
            preferred_candidates: Sequence[EndQuorumEpochRequest.ReplicaInfo] = ...,
            preferred_successors: Sequence[int] = ...,
        ) -> None: ...

    class ReplicaInfo(Message):
        candidate_id: int
        candidate_directory_id: bytes
        def __init__(
            self,
            *,
            candidate_id: int = ...,
            candidate_directory_id: bytes = ...,
        ) -> None: ...

    class LeaderEndpoint(Message):
        name: str
        host: str
        port: int
        def __init__(
            self,
            *,
            name: str = ...,
            host: str = ...,
            port: int = ...,
        ) -> None: ...

    cluster_id: str | None
    topics: Sequence[EndQuorumEpochRequest.TopicData]
    leader_endpoints: Sequence[EndQuorumEpochRequest.LeaderEndpoint]
    def __init__(
        self,
        *,
        cluster_id: str | None = ...,
        topics: Sequence[EndQuorumEpochRequest.TopicData] = ...,
        leader_endpoints: Sequence[EndQuorumEpochRequest.LeaderEndpoint] = ...,
    ) -> None: ...

class EndQuorumEpochResponse(Message):
    class TopicData(Message):
        topic_name: str
        partitions: Sequence[EndQuorumEpochResponse.PartitionData]
        def __init__(
            self,
            *,
            topic_name: str = ...,
            partitions: Sequence[EndQuorumEpochResponse.PartitionData] = ...,
        ) -> None: ...

    class PartitionData(Message):
        partition_index: int
        error_code: int
        leader_id: int
        leader_epoch: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
            error_code: int = ...,
            leader_id: int = ...,
            leader_epoch: int = ...,
        ) -> None: ...

    class NodeEndpoint(Message):
        node_id: int
        host: str
        port: int
        def __init__(
            self,
            *,
            node_id: int = ...,
            host: str = ...,
            port: int = ...,
        ) -> None: ...

    error_code: int
    topics: Sequence[EndQuorumEpochResponse.TopicData]
    node_endpoints: Sequence[EndQuorumEpochResponse.NodeEndpoint]
    def __init__(
        self,
        *,
        error_code: int = ...,
        topics: Sequence[EndQuorumEpochResponse.TopicData] = ...,
        node_endpoints: Sequence[EndQuorumEpochResponse.NodeEndpoint] = ...,
    ) -> None: ...

class EndTransactionRecord(Message):
    def __init__(self) -> None: ...

class EndTxnMarker(Message):
    coordinator_epoch: int
    def __init__(
        self,
        *,
        coordinator_epoch: int = ...,
    ) -> None: ...

class EndTxnRequest(Message):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    def __init__(
        self,
        *,
        transactional_id: str = ...,
        producer_id: int = ...,
        producer_epoch: int = ...,
        committed: bool = ...,
    ) -> None: ...

class EndTxnResponse(Message):
    throttle_time_ms: int
    error_code: int
    producer_id: int
    producer_epoch: int
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        producer_id: int = ...,
        producer_epoch: int = ...,
    ) -> None: ...

class EnvelopeRequest(Message):
    request_data: bytes
    request_principal: bytes | None
    client_host_address: bytes
    def __init__(
        self,
        *,
        request_data: bytes = ...,
        request_principal: bytes | None = ...,
        client_host_address: bytes = ...,
    ) -> None: ...

class EnvelopeResponse(Message):
    response_data: bytes | None
    error_code: int
    def __init__(
        self,
        *,
        response_data: bytes | None = ...,
        error_code: int = ...,
    ) -> None: ...

class ExpireDelegationTokenRequest(Message):
    hmac: bytes
    expiry_time_period_ms: int
    def __init__(
        self,
        *,
        hmac: bytes = ...,
        expiry_time_period_ms: int = ...,
    ) -> None: ...

class ExpireDelegationTokenResponse(Message):
    error_code: int
    expiry_timestamp_ms: int
    throttle_time_ms: int
    def __init__(
        self,
        *,
        error_code: int = ...,
        expiry_timestamp_ms: int = ...,
        throttle_time_ms: int = ...,
    ) -> None: ...

class FeatureLevelRecord(Message):
    name: str
    feature_level: int
    def __init__(
        self,
        *,
        name: str = ...,
        feature_level: int = ...,
    ) -> None: ...

class FenceBrokerRecord(Message):
    id: int
    epoch: int
    def __init__(
        self,
        *,
        id: int = ...,
        epoch: int = ...,
    ) -> None: ...

class FetchRequest(Message):
    class ReplicaState(Message):
        replica_id: int
        replica_epoch: int
        def __init__(
            self,
            *,
            replica_id: int = ...,
            replica_epoch: int = ...,
        ) -> None: ...

    class FetchTopic(Message):
        topic_id: bytes
        topic: str
        partitions: Sequence[FetchRequest.FetchPartition]
        def __init__(
            self,
            *,
            topic_id: bytes = ...,
            topic: str = ...,
            partitions: Sequence[FetchRequest.FetchPartition] = ...,
        ) -> None: ...

    class FetchPartition(Message):
        partition: int
        current_leader_epoch: int
        fetch_offset: int
        last_fetched_epoch: int
        log_start_offset: int
        partition_max_bytes: int
        replica_directory_id: bytes
        high_watermark: int
        def __init__(
            self,
            *,
            partition: int = ...,
            current_leader_epoch: int = ...,
            fetch_offset: int = ...,
            last_fetched_epoch: int = ...,
            log_start_offset: int = ...,
            partition_max_bytes: int = ...,
            replica_directory_id: bytes = ...,
            high_watermark: int = ...,
        ) -> None: ...

    class ForgottenTopic(Message):
        topic_id: bytes
        topic: str
        partitions: Sequence[int]
        def __init__(
            self,
            *,
            topic_id: bytes = ...,
            topic: str = ...,
            partitions: Sequence[int] = ...,
        ) -> None: ...

    cluster_id: str | None
    replica_state: FetchRequest.ReplicaState | None
    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: Sequence[FetchRequest.FetchTopic]
    forgotten_topics_data: Sequence[FetchRequest.ForgottenTopic]
    rack_id: str
    def __init__(
        self,
        *,
        cluster_id: str | None = ...,
        replica_state: FetchRequest.ReplicaState | None = ...,
        replica_id: int = ...,
        max_wait_ms: int = ...,
        min_bytes: int = ...,
        max_bytes: int = ...,
        isolation_level: int = ...,
        session_id: int = ...,
        session_epoch: int = ...,
        topics: Sequence[FetchRequest.FetchTopic] = ...,
        forgotten_topics_data: Sequence[FetchRequest.ForgottenTopic] = ...,
        rack_id: str = ...,
    ) -> None: ...

class FetchResponse(Message):
    class FetchableTopicResponse(Message):
        topic_id: bytes
        topic: str
        partitions: Sequence[FetchResponse.PartitionData]
        def __init__(
            self,
            *,
            topic_id: bytes = ...,
            topic: str = ...,
            partitions: Sequence[FetchResponse.PartitionData] = ...,
        ) -> None: ...

    class PartitionData(Message):
        partition_index: int
        error_code: int
        high_watermark: int
        last_stable_offset: int
        log_start_offset: int
        diverging_epoch: FetchResponse.EpochEndOffset | None
        current_leader: FetchResponse.LeaderIdAndEpoch | None
        snapshot_id: FetchResponse.SnapshotId | None
        aborted_transactions: Sequence[FetchResponse.AbortedTransaction] | None
        preferred_read_replica: int
        records: Any
        def __init__(
            self,
            *,
            partition_index: int = ...,
            error_code: int = ...,
            high_watermark: int = ...,
            last_stable_offset: int = ...,
            log_start_offset: int = ...,
            diverging_epoch: FetchResponse.EpochEndOffset | None = ...,
            current_leader: FetchResponse.LeaderIdAndEpoch | None = ...,
            snapshot_id: FetchResponse.SnapshotId | None = ...,
            aborted_transactions: Sequence[FetchResponse.AbortedTransaction] | None = ...,
            preferred_read_replica: int = ...,
            records: Any = ...,
        ) -> None: ...

    class EpochEndOffset(Message):
        epoch: int
        end_offset: int
        def __init__(
            self,
            *,
            epoch: int = ...,
            end_offset: int = ...,
        ) -> None: ...

    class LeaderIdAndEpoch(Message):
        leader_id: int
        leader_epoch: int
        def __init__(
            self,
            *,
            leader_id: int = ...,
            leader_epoch: int = ...,
        ) -> None: ...

    class SnapshotId(Message):
        end_offset: int
        epoch: int
        def __init__(
            self,
            *,
            end_offset: int = ...,
            epoch: int = ...,
        ) -> None: ...

    class AbortedTransaction(Message):
        producer_id: int
        first_offset: int
        def __init__(
            self,
            *,
            producer_id: int = ...,
            first_offset: int = ...,
        ) -> None: ...

    class NodeEndpoint(Message):
        node_id: int
        host: str
        port: int
        rack: str | None
        def __init__(
            self,
            *,
            node_id: int = ...,
            host: str = ...,
            port: int = ...,
            rack: str | None = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    session_id: int
    responses: Sequence[FetchResponse.FetchableTopicResponse]
    node_endpoints: Sequence[FetchResponse.NodeEndpoint]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        session_id: int = ...,
        responses: Sequence[FetchResponse.FetchableTopicResponse] = ...,
        node_endpoints: Sequence[FetchResponse.NodeEndpoint] = ...,
    ) -> None: ...

class FetchSnapshotRequest(Message):
    class TopicSnapshot(Message):
        name: str
        partitions: Sequence[FetchSnapshotRequest.PartitionSnapshot]
        def __init__(
            self,
            *,
            name: str = ...,
            partitions: Sequence[FetchSnapshotRequest.PartitionSnapshot] = ...,
        ) -> None: ...

    class PartitionSnapshot(Message):
        partition: int
        current_leader_epoch: int
        snapshot_id: FetchSnapshotRequest.SnapshotId
        position: int
        replica_directory_id: bytes
        def __init__(
            self,
            *,
            partition: int = ...,
            current_leader_epoch: int = ...,
            snapshot_id: FetchSnapshotRequest.SnapshotId = ...,
            position: int = ...,
            replica_directory_id: bytes = ...,
        ) -> None: ...

    class SnapshotId(Message):
        end_offset: int
        epoch: int
        def __init__(
            self,
            *,
            end_offset: int = ...,
            epoch: int = ...,
        ) -> None: ...

    cluster_id: str | None
    replica_id: int
    max_bytes: int
    topics: Sequence[FetchSnapshotRequest.TopicSnapshot]
    def __init__(
        self,
        *,
        cluster_id: str | None = ...,
        replica_id: int = ...,
        max_bytes: int = ...,
        topics: Sequence[FetchSnapshotRequest.TopicSnapshot] = ...,
    ) -> None: ...

class FetchSnapshotResponse(Message):
    class TopicSnapshot(Message):
        name: str
        partitions: Sequence[FetchSnapshotResponse.PartitionSnapshot]
        def __init__(
            self,
            *,
            name: str = ...,
            partitions: Sequence[FetchSnapshotResponse.PartitionSnapshot] = ...,
        ) -> None: ...

    class PartitionSnapshot(Message):
        index: int
        error_code: int
        snapshot_id: FetchSnapshotResponse.SnapshotId
        current_leader: FetchSnapshotResponse.LeaderIdAndEpoch | None
        size: int
        position: int
        unaligned_records: Any
        def __init__(
            self,
            *,
            index: int = ...,
            error_code: int = ...,
            snapshot_id: FetchSnapshotResponse.SnapshotId = ...,
            current_leader: FetchSnapshotResponse.LeaderIdAndEpoch | None = ...,
            size: int = ...,
            position: int = ...,
            unaligned_records: Any = ...,
        ) -> None: ...

    class SnapshotId(Message):
        end_offset: int
        epoch: int
        def __init__(
            self,
            *,
            end_offset: int = ...,
            epoch: int = ...,
        ) -> None: ...

    class LeaderIdAndEpoch(Message):
        leader_id: int
        leader_epoch: int
        def __init__(
            self,
            *,
            leader_id: int = ...,
            leader_epoch: int = ...,
        ) -> None: ...

    class NodeEndpoint(Message):
        node_id: int
        host: str
        port: int
        def __init__(
            self,
            *,
            node_id: int = ...,
            host: str = ...,
            port: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    topics: Sequence[FetchSnapshotResponse.TopicSnapshot]
    node_endpoints: Sequence[FetchSnapshotResponse.NodeEndpoint]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        topics: Sequence[FetchSnapshotResponse.TopicSnapshot] = ...,
        node_endpoints: Sequence[FetchSnapshotResponse.NodeEndpoint] = ...,
    ) -> None: ...

class FindCoordinatorRequest(Message):
    key: str
    key_type: int
    coordinator_keys: Sequence[str]
    def __init__(
        self,
        *,
        key: str = ...,
        key_type: int = ...,
        coordinator_keys: Sequence[str] = ...,
    ) -> None: ...

class FindCoordinatorResponse(Message):
    class Coordinator(Message):
        key: str
        node_id: int
        host: str
        port: int
        error_code: int
        error_message: str | None
        def __init__(
            self,
            *,
            key: str = ...,
            node_id: int = ...,
            host: str = ...,
            port: int = ...,
            error_code: int = ...,
            error_message: str | None = ...,
        ) -> None: ...

    throttle_time_ms: int
    coordinators: Sequence[FindCoordinatorResponse.Coordinator]
    error_code: int
    error_message: str | None
    node_id: int
    host: str
    port: int
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        coordinators: Sequence[FindCoordinatorResponse.Coordinator] = ...,
        error_code: int = ...,
        error_message: str | None = ...,
        node_id: int = ...,
        host: str = ...,
        port: int = ...,
    ) -> None: ...

class GetTelemetrySubscriptionsRequest(Message):
    client_instance_id: bytes
    def __init__(
        self,
        *,
        client_instance_id: bytes = ...,
    ) -> None: ...

class GetTelemetrySubscriptionsResponse(Message):
    throttle_time_ms: int
    error_code: int
    client_instance_id: bytes
    subscription_id: int
    accepted_compression_types: Sequence[int]
    push_interval_ms: int
    telemetry_max_bytes: int
    delta_temporality: bool
    requested_metrics: Sequence[str]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        client_instance_id: bytes = ...,
        subscription_id: int = ...,
        accepted_compression_types: Sequence[int] = ...,
        push_interval_ms: int = ...,
        telemetry_max_bytes: int = ...,
        delta_temporality: bool = ...,
        requested_metrics: Sequence[str] = ...,
    ) -> None: ...

class GroupMetadataKey(Message):
    group: str
    def __init__(
        self,
        *,
        group: str = ...,
    ) -> None: ...

class GroupMetadataValue(Message):
    class MemberMetadata(Message):
        member_id: str
        group_instance_id: str | None
        client_id: str
        client_host: str
        rebalance_timeout: int
        session_timeout: int
        subscription: bytes
        assignment: bytes
        def __init__(
            self,
            *,
            member_id: str = ...,
            group_instance_id: str | None = ...,
            client_id: str = ...,
            client_host: str = ...,
            rebalance_timeout: int = ...,
            session_timeout: int = ...,
            subscription: bytes = ...,
            assignment: bytes = ...,
        ) -> None: ...

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    current_state_timestamp: int
    members: Sequence[GroupMetadataValue.MemberMetadata]
    def __init__(
        self,
        *,
        protocol_type: str = ...,
        generation: int = ...,
        protocol: str | None = ...,
        leader: str | None = ...,
        current_state_timestamp: int = ...,
        members: Sequence[GroupMetadataValue.MemberMetadata] = ...,
    ) -> None: ...

class HeartbeatRequest(Message):
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None
    def __init__(
        self,
        *,
        group_id: str = ...,
        generation_id: int = ...,
        member_id: str = ...,
        group_instance_id: str | None = ...,
    ) -> None: ...

class HeartbeatResponse(Message):
    throttle_time_ms: int
    error_code: int
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
    ) -> None: ...

class IncrementalAlterConfigsRequest(Message):
    class AlterConfigsResource(Message):
        resource_type: int
        resource_name: str
        configs: Sequence[IncrementalAlterConfigsRequest.AlterableConfig]
        def __init__(
            self,
            *,
            resource_type: int = ...,
            resource_name: str = ...,
            configs: Sequence[IncrementalAlterConfigsRequest.AlterableConfig] = ...,
        ) -> None: ...

    class AlterableConfig(Message):
        name: str
        config_operation: int
        value: str | None
        def __init__(
            self,
            *,
            name: str = ...,
            config_operation: int = ...,
            value: str | None = ...,
        ) -> None: ...

    resources: Sequence[IncrementalAlterConfigsRequest.AlterConfigsResource]
    validate_only: bool
    def __init__(
        self,
        *,
        resources: Sequence[IncrementalAlterConfigsRequest.AlterConfigsResource] = ...,
        validate_only: bool = ...,
    ) -> None: ...

class IncrementalAlterConfigsResponse(Message):
    class AlterConfigsResourceResponse(Message):
        error_code: int
        error_message: str | None
        resource_type: int
        resource_name: str
        def __init__(
            self,
            *,
            error_code: int = ...,
            error_message: str | None = ...,
            resource_type: int = ...,
            resource_name: str = ...,
        ) -> None: ...

    throttle_time_ms: int
    responses: Sequence[IncrementalAlterConfigsResponse.AlterConfigsResourceResponse]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        responses: Sequence[IncrementalAlterConfigsResponse.AlterConfigsResourceResponse] = ...,
    ) -> None: ...

class InitProducerIdRequest(Message):
    transactional_id: str | None
    transaction_timeout_ms: int
    producer_id: int
    producer_epoch: int
    enable2_pc: bool
    keep_prepared_txn: bool
    def __init__(
        self,
        *,
        transactional_id: str | None = ...,
        transaction_timeout_ms: int = ...,
        producer_id: int = ...,
        producer_epoch: int = ...,
        enable2_pc: bool = ...,
        keep_prepared_txn: bool = ...,
    ) -> None: ...

class InitProducerIdResponse(Message):
    throttle_time_ms: int
    error_code: int
    producer_id: int
    producer_epoch: int
    ongoing_txn_producer_id: int
    ongoing_txn_producer_epoch: int
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        producer_id: int = ...,
        producer_epoch: int = ...,
        ongoing_txn_producer_id: int = ...,
        ongoing_txn_producer_epoch: int = ...,
    ) -> None: ...

class InitializeShareGroupStateRequest(Message):
    class InitializeStateData(Message):
        topic_id: bytes
        partitions: Sequence[InitializeShareGroupStateRequest.PartitionData]
        def __init__(
            self,
            *,
            topic_id: bytes = ...,
            partitions: Sequence[InitializeShareGroupStateRequest.PartitionData] = ...,
        ) -> None: ...

    class PartitionData(Message):
        partition: int
        state_epoch: int
        start_offset: int
        def __init__(
            self,
            *,
            partition: int = ...,
            state_epoch: int = ...,
            start_offset: int = ...,
        ) -> None: ...

    group_id: str
    topics: Sequence[InitializeShareGroupStateRequest.InitializeStateData]
    def __init__(
        self,
        *,
        group_id: str = ...,
        topics: Sequence[InitializeShareGroupStateRequest.InitializeStateData] = ...,
    ) -> None: ...

class InitializeShareGroupStateResponse(Message):
    class InitializeStateResult(Message):
        topic_id: bytes
        partitions: Sequence[InitializeShareGroupStateResponse.PartitionResult]
        def __init__(
            self,
            *,
            topic_id: bytes = ...,
            partitions: Sequence[InitializeShareGroupStateResponse.PartitionResult] = ...,
        ) -> None: ...

    class PartitionResult(Message):
        partition: int
        error_code: int
        error_message: str | None
        def __init__(
            self,
            *,
            partition: int = ...,
            error_code: int = ...,
            error_message: str | None = ...,
        ) -> None: ...

    results: Sequence[InitializeShareGroupStateResponse.InitializeStateResult]
    def __init__(
        self,
        *,
        results: Sequence[InitializeShareGroupStateResponse.InitializeStateResult] = ...,
    ) -> None: ...

class JoinGroupRequest(Message):
    class JoinGroupRequestProtocol(Message):
        name: str
        metadata: bytes
        def __init__(
            self,
            *,
            name: str = ...,
            metadata: bytes = ...,
        ) -> None: ...

    group_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    member_id: str
    group_instance_id: str | None
    protocol_type: str
    protocols: Sequence[JoinGroupRequest.JoinGroupRequestProtocol]
    reason: str | None
    def __init__(
        self,
        *,
        group_id: str = ...,
        session_timeout_ms: int = ...,
        rebalance_timeout_ms: int = ...,
        member_id: str = ...,
        group_instance_id: str | None = ...,
        protocol_type: str = ...,
        protocols: Sequence[JoinGroupRequest.JoinGroupRequestProtocol] = ...,
        reason: str | None = ...,
    ) -> None: ...

class JoinGroupResponse(Message):
    class JoinGroupResponseMember(Message):
        member_id: str
        group_instance_id: str | None
        metadata: bytes
        def __init__(
            self,
            *,
            member_id: str = ...,
            group_instance_id: str | None = ...,
            metadata: bytes = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    generation_id: int
    protocol_type: str | None
    protocol_name: str | None
    leader: str
    skip_assignment: bool
    member_id: str
    members: Sequence[JoinGroupResponse.JoinGroupResponseMember]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        generation_id: int = ...,
        protocol_type: str | None = ...,
        protocol_name: str | None = ...,
        leader: str = ...,
        skip_assignment: bool = ...,
        member_id: str = ...,
        members: Sequence[JoinGroupResponse.JoinGroupResponseMember] = ...,
    ) -> None: ...

class KRaftVersionRecord(Message):
    version: int
    k_raft_version: int
    def __init__(
        self,
        *,
        version: int = ...,
        k_raft_version: int = ...,
    ) -> None: ...

class LeaderChangeMessage(Message):
    class Voter(Message):
        voter_id: int
        voter_directory_id: bytes
        def __init__(
            self,
            *,
            voter_id: int = ...,
            voter_directory_id: bytes = ...,
        ) -> None: ...

    version: int
    leader_id: int
    voters: Sequence[LeaderChangeMessage.Voter]
    granting_voters: Sequence[LeaderChangeMessage.Voter]
    def __init__(
        self,
        *,
        version: int = ...,
        leader_id: int = ...,
        voters: Sequence[LeaderChangeMessage.Voter] = ...,
        granting_voters: Sequence[LeaderChangeMessage.Voter] = ...,
    ) -> None: ...

class LeaveGroupRequest(Message):
    class MemberIdentity(Message):
        member_id: str
        group_instance_id: str | None
        reason: str | None
        def __init__(
            self,
            *,
            member_id: str = ...,
            group_instance_id: str | None = ...,
            reason: str | None = ...,
        ) -> None: ...

    group_id: str
    members: Sequence[LeaveGroupRequest.MemberIdentity]
    member_id: str
    def __init__(
        self,
        *,
        group_id: str = ...,
        members: Sequence[LeaveGroupRequest.MemberIdentity] = ...,
        member_id: str = ...,
    ) -> None: ...

class LeaveGroupResponse(Message):
    class MemberResponse(Message):
        member_id: str
        group_instance_id: str | None
        error_code: int
        def __init__(
            self,
            *,
            member_id: str = ...,
            group_instance_id: str | None = ...,
            error_code: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    members: Sequence[LeaveGroupResponse.MemberResponse]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        members: Sequence[LeaveGroupResponse.MemberResponse] = ...,
    ) -> None: ...

class LegacyOffsetCommitKey(Message):
    group: str
    topic: str
    partition: int
    def __init__(
        self,
        *,
        group: str = ...,
        topic: str = ...,
        partition: int = ...,
    ) -> None: ...

class ListConfigResourcesRequest(Message):
    resource_types: Sequence[int]
    def __init__(
        self,
        *,
        resource_types: Sequence[int] = ...,
    ) -> None: ...

class ListConfigResourcesResponse(Message):
    class ConfigResource(Message):
        resource_name: str
        resource_type: int
        def __init__(
            self,
            *,
            resource_name: str = ...,
            resource_type: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    config_resources: Sequence[ListConfigResourcesResponse.ConfigResource]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        config_resources: Sequence[ListConfigResourcesResponse.ConfigResource] = ...,
    ) -> None: ...

class ListGroupsRequest(Message):
    states_filter: Sequence[str]
    types_filter: Sequence[str]
    def __init__(
        self,
        *,
        states_filter: Sequence[str] = ...,
        types_filter: Sequence[str] = ...,
    ) -> None: ...

class ListGroupsResponse(Message):
    class ListedGroup(Message):
        group_id: str
        protocol_type: str
        group_state: str
        group_type: str
        def __init__(
            self,
            *,
            group_id: str = ...,
            protocol_type: str = ...,
            group_state: str = ...,
            group_type: str = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    groups: Sequence[ListGroupsResponse.ListedGroup]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        groups: Sequence[ListGroupsResponse.ListedGroup] = ...,
    ) -> None: ...

class ListOffsetsRequest(Message):
    class ListOffsetsTopic(Message):
        name: str
        partitions: Sequence[ListOffsetsRequest.ListOffsetsPartition]
        def __init__(
            self,
            *,
            name: str = ...,
            partitions: Sequence[ListOffsetsRequest.ListOffsetsPartition] = ...,
        ) -> None: ...

    class ListOffsetsPartition(Message):
        partition_index: int
        current_leader_epoch: int
        timestamp: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
            current_leader_epoch: int = ...,
            timestamp: int = ...,
        ) -> None: ...

    replica_id: int
    isolation_level: int
    topics: Sequence[ListOffsetsRequest.ListOffsetsTopic]
    timeout_ms: int
    def __init__(
        self,
        *,
        replica_id: int = ...,
        isolation_level: int = ...,
        topics: Sequence[ListOffsetsRequest.ListOffsetsTopic] = ...,
        timeout_ms: int = ...,
    ) -> None: ...

class ListOffsetsResponse(Message):
    class ListOffsetsTopicResponse(Message):
        name: str
        partitions: Sequence[ListOffsetsResponse.ListOffsetsPartitionResponse]
        def __init__(
            self,
            *,
            name: str = ...,
            partitions: Sequence[ListOffsetsResponse.ListOffsetsPartitionResponse] = ...,
        ) -> None: ...

    class ListOffsetsPartitionResponse(Message):
        partition_index: int
        error_code: int
        timestamp: int
        offset: int
        leader_epoch: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
            error_code: int = ...,
            timestamp: int = ...,
            offset: int = ...,
            leader_epoch: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    topics: Sequence[ListOffsetsResponse.ListOffsetsTopicResponse]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        topics: Sequence[ListOffsetsResponse.ListOffsetsTopicResponse] = ...,
    ) -> None: ...

class ListPartitionReassignmentsRequest(Message):
    class ListPartitionReassignmentsTopics(Message):
        name: str
        partition_indexes: Sequence[int]
        def __init__(
            self,
            *,
            name: str = ...,
            partition_indexes: Sequence[int] = ...,
        ) -> None: ...

    timeout_ms: int
    topics: Sequence[ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics] | None
    def __init__(
        self,
        *,
        timeout_ms: int = ...,
        topics: Sequence[ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics] | None = ...,
    ) -> None: ...

class ListPartitionReassignmentsResponse(Message):
    class OngoingTopicReassignment(Message):
        name: str
        partitions: Sequence[ListPartitionReassignmentsResponse.OngoingPartitionReassignment]
        def __init__(
            self,
            *,
            name: str = ...,
            partitions: Sequence[ListPartitionReassignmentsResponse.OngoingPartitionReassignment] = ...,
        ) -> None: ...

    class OngoingPartitionReassignment(Message):
        partition_index: int
        replicas: Sequence[int]
        adding_replicas: Sequence[int]
        removing_replicas: Sequence[int]
        def __init__(
            self,
            *,
            partition_index: int = ...,
            replicas: Sequence[int] = ...,
            adding_replicas: Sequence[int] = ...,
            removing_replicas: Sequence[int] = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    error_message: str | None
    topics: Sequence[ListPartitionReassignmentsResponse.OngoingTopicReassignment]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        error_message: str | None = ...,
        topics: Sequence[ListPartitionReassignmentsResponse.OngoingTopicReassignment] = ...,
    ) -> None: ...

class ListTransactionsRequest(Message):
    state_filters: Sequence[str]
    producer_id_filters: Sequence[int]
    duration_filter: int
    transactional_id_pattern: str | None
    def __init__(
        self,
        *,
        state_filters: Sequence[str] = ...,
        producer_id_filters: Sequence[int] = ...,
        duration_filter: int = ...,
        transactional_id_pattern: str | None = ...,
    ) -> None: ...

class ListTransactionsResponse(Message):
    class TransactionState(Message):
        transactional_id: str
        producer_id: int
        transaction_state: str
        def __init__(
            self,
            *,
            transactional_id: str = ...,
            producer_id: int = ...,
            transaction_state: str = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    unknown_state_filters: Sequence[str]
    transaction_states: Sequence[ListTransactionsResponse.TransactionState]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        unknown_state_filters: Sequence[str] = ...,
        transaction_states: Sequence[ListTransactionsResponse.TransactionState] = ...,
    ) -> None: ...

class MetadataRequest(Message):
    class MetadataRequestTopic(Message):
        topic_id: bytes
        name: str | None
        def __init__(
            self,
            *,
            topic_id: bytes = ...,
            name: str | None = ...,
        ) -> None: ...

    topics: Sequence[MetadataRequest.MetadataRequestTopic] | None
    allow_auto_topic_creation: bool
    include_cluster_authorized_operations: bool
    include_topic_authorized_operations: bool
    def __init__(
        self,
        *,
        topics: Sequence[MetadataRequest.MetadataRequestTopic] | None = ...,
        allow_auto_topic_creation: bool = ...,
        include_cluster_authorized_operations: bool = ...,
        include_topic_authorized_operations: bool = ...,
    ) -> None: ...

class MetadataResponse(Message):
    class MetadataResponseBroker(Message):
        node_id: int
        host: str
        port: int
        rack: str | None
        def __init__(
            self,
            *,
            node_id: int = ...,
            host: str = ...,
            port: int = ...,
            rack: str | None = ...,
        ) -> None: ...

    class MetadataResponseTopic(Message):
        error_code: int
        name: str | None
        topic_id: bytes
        is_internal: bool
        partitions: Sequence[MetadataResponse.MetadataResponsePartition]
        topic_authorized_operations: int
        def __init__(
            self,
            *,
            error_code: int = ...,
            name: str | None = ...,
            topic_id: bytes = ...,
            is_internal: bool = ...,
            partitions: Sequence[MetadataResponse.MetadataResponsePartition] = ...,
            topic_authorized_operations: int = ...,
        ) -> None: ...

    class MetadataResponsePartition(Message):
        error_code: int
        partition_index: int
        leader_id: int
        leader_epoch: int
        replica_nodes: Sequence[int]
        isr_nodes: Sequence[int]
        offline_replicas: Sequence[int]
        def __init__(
            self,
            *,
            error_code: int = ...,
            partition_index: int = ...,
            leader_id: int = ...,
            leader_epoch: int = ...,
            replica_nodes: Sequence[int] = ...,
            isr_nodes: Sequence[int] = ...,
            offline_replicas: Sequence[int] = ...,
        ) -> None: ...

    throttle_time_ms: int
    brokers: Sequence[MetadataResponse.MetadataResponseBroker]
    cluster_id: str | None
    controller_id: int
    topics: Sequence[MetadataResponse.MetadataResponseTopic]
    error_code: int
    cluster_authorized_operations: int
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        brokers: Sequence[MetadataResponse.MetadataResponseBroker] = ...,
        cluster_id: str | None = ...,
        controller_id: int = ...,
        topics: Sequence[MetadataResponse.MetadataResponseTopic] = ...,
        error_code: int = ...,
        cluster_authorized_operations: int = ...,
    ) -> None: ...

class NoOpRecord(Message):
    def __init__(self) -> None: ...

class OffsetCommitKey(Message):
    group: str
    topic: str
    partition: int
    def __init__(
        self,
        *,
        group: str = ...,
        topic: str = ...,
        partition: int = ...,
    ) -> None: ...

class OffsetCommitRequest(Message):
    class OffsetCommitRequestTopic(Message):
        topic_id: bytes
        name: str
        partitions: Sequence[OffsetCommitRequest.OffsetCommitRequestPartition]
        def __init__(
            self,
            *,
            topic_id: bytes = ...,
            name: str = ...,
            partitions: Sequence[OffsetCommitRequest.OffsetCommitRequestPartition] = ...,
        ) -> None: ...

    class OffsetCommitRequestPartition(Message):
        partition_index: int
        committed_offset: int
        committed_leader_epoch: int
        committed_metadata: str | None
        def __init__(
            self,
            *,
            partition_index: int = ...,
            committed_offset: int = ...,
            committed_leader_epoch: int = ...,
            committed_metadata: str | None = ...,
        ) -> None: ...

    group_id: str
    generation_id_or_member_epoch: int
    member_id: str
    group_instance_id: str | None
    retention_time_ms: int
    topics: Sequence[OffsetCommitRequest.OffsetCommitRequestTopic]
    def __init__(
        self,
        *,
        group_id: str = ...,
        generation_id_or_member_epoch: int = ...,
        member_id: str = ...,
        group_instance_id: str | None = ...,
        retention_time_ms: int = ...,
        topics: Sequence[OffsetCommitRequest.OffsetCommitRequestTopic] = ...,
    ) -> None: ...

class OffsetCommitResponse(Message):
    class OffsetCommitResponseTopic(Message):
        topic_id: bytes
        name: str
        partitions: Sequence[OffsetCommitResponse.OffsetCommitResponsePartition]
        def __init__(
            self,
            *,
            topic_id: bytes = ...,
            name: str = ...,
            partitions: Sequence[OffsetCommitResponse.OffsetCommitResponsePartition] = ...,
        ) -> None: ...

    class OffsetCommitResponsePartition(Message):
        partition_index: int
        error_code: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
            error_code: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    topics: Sequence[OffsetCommitResponse.OffsetCommitResponseTopic]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        topics: Sequence[OffsetCommitResponse.OffsetCommitResponseTopic] = ...,
    ) -> None: ...

class OffsetCommitValue(Message):
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    expire_timestamp: int
    topic_id: bytes
    def __init__(
        self,
        *,
        offset: int = ...,
        leader_epoch: int = ...,
        metadata: str = ...,
        commit_timestamp: int = ...,
        expire_timestamp: int = ...,
        topic_id: bytes = ...,
    ) -> None: ...

class OffsetDeleteRequest(Message):
    class OffsetDeleteRequestTopic(Message):
        name: str
        partitions: Sequence[OffsetDeleteRequest.OffsetDeleteRequestPartition]
        def __init__(
            self,
            *,
            name: str = ...,
            partitions: Sequence[OffsetDeleteRequest.OffsetDeleteRequestPartition] = ...,
        ) -> None: ...

    class OffsetDeleteRequestPartition(Message):
        partition_index: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
        ) -> None: ...

    group_id: str
    topics: Sequence[OffsetDeleteRequest.OffsetDeleteRequestTopic]
    def __init__(
        self,
        *,
        group_id: str = ...,
        topics: Sequence[OffsetDeleteRequest.OffsetDeleteRequestTopic] = ...,
    ) -> None: ...

class OffsetDeleteResponse(Message):
    class OffsetDeleteResponseTopic(Message):
        name: str
        partitions: Sequence[OffsetDeleteResponse.OffsetDeleteResponsePartition]
        def __init__(
            self,
            *,
            name: str = ...,
            partitions: Sequence[OffsetDeleteResponse.OffsetDeleteResponsePartition] = ...,
        ) -> None: ...

    class OffsetDeleteResponsePartition(Message):
        partition_index: int
        error_code: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
            error_code: int = ...,
        ) -> None: ...

    error_code: int
    throttle_time_ms: int
    topics: Sequence[OffsetDeleteResponse.OffsetDeleteResponseTopic]
    def __init__(
        self,
        *,
        error_code: int = ...,
        throttle_time_ms: int = ...,
        topics: Sequence[OffsetDeleteResponse.OffsetDeleteResponseTopic] = ...,
    ) -> None: ...

class OffsetFetchRequest(Message):
    class OffsetFetchRequestGroup(Message):
        group_id: str
        member_id: str | None
        member_epoch: int
        topics: Sequence[OffsetFetchRequest.OffsetFetchRequestTopics] | None
        def __init__(
            self,
            *,
            group_id: str = ...,
            member_id: str | None = ...,
            member_epoch: int = ...,
            topics: Sequence[OffsetFetchRequest.OffsetFetchRequestTopics] | None = ...,
        ) -> None: ...

    class OffsetFetchRequestTopics(Message):
        topic_id: bytes
        name: str
        partition_indexes: Sequence[int]
        def __init__(
            self,
            *,
            topic_id: bytes = ...,
            name: str = ...,
            partition_indexes: Sequence[int] = ...,
        ) -> None: ...

    class OffsetFetchRequestTopic(Message):
        name: str
        partition_indexes: Sequence[int]
        def __init__(
            self,
            *,
            name: str = ...,
            partition_indexes: Sequence[int] = ...,
        ) -> None: ...

    groups: Sequence[OffsetFetchRequest.OffsetFetchRequestGroup]
    group_id: str
    topics: Sequence[OffsetFetchRequest.OffsetFetchRequestTopic] | None
    require_stable: bool
    def __init__(
        self,
        *,
        groups: Sequence[OffsetFetchRequest.OffsetFetchRequestGroup] = ...,
        group_id: str = ...,
        topics: Sequence[OffsetFetchRequest.OffsetFetchRequestTopic] | None = ...,
        require_stable: bool = ...,
    ) -> None: ...

class OffsetFetchResponse(Message):
    class OffsetFetchResponseGroup(Message):
        group_id: str
        topics: Sequence[OffsetFetchResponse.OffsetFetchResponseTopics]
        error_code: int
        def __init__(
            self,
            *,
            group_id: str = ...,
            topics: Sequence[OffsetFetchResponse.OffsetFetchResponseTopics] = ...,
            error_code: int = ...,
        ) -> None: ...

    class OffsetFetchResponseTopics(Message):
        topic_id: bytes
        name: str
        partitions: Sequence[OffsetFetchResponse.OffsetFetchResponsePartitions]
        def __init__(
            self,
            *,
            topic_id: bytes = ...,
            name: str = ...,
            partitions: Sequence[OffsetFetchResponse.OffsetFetchResponsePartitions] = ...,
        ) -> None: ...

    class OffsetFetchResponsePartitions(Message):
        partition_index: int
        committed_offset: int
        committed_leader_epoch: int
        metadata: str | None
        error_code: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
            committed_offset: int = ...,
            committed_leader_epoch: int = ...,
            metadata: str | None = ...,
            error_code: int = ...,
        ) -> None: ...

    class OffsetFetchResponseTopic(Message):
        name: str
        partitions: Sequence[OffsetFetchResponse.OffsetFetchResponsePartition]
        def __init__(
            self,
            *,
            name: str = ...,
            partitions: Sequence[OffsetFetchResponse.OffsetFetchResponsePartition] = ...,
        ) -> None: ...

    class OffsetFetchResponsePartition(Message):
        partition_index: int
        committed_offset: int
        committed_leader_epoch: int
        metadata: str | None
        error_code: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
            committed_offset: int = ...,
            committed_leader_epoch: int = ...,
            metadata: str | None = ...,
            error_code: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    groups: Sequence[OffsetFetchResponse.OffsetFetchResponseGroup]
    topics: Sequence[OffsetFetchResponse.OffsetFetchResponseTopic]
    error_code: int
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        groups: Sequence[OffsetFetchResponse.OffsetFetchResponseGroup] = ...,
        topics: Sequence[OffsetFetchResponse.OffsetFetchResponseTopic] = ...,
        error_code: int = ...,
    ) -> None: ...

class OffsetForLeaderEpochRequest(Message):
    class OffsetForLeaderTopic(Message):
        topic: str
        partitions: Sequence[OffsetForLeaderEpochRequest.OffsetForLeaderPartition]
        def __init__(
            self,
            *,
            topic: str = ...,
            partitions: Sequence[OffsetForLeaderEpochRequest.OffsetForLeaderPartition] = ...,
        ) -> None: ...

    class OffsetForLeaderPartition(Message):
        partition: int
        current_leader_epoch: int
        leader_epoch: int
        def __init__(
            self,
            *,
            partition: int = ...,
            current_leader_epoch: int = ...,
            leader_epoch: int = ...,
        ) -> None: ...

    replica_id: int
    topics: Sequence[OffsetForLeaderEpochRequest.OffsetForLeaderTopic]
    def __init__(
        self,
        *,
        replica_id: int = ...,
        topics: Sequence[OffsetForLeaderEpochRequest.OffsetForLeaderTopic] = ...,
    ) -> None: ...

class OffsetForLeaderEpochResponse(Message):
    class OffsetForLeaderTopicResult(Message):
        topic: str
        partitions: Sequence[OffsetForLeaderEpochResponse.EpochEndOffset]
        def __init__(
            self,
            *,
            topic: str = ...,
            partitions: Sequence[OffsetForLeaderEpochResponse.EpochEndOffset] = ...,
        ) -> None: ...

    class EpochEndOffset(Message):
        error_code: int
        partition: int
        leader_epoch: int
        end_offset: int
        def __init__(
            self,
            *,
            error_code: int = ...,
            partition: int = ...,
            leader_epoch: int = ...,
            end_offset: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    topics: Sequence[OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        topics: Sequence[OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult] = ...,
    ) -> None: ...

class PartitionChangeRecord(Message):
    partition_id: int
    topic_id: bytes
    isr: Sequence[int] | None
    leader: int
    replicas: Sequence[int] | None
    removing_replicas: Sequence[int] | None
    adding_replicas: Sequence[int] | None
    leader_recovery_state: int
    directories: Sequence[bytes] | None
    eligible_leader_replicas: Sequence[int] | None
    last_known_elr: Sequence[int] | None
    def __init__(
        self,
        *,
        partition_id: int = ...,
        topic_id: bytes = ...,
        isr: Sequence[int] | None = ...,
        leader: int = ...,
        replicas: Sequence[int] | None = ...,
        removing_replicas: Sequence[int] | None = ...,
        adding_replicas: Sequence[int] | None = ...,
        leader_recovery_state: int = ...,
        directories: Sequence[bytes] | None = ...,
        eligible_leader_replicas: Sequence[int] | None = ...,
        last_known_elr: Sequence[int] | None = ...,
    ) -> None: ...

class PartitionRecord(Message):
    partition_id: int
    topic_id: bytes
    replicas: Sequence[int]
    isr: Sequence[int]
    removing_replicas: Sequence[int]
    adding_replicas: Sequence[int]
    leader: int
    leader_recovery_state: int
    leader_epoch: int
    partition_epoch: int
    directories: Sequence[bytes]
    eligible_leader_replicas: Sequence[int] | None
    last_known_elr: Sequence[int] | None
    def __init__(
        self,
        *,
        partition_id: int = ...,
        topic_id: bytes = ...,
        replicas: Sequence[int] = ...,
        isr: Sequence[int] = ...,
        removing_replicas: Sequence[int] = ...,
        adding_replicas: Sequence[int] = ...,
        leader: int = ...,
        leader_recovery_state: int = ...,
        leader_epoch: int = ...,
        partition_epoch: int = ...,
        directories: Sequence[bytes] = ...,
        eligible_leader_replicas: Sequence[int] | None = ...,
        last_known_elr: Sequence[int] | None = ...,
    ) -> None: ...

class ProduceRequest(Message):
    class TopicProduceData(Message):
        topic_id: bytes
        name: str
        partition_data: Sequence[ProduceRequest.PartitionProduceData]
        def __init__(
            self,
            *,
            topic_id: bytes = ...,
            name: str = ...,
            partition_data: Sequence[ProduceRequest.PartitionProduceData] = ...,
        ) -> None: ...

    class PartitionProduceData(Message):
        index: int
        records: Any
        def __init__(
            self,
            *,
            index: int = ...,
            records: Any = ...,
        ) -> None: ...

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topic_data: Sequence[ProduceRequest.TopicProduceData]
    def __init__(
        self,
        *,
        transactional_id: str | None = ...,
        acks: int = ...,
        timeout_ms: int = ...,
        topic_data: Sequence[ProduceRequest.TopicProduceData] = ...,
    ) -> None: ...

class ProduceResponse(Message):
    class TopicProduceResponse(Message):
        topic_id: bytes
        name: str
        partition_responses: Sequence[ProduceResponse.PartitionProduceResponse]
        def __init__(
            self,
            *,
            topic_id: bytes = ...,
            name: str = ...,
            partition_responses: Sequence[ProduceResponse.PartitionProduceResponse] = ...,
        ) -> None: ...

    class PartitionProduceResponse(Message):
        index: int
        error_code: int
        base_offset: int
        log_append_time_ms: int
        log_start_offset: int
        record_errors: Sequence[ProduceResponse.BatchIndexAndErrorMessage]
        error_message: str | None
        current_leader: ProduceResponse.LeaderIdAndEpoch | None
        def __init__(
            self,
            *,
            index: int = ...,
            error_code: int = ...,
            base_offset: int = ...,
            log_append_time_ms: int = ...,
            log_start_offset: int = ...,
            record_errors: Sequence[ProduceResponse.BatchIndexAndErrorMessage] = ...,
            error_message: str | None = ...,
            current_leader: ProduceResponse.LeaderIdAndEpoch | None = ...,
        ) -> None: ...

    class BatchIndexAndErrorMessage(Message):
        batch_index: int
        batch_index_error_message: str | None
        def __init__(
            self,
            *,
            batch_index: int = ...,
            batch_index_error_message: str | None = ...,
        ) -> None: ...

    class LeaderIdAndEpoch(Message):
        leader_id: int
        leader_epoch: int
        def __init__(
            self,
            *,
            leader_id: int = ...,
            leader_epoch: int = ...,
        ) -> None: ...

    class NodeEndpoint(Message):
        node_id: int
        host: str
        port: int
        rack: str | None
        def __init__(
            self,
            *,
            node_id: int = ...,
            host: str = ...,
            port: int = ...,
            rack: str | None = ...,
        ) -> None: ...

    responses: Sequence[ProduceResponse.TopicProduceResponse]
    throttle_time_ms: int
    node_endpoints: Sequence[ProduceResponse.NodeEndpoint]
    def __init__(
        self,
        *,
        responses: Sequence[ProduceResponse.TopicProduceResponse] = ...,
        throttle_time_ms: int = ...,
        node_endpoints: Sequence[ProduceResponse.NodeEndpoint] = ...,
    ) -> None: ...

class ProducerIdsRecord(Message):
    broker_id: int
    broker_epoch: int
    next_producer_id: int
    def __init__(
        self,
        *,
        broker_id: int = ...,
        broker_epoch: int = ...,
        next_producer_id: int = ...,
    ) -> None: ...

class PushTelemetryRequest(Message):
    client_instance_id: bytes
    subscription_id: int
    terminating: bool
    compression_type: int
    metrics: bytes
    def __init__(
        self,
        *,
        client_instance_id: bytes = ...,
        subscription_id: int = ...,
        terminating: bool = ...,
        compression_type: int = ...,
        metrics: bytes = ...,
    ) -> None: ...

class PushTelemetryResponse(Message):
    throttle_time_ms: int
    error_code: int
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
    ) -> None: ...

class ReadShareGroupStateRequest(Message):
    class ReadStateData(Message):
        topic_id: bytes
        partitions: Sequence[ReadShareGroupStateRequest.PartitionData]
        def __init__(
            self,
            *,
            topic_id: bytes = ...,
            partitions: Sequence[ReadShareGroupStateRequest.PartitionData] = ...,
        ) -> None: ...

    class PartitionData(Message):
        partition: int
        leader_epoch: int
        def __init__(
            self,
            *,
            partition: int = ...,
            leader_epoch: int = ...,
        ) -> None: ...

    group_id: str
    topics: Sequence[ReadShareGroupStateRequest.ReadStateData]
    def __init__(
        self,
        *,
        group_id: str = ...,
        topics: Sequence[ReadShareGroupStateRequest.ReadStateData] = ...,
    ) -> None: ...

class ReadShareGroupStateResponse(Message):
    class ReadStateResult(Message):
        topic_id: bytes
        partitions: Sequence[ReadShareGroupStateResponse.PartitionResult]
        def __init__(
            self,
            *,
            topic_id: bytes = ...,
            partitions: Sequence[ReadShareGroupStateResponse.PartitionResult] = ...,
        ) -> None: ...

    class PartitionResult(Message):
        partition: int
        error_code: int
        error_message: str | None
        state_epoch: int
        start_offset: int
        state_batches: Sequence[ReadShareGroupStateResponse.StateBatch]
        def __init__(
            self,
            *,
            partition: int = ...,
            error_code: int = ...,
            error_message: str | None = ...,
            state_epoch: int = ...,
            start_offset: int = ...,
            state_batches: Sequence[ReadShareGroupStateResponse.StateBatch] = ...,
        ) -> None: ...

    class StateBatch(Message):
        first_offset: int
        last_offset: int
        delivery_state: int
        delivery_count: int
        def __init__(
            self,
            *,
            first_offset: int = ...,
            last_offset: int = ...,
            delivery_state: int = ...,
            delivery_count: int = ...,
        ) -> None: ...

    results: Sequence[ReadShareGroupStateResponse.ReadStateResult]
    def __init__(
        self,
        *,
        results: Sequence[ReadShareGroupStateResponse.ReadStateResult] = ...,
    ) -> None: ...

class ReadShareGroupStateSummaryRequest(Message):
    class ReadStateSummaryData(Message):
        topic_id: bytes
        partitions: Sequence[ReadShareGroupStateSummaryRequest.PartitionData]
        def __init__(
            self,
            *,
            topic_id: bytes = ...,
            partitions: Sequence[ReadShareGroupStateSummaryRequest.PartitionData] = ...,
        ) -> None: ...

    class PartitionData(Message):
        partition: int
        leader_epoch: int
        def __init__(
            self,
            *,
            partition: int = ...,
            leader_epoch: int = ...,
        ) -> None: ...

    group_id: str
    topics: Sequence[ReadShareGroupStateSummaryRequest.ReadStateSummaryData]
    def __init__(
        self,
        *,
        group_id: str = ...,
        topics: Sequence[ReadShareGroupStateSummaryRequest.ReadStateSummaryData] = ...,
    ) -> None: ...

class ReadShareGroupStateSummaryResponse(Message):
    class ReadStateSummaryResult(Message):
        topic_id: bytes
        partitions: Sequence[ReadShareGroupStateSummaryResponse.PartitionResult]
        def __init__(
            self,
            *,
            topic_id: bytes = ...,
            partitions: Sequence[ReadShareGroupStateSummaryResponse.PartitionResult] = ...,
        ) -> None: ...

    class PartitionResult(Message):
        partition: int
        error_code: int
        error_message: str | None
        state_epoch: int
        leader_epoch: int
        start_offset: int
        delivery_complete_count: int
        def __init__(
            self,
            *,
            partition: int = ...,
            error_code: int = ...,
            error_message: str | None = ...,
            state_epoch: int = ...,
            leader_epoch: int = ...,
            start_offset: int = ...,
            delivery_complete_count: int = ...,
        ) -> None: ...

    results: Sequence[ReadShareGroupStateSummaryResponse.ReadStateSummaryResult]
    def __init__(
        self,
        *,
        results: Sequence[ReadShareGroupStateSummaryResponse.ReadStateSummaryResult] = ...,
    ) -> None: ...

class RegisterBrokerRecord(Message):
    class BrokerEndpoint(Message):
        name: str
        host: str
        port: int
        security_protocol: int
        def __init__(
            self,
            *,
            name: str = ...,
            host: str = ...,
            port: int = ...,
            security_protocol: int = ...,
        ) -> None: ...

    class BrokerFeature(Message):
        name: str
        min_supported_version: int
        max_supported_version: int
        def __init__(
            self,
            *,
            name: str = ...,
            min_supported_version: int = ...,
            max_supported_version: int = ...,
        ) -> None: ...

    broker_id: int
    is_migrating_zk_broker: bool
    incarnation_id: bytes
    broker_epoch: int
    end_points: Sequence[RegisterBrokerRecord.BrokerEndpoint]
    features: Sequence[RegisterBrokerRecord.BrokerFeature]
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    log_dirs: Sequence[bytes]
    cordoned_log_dirs: Sequence[bytes] | None
    def __init__(
        self,
        *,
        broker_id: int = ...,
        is_migrating_zk_broker: bool = ...,
        incarnation_id: bytes = ...,
        broker_epoch: int = ...,
        end_points: Sequence[RegisterBrokerRecord.BrokerEndpoint] = ...,
        features: Sequence[RegisterBrokerRecord.BrokerFeature] = ...,
        rack: str | None = ...,
        fenced: bool = ...,
        in_controlled_shutdown: bool = ...,
        log_dirs: Sequence[bytes] = ...,
        cordoned_log_dirs: Sequence[bytes] | None = ...,
    ) -> None: ...

class RegisterControllerRecord(Message):
    class ControllerEndpoint(Message):
        name: str
        host: str
        port: int
        security_protocol: int
        def __init__(
            self,
            *,
            name: str = ...,
            host: str = ...,
            port: int = ...,
            security_protocol: int = ...,
        ) -> None: ...

    class ControllerFeature(Message):
        name: str
        min_supported_version: int
        max_supported_version: int
        def __init__(
            self,
            *,
            name: str = ...,
            min_supported_version: int = ...,
            max_supported_version: int = ...,
        ) -> None: ...

    controller_id: int
    incarnation_id: bytes
    zk_migration_ready: bool
    end_points: Sequence[RegisterControllerRecord.ControllerEndpoint]
    features: Sequence[RegisterControllerRecord.ControllerFeature]
    def __init__(
        self,
        *,
        controller_id: int = ...,
        incarnation_id: bytes = ...,
        zk_migration_ready: bool = ...,
        end_points: Sequence[RegisterControllerRecord.ControllerEndpoint] = ...,
        features: Sequence[RegisterControllerRecord.ControllerFeature] = ...,
    ) -> None: ...

class RemoveAccessControlEntryRecord(Message):
    id: bytes
    def __init__(
        self,
        *,
        id: bytes = ...,
    ) -> None: ...

class RemoveDelegationTokenRecord(Message):
    token_id: str
    def __init__(
        self,
        *,
        token_id: str = ...,
    ) -> None: ...

class RemoveRaftVoterRequest(Message):
    cluster_id: str | None
    voter_id: int
    voter_directory_id: bytes
    def __init__(
        self,
        *,
        cluster_id: str | None = ...,
        voter_id: int = ...,
        voter_directory_id: bytes = ...,
    ) -> None: ...

class RemoveRaftVoterResponse(Message):
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        error_message: str | None = ...,
    ) -> None: ...

class RemoveTopicRecord(Message):
    topic_id: bytes
    def __init__(
        self,
        *,
        topic_id: bytes = ...,
    ) -> None: ...

class RemoveUserScramCredentialRecord(Message):
    name: str
    mechanism: int
    def __init__(
        self,
        *,
        name: str = ...,
        mechanism: int = ...,
    ) -> None: ...

class RenewDelegationTokenRequest(Message):
    hmac: bytes
    renew_period_ms: int
    def __init__(
        self,
        *,
        hmac: bytes = ...,
        renew_period_ms: int = ...,
    ) -> None: ...

class RenewDelegationTokenResponse(Message):
    error_code: int
    expiry_timestamp_ms: int
    throttle_time_ms: int
    def __init__(
        self,
        *,
        error_code: int = ...,
        expiry_timestamp_ms: int = ...,
        throttle_time_ms: int = ...,
    ) -> None: ...

class SaslAuthenticateRequest(Message):
    auth_bytes: bytes
    def __init__(
        self,
        *,
        auth_bytes: bytes = ...,
    ) -> None: ...

class SaslAuthenticateResponse(Message):
    error_code: int
    error_message: str | None
    auth_bytes: bytes
    session_lifetime_ms: int
    def __init__(
        self,
        *,
        error_code: int = ...,
        error_message: str | None = ...,
        auth_bytes: bytes = ...,
        session_lifetime_ms: int = ...,
    ) -> None: ...

class SaslHandshakeRequest(Message):
    mechanism: str
    def __init__(
        self,
        *,
        mechanism: str = ...,
    ) -> None: ...

class SaslHandshakeResponse(Message):
    error_code: int
    mechanisms: Sequence[str]
    def __init__(
        self,
        *,
        error_code: int = ...,
        mechanisms: Sequence[str] = ...,
    ) -> None: ...

class ShareAcknowledgeRequest(Message):
    class AcknowledgeTopic(Message):
        topic_id: bytes
        partitions: Sequence[ShareAcknowledgeRequest.AcknowledgePartition]
        def __init__(
            self,
            *,
            topic_id: bytes = ...,
            partitions: Sequence[ShareAcknowledgeRequest.AcknowledgePartition] = ...,
        ) -> None: ...

    class AcknowledgePartition(Message):
        partition_index: int
        acknowledgement_batches: Sequence[ShareAcknowledgeRequest.AcknowledgementBatch]
        def __init__(
            self,
            *,
            partition_index: int = ...,
            acknowledgement_batches: Sequence[ShareAcknowledgeRequest.AcknowledgementBatch] = ...,
        ) -> None: ...

    class AcknowledgementBatch(Message):
        first_offset: int
        last_offset: int
        acknowledge_types: Sequence[int]
        def __init__(
            self,
            *,
            first_offset: int = ...,
            last_offset: int = ...,
            acknowledge_types: Sequence[int] = ...,
        ) -> None: ...

    group_id: str | None
    member_id: str | None
    share_session_epoch: int
    is_renew_ack: bool
    topics: Sequence[ShareAcknowledgeRequest.AcknowledgeTopic]
    def __init__(
        self,
        *,
        group_id: str | None = ...,
        member_id: str | None = ...,
        share_session_epoch: int = ...,
        is_renew_ack: bool = ...,
        topics: Sequence[ShareAcknowledgeRequest.AcknowledgeTopic] = ...,
    ) -> None: ...

class ShareAcknowledgeResponse(Message):
    class ShareAcknowledgeTopicResponse(Message):
        topic_id: bytes
        partitions: Sequence[ShareAcknowledgeResponse.PartitionData]
        def __init__(
            self,
            *,
            topic_id: bytes = ...,
            partitions: Sequence[ShareAcknowledgeResponse.PartitionData] = ...,
        ) -> None: ...

    class PartitionData(Message):
        partition_index: int
        error_code: int
        error_message: str | None
        current_leader: ShareAcknowledgeResponse.LeaderIdAndEpoch
        def __init__(
            self,
            *,
            partition_index: int = ...,
            error_code: int = ...,
            error_message: str | None = ...,
            current_leader: ShareAcknowledgeResponse.LeaderIdAndEpoch = ...,
        ) -> None: ...

    class LeaderIdAndEpoch(Message):
        leader_id: int
        leader_epoch: int
        def __init__(
            self,
            *,
            leader_id: int = ...,
            leader_epoch: int = ...,
        ) -> None: ...

    class NodeEndpoint(Message):
        node_id: int
        host: str
        port: int
        rack: str | None
        def __init__(
            self,
            *,
            node_id: int = ...,
            host: str = ...,
            port: int = ...,
            rack: str | None = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    error_message: str | None
    acquisition_lock_timeout_ms: int
    responses: Sequence[ShareAcknowledgeResponse.ShareAcknowledgeTopicResponse]
    node_endpoints: Sequence[ShareAcknowledgeResponse.NodeEndpoint]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        error_message: str | None = ...,
        acquisition_lock_timeout_ms: int = ...,
        responses: Sequence[ShareAcknowledgeResponse.ShareAcknowledgeTopicResponse] = ...,
        node_endpoints: Sequence[ShareAcknowledgeResponse.NodeEndpoint] = ...,
    ) -> None: ...

class ShareFetchRequest(Message):
    class FetchTopic(Message):
        topic_id: bytes
        partitions: Sequence[ShareFetchRequest.FetchPartition]
        def __init__(
            self,
            *,
            topic_id: bytes = ...,
            partitions: Sequence[ShareFetchRequest.FetchPartition] = ...,
        ) -> None: ...

    class FetchPartition(Message):
        partition_index: int
        acknowledgement_batches: Sequence[ShareFetchRequest.AcknowledgementBatch]
        def __init__(
            self,
            *,
            partition_index: int = ...,
            acknowledgement_batches: Sequence[ShareFetchRequest.AcknowledgementBatch] = ...,
        ) -> None: ...

    class AcknowledgementBatch(Message):
        first_offset: int
        last_offset: int
        acknowledge_types: Sequence[int]
        def __init__(
            self,
            *,
            first_offset: int = ...,
            last_offset: int = ...,
            acknowledge_types: Sequence[int] = ...,
        ) -> None: ...

    class ForgottenTopic(Message):
        topic_id: bytes
        partitions: Sequence[int]
        def __init__(
            self,
            *,
            topic_id: bytes = ...,
            partitions: Sequence[int] = ...,
        ) -> None: ...

    group_id: str | None
    member_id: str | None
    share_session_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int
    batch_size: int
    share_acquire_mode: int
    is_renew_ack: bool
    topics: Sequence[ShareFetchRequest.FetchTopic]
    forgotten_topics_data: Sequence[ShareFetchRequest.ForgottenTopic]
    def __init__(
        self,
        *,
        group_id: str | None = ...,
        member_id: str | None = ...,
        share_session_epoch: int = ...,
        max_wait_ms: int = ...,
        min_bytes: int = ...,
        max_bytes: int = ...,
        max_records: int = ...,
        batch_size: int = ...,
        share_acquire_mode: int = ...,
        is_renew_ack: bool = ...,
        topics: Sequence[ShareFetchRequest.FetchTopic] = ...,
        forgotten_topics_data: Sequence[ShareFetchRequest.ForgottenTopic] = ...,
    ) -> None: ...

class ShareFetchResponse(Message):
    class ShareFetchableTopicResponse(Message):
        topic_id: bytes
        partitions: Sequence[ShareFetchResponse.PartitionData]
        def __init__(
            self,
            *,
            topic_id: bytes = ...,
            partitions: Sequence[ShareFetchResponse.PartitionData] = ...,
        ) -> None: ...

    class PartitionData(Message):
        partition_index: int
        error_code: int
        error_message: str | None
        acknowledge_error_code: int
        acknowledge_error_message: str | None
        current_leader: ShareFetchResponse.LeaderIdAndEpoch
        records: Any
        acquired_records: Sequence[ShareFetchResponse.AcquiredRecords]
        def __init__(
            self,
            *,
            partition_index: int = ...,
            error_code: int = ...,
            error_message: str | None = ...,
            acknowledge_error_code: int = ...,
            acknowledge_error_message: str | None = ...,
            current_leader: ShareFetchResponse.LeaderIdAndEpoch = ...,
            records: Any = ...,
            acquired_records: Sequence[ShareFetchResponse.AcquiredRecords] = ...,
        ) -> None: ...

    class LeaderIdAndEpoch(Message):
        leader_id: int
        leader_epoch: int
        def __init__(
            self,
            *,
            leader_id: int = ...,
            leader_epoch: int = ...,
        ) -> None: ...

    class AcquiredRecords(Message):
        first_offset: int
        last_offset: int
        delivery_count: int
        def __init__(
            self,
            *,
            first_offset: int = ...,
            last_offset: int = ...,
            delivery_count: int = ...,
        ) -> None: ...

    class NodeEndpoint(Message):
        node_id: int
        host: str
        port: int
        rack: str | None
        def __init__(
            self,
            *,
            node_id: int = ...,
            host: str = ...,
            port: int = ...,
            rack: str | None = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    error_message: str | None
    acquisition_lock_timeout_ms: int
    responses: Sequence[ShareFetchResponse.ShareFetchableTopicResponse]
    node_endpoints: Sequence[ShareFetchResponse.NodeEndpoint]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        error_message: str | None = ...,
        acquisition_lock_timeout_ms: int = ...,
        responses: Sequence[ShareFetchResponse.ShareFetchableTopicResponse] = ...,
        node_endpoints: Sequence[ShareFetchResponse.NodeEndpoint] = ...,
    ) -> None: ...

class ShareGroupDescribeRequest(Message):
    group_ids: Sequence[str]
    include_authorized_operations: bool
    def __init__(
        self,
        *,
        group_ids: Sequence[str] = ...,
        include_authorized_operations: bool = ...,
    ) -> None: ...

class ShareGroupDescribeResponse(Message):
    class DescribedGroup(Message):
        error_code: int
        error_message: str | None
        group_id: str
        group_state: str
        group_epoch: int
        assignment_epoch: int
        assignor_name: str
        members: Sequence[ShareGroupDescribeResponse.Member]
        authorized_operations: int
        def __init__(
            self,
            *,
            error_code: int = ...,
            error_message: str | None = ...,
            group_id: str = ...,
            group_state: str = ...,
            group_epoch: int = ...,
            assignment_epoch: int = ...,
            assignor_name: str = ...,
            members: Sequence[ShareGroupDescribeResponse.Member] = ...,
            authorized_operations: int = ...,
        ) -> None: ...

    class Member(Message):
        member_id: str
        rack_id: str | None
        member_epoch: int
        client_id: str
        client_host: str
        subscribed_topic_names: Sequence[str]
        assignment: ShareGroupDescribeResponse.Assignment
        def __init__(
            self,
            *,
            member_id: str = ...,
            rack_id: str | None = ...,
            member_epoch: int = ...,
            client_id: str = ...,
            client_host: str = ...,
            subscribed_topic_names: Sequence[str] = ...,
            assignment: ShareGroupDescribeResponse.Assignment = ...,
        ) -> None: ...

    class Assignment(Message):
        topic_partitions: Sequence[ShareGroupDescribeResponse.TopicPartitions]
        def __init__(
            self,
            *,
            topic_partitions: Sequence[ShareGroupDescribeResponse.TopicPartitions] = ...,
        ) -> None: ...

    class TopicPartitions(Message):
        topic_id: bytes
        topic_name: str
        partitions: Sequence[int]
        def __init__(
            self,
            *,
            topic_id: bytes = ...,
            topic_name: str = ...,
            partitions: Sequence[int] = ...,
        ) -> None: ...

    throttle_time_ms: int
    groups: Sequence[ShareGroupDescribeResponse.DescribedGroup]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        groups: Sequence[ShareGroupDescribeResponse.DescribedGroup] = ...,
    ) -> None: ...

class ShareGroupHeartbeatRequest(Message):
    group_id: str
    member_id: str
    member_epoch: int
    rack_id: str | None
    subscribed_topic_names: Sequence[str] | None
    def __init__(
        self,
        *,
        group_id: str = ...,
        member_id: str = ...,
        member_epoch: int = ...,
        rack_id: str | None = ...,
        subscribed_topic_names: Sequence[str] | None = ...,
    ) -> None: ...

class ShareGroupHeartbeatResponse(Message):
    class Assignment(Message):
        topic_partitions: Sequence[ShareGroupHeartbeatResponse.TopicPartitions]
        def __init__(
            self,
            *,
            topic_partitions: Sequence[ShareGroupHeartbeatResponse.TopicPartitions] = ...,
        ) -> None: ...

    class TopicPartitions(Message):
        topic_id: bytes
        partitions: Sequence[int]
        def __init__(
            self,
            *,
            topic_id: bytes = ...,
            partitions: Sequence[int] = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    error_message: str | None
    member_id: str | None
    member_epoch: int
    heartbeat_interval_ms: int
    assignment: ShareGroupHeartbeatResponse.Assignment | None
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        error_message: str | None = ...,
        member_id: str | None = ...,
        member_epoch: int = ...,
        heartbeat_interval_ms: int = ...,
        assignment: ShareGroupHeartbeatResponse.Assignment | None = ...,
    ) -> None: ...

class SnapshotFooterRecord(Message):
    version: int
    def __init__(
        self,
        *,
        version: int = ...,
    ) -> None: ...

class SnapshotHeaderRecord(Message):
    version: int
    last_contained_log_timestamp: int
    def __init__(
        self,
        *,
        version: int = ...,
        last_contained_log_timestamp: int = ...,
    ) -> None: ...

class StreamsGroupDescribeRequest(Message):
    group_ids: Sequence[str]
    include_authorized_operations: bool
    def __init__(
        self,
        *,
        group_ids: Sequence[str] = ...,
        include_authorized_operations: bool = ...,
    ) -> None: ...

class StreamsGroupDescribeResponse(Message):
    class DescribedGroup(Message):
        error_code: int
        error_message: str | None
        group_id: str
        group_state: str
        group_epoch: int
        assignment_epoch: int
        topology: StreamsGroupDescribeResponse.Topology | None
        members: Sequence[StreamsGroupDescribeResponse.Member]
        authorized_operations: int
        def __init__(
            self,
            *,
            error_code: int = ...,
            error_message: str | None = ...,
            group_id: str = ...,
            group_state: str = ...,
            group_epoch: int = ...,
            assignment_epoch: int = ...,
            topology: StreamsGroupDescribeResponse.Topology | None = ...,
            members: Sequence[StreamsGroupDescribeResponse.Member] = ...,
            authorized_operations: int = ...,
        ) -> None: ...

    class Topology(Message):
        epoch: int
        subtopologies: Sequence[StreamsGroupDescribeResponse.Subtopology] | None
        def __init__(
            self,
            *,
            epoch: int = ...,
            subtopologies: Sequence[StreamsGroupDescribeResponse.Subtopology] | None = ...,
        ) -> None: ...

    class Subtopology(Message):
        subtopology_id: str
        source_topics: Sequence[str]
        repartition_sink_topics: Sequence[str]
        state_changelog_topics: Sequence[StreamsGroupDescribeResponse.TopicInfo]
        repartition_source_topics: Sequence[StreamsGroupDescribeResponse.TopicInfo]
        def __init__(
            self,
            *,
            subtopology_id: str = ...,
            source_topics: Sequence[str] = ...,
            repartition_sink_topics: Sequence[str] = ...,
            state_changelog_topics: Sequence[StreamsGroupDescribeResponse.TopicInfo] = ...,
            repartition_source_topics: Sequence[StreamsGroupDescribeResponse.TopicInfo] = ...,
        ) -> None: ...

    class TopicInfo(Message):
        name: str
        partitions: int
        replication_factor: int
        topic_configs: Sequence[StreamsGroupDescribeResponse.KeyValue]
        def __init__(
            self,
            *,
            name: str = ...,
            partitions: int = ...,
            replication_factor: int = ...,
            topic_configs: Sequence[StreamsGroupDescribeResponse.KeyValue] = ...,
        ) -> None: ...

    class KeyValue(Message):
        key: str
        value: str
        def __init__(
            self,
            *,
            key: str = ...,
            value: str = ...,
        ) -> None: ...

    class Member(Message):
        member_id: str
        member_epoch: int
        instance_id: str | None
        rack_id: str | None
        client_id: str
        client_host: str
        topology_epoch: int
        process_id: str
        user_endpoint: StreamsGroupDescribeResponse.Endpoint | None
        client_tags: Sequence[StreamsGroupDescribeResponse.KeyValue]
        task_offsets: Sequence[StreamsGroupDescribeResponse.TaskOffset]
        task_end_offsets: Sequence[StreamsGroupDescribeResponse.TaskOffset]
        assignment: StreamsGroupDescribeResponse.Assignment
        target_assignment: StreamsGroupDescribeResponse.Assignment
        is_classic: bool
        def __init__(
            self,
            *,
            member_id: str = ...,
            member_epoch: int = ...,
            instance_id: str | None = ...,
            rack_id: str | None = ...,
            client_id: str = ...,
            client_host: str = ...,
            topology_epoch: int = ...,
            process_id: str = ...,
            user_endpoint: StreamsGroupDescribeResponse.Endpoint | None = ...,
            client_tags: Sequence[StreamsGroupDescribeResponse.KeyValue] = ...,
            task_offsets: Sequence[StreamsGroupDescribeResponse.TaskOffset] = ...,
            task_end_offsets: Sequence[StreamsGroupDescribeResponse.TaskOffset] = ...,
            assignment: StreamsGroupDescribeResponse.Assignment = ...,
            target_assignment: StreamsGroupDescribeResponse.Assignment = ...,
            is_classic: bool = ...,
        ) -> None: ...

    class Endpoint(Message):
        host: str
        port: int
        def __init__(
            self,
            *,
            host: str = ...,
            port: int = ...,
        ) -> None: ...

    class TaskOffset(Message):
        subtopology_id: str
        partition: int
        offset: int
        def __init__(
            self,
            *,
            subtopology_id: str = ...,
            partition: int = ...,
            offset: int = ...,
        ) -> None: ...

    class Assignment(Message):
        active_tasks: Sequence[StreamsGroupDescribeResponse.TaskIds]
        standby_tasks: Sequence[StreamsGroupDescribeResponse.TaskIds]
        warmup_tasks: Sequence[StreamsGroupDescribeResponse.TaskIds]
        def __init__(
            self,
            *,
            active_tasks: Sequence[StreamsGroupDescribeResponse.TaskIds] = ...,
            standby_tasks: Sequence[StreamsGroupDescribeResponse.TaskIds] = ...,
            warmup_tasks: Sequence[StreamsGroupDescribeResponse.TaskIds] = ...,
        ) -> None: ...

    class TaskIds(Message):
        subtopology_id: str
        partitions: Sequence[int]
        def __init__(
            self,
            *,
            subtopology_id: str = ...,
            partitions: Sequence[int] = ...,
        ) -> None: ...

    throttle_time_ms: int
    groups: Sequence[StreamsGroupDescribeResponse.DescribedGroup]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        groups: Sequence[StreamsGroupDescribeResponse.DescribedGroup] = ...,
    ) -> None: ...

class StreamsGroupHeartbeatRequest(Message):
    class Topology(Message):
        epoch: int
        subtopologies: Sequence[StreamsGroupHeartbeatRequest.Subtopology]
        def __init__(
            self,
            *,
            epoch: int = ...,
            subtopologies: Sequence[StreamsGroupHeartbeatRequest.Subtopology] = ...,
        ) -> None: ...

    class Subtopology(Message):
        subtopology_id: str
        source_topics: Sequence[str]
        source_topic_regex: Sequence[str]
        state_changelog_topics: Sequence[StreamsGroupHeartbeatRequest.TopicInfo]
        repartition_sink_topics: Sequence[str]
        repartition_source_topics: Sequence[StreamsGroupHeartbeatRequest.TopicInfo]
        copartition_groups: Sequence[StreamsGroupHeartbeatRequest.CopartitionGroup]
        def __init__(
            self,
            *,
            subtopology_id: str = ...,
            source_topics: Sequence[str] = ...,
            source_topic_regex: Sequence[str] = ...,
            state_changelog_topics: Sequence[StreamsGroupHeartbeatRequest.TopicInfo] = ...,
            repartition_sink_topics: Sequence[str] = ...,
            repartition_source_topics: Sequence[StreamsGroupHeartbeatRequest.TopicInfo] = ...,
            copartition_groups: Sequence[StreamsGroupHeartbeatRequest.CopartitionGroup] = ...,
        ) -> None: ...

    class TopicInfo(Message):
        name: str
        partitions: int
        replication_factor: int
        topic_configs: Sequence[StreamsGroupHeartbeatRequest.KeyValue]
        def __init__(
            self,
            *,
            name: str = ...,
            partitions: int = ...,
            replication_factor: int = ...,
            topic_configs: Sequence[StreamsGroupHeartbeatRequest.KeyValue] = ...,
        ) -> None: ...

    class KeyValue(Message):
        key: str
        value: str
        def __init__(
            self,
            *,
            key: str = ...,
            value: str = ...,
        ) -> None: ...

    class CopartitionGroup(Message):
        source_topics: Sequence[int]
        source_topic_regex: Sequence[int]
        repartition_source_topics: Sequence[int]
        def __init__(
            self,
            *,
            source_topics: Sequence[int] = ...,
            source_topic_regex: Sequence[int] = ...,
            repartition_source_topics: Sequence[int] = ...,
        ) -> None: ...

    class TaskIds(Message):
        subtopology_id: str
        partitions: Sequence[int]
        def __init__(
            self,
            *,
            subtopology_id: str = ...,
            partitions: Sequence[int] = ...,
        ) -> None: ...

    class Endpoint(Message):
        host: str
        port: int
        def __init__(
            self,
            *,
            host: str = ...,
            port: int = ...,
        ) -> None: ...

    class TaskOffset(Message):
        subtopology_id: str
        partition: int
        offset: int
        def __init__(
            self,
            *,
            subtopology_id: str = ...,
            partition: int = ...,
            offset: int = ...,
        ) -> None: ...

    group_id: str
    member_id: str
    member_epoch: int
    endpoint_information_epoch: int
    instance_id: str | None
    rack_id: str | None
    rebalance_timeout_ms: int
    topology: StreamsGroupHeartbeatRequest.Topology | None
    active_tasks: Sequence[StreamsGroupHeartbeatRequest.TaskIds] | None
    standby_tasks: Sequence[StreamsGroupHeartbeatRequest.TaskIds] | None
    warmup_tasks: Sequence[StreamsGroupHeartbeatRequest.TaskIds] | None
    process_id: str | None
    user_endpoint: StreamsGroupHeartbeatRequest.Endpoint | None
    client_tags: Sequence[StreamsGroupHeartbeatRequest.KeyValue] | None
    task_offsets: Sequence[StreamsGroupHeartbeatRequest.TaskOffset] | None
    task_end_offsets: Sequence[StreamsGroupHeartbeatRequest.TaskOffset] | None
    shutdown_application: bool
    def __init__(
        self,
        *,
        group_id: str = ...,
        member_id: str = ...,
        member_epoch: int = ...,
        endpoint_information_epoch: int = ...,
        instance_id: str | None = ...,
        rack_id: str | None = ...,
        rebalance_timeout_ms: int = ...,
        topology: StreamsGroupHeartbeatRequest.Topology | None = ...,
        active_tasks: Sequence[StreamsGroupHeartbeatRequest.TaskIds] | None = ...,
        standby_tasks: Sequence[StreamsGroupHeartbeatRequest.TaskIds] | None = ...,
        warmup_tasks: Sequence[StreamsGroupHeartbeatRequest.TaskIds] | None = ...,
        process_id: str | None = ...,
        user_endpoint: StreamsGroupHeartbeatRequest.Endpoint | None = ...,
        client_tags: Sequence[StreamsGroupHeartbeatRequest.KeyValue] | None = ...,
        task_offsets: Sequence[StreamsGroupHeartbeatRequest.TaskOffset] | None = ...,
        task_end_offsets: Sequence[StreamsGroupHeartbeatRequest.TaskOffset] | None = ...,
        shutdown_application: bool = ...,
    ) -> None: ...

class StreamsGroupHeartbeatResponse(Message):
    class Status(Message):
        status_code: int
        status_detail: str
        def __init__(
            self,
            *,
            status_code: int = ...,
            status_detail: str = ...,
        ) -> None: ...

    class TaskIds(Message):
        subtopology_id: str
        partitions: Sequence[int]
        def __init__(
            self,
            *,
            subtopology_id: str = ...,
            partitions: Sequence[int] = ...,
        ) -> None: ...

    class EndpointToPartitions(Message):
        user_endpoint: StreamsGroupHeartbeatResponse.Endpoint
        active_partitions: Sequence[StreamsGroupHeartbeatResponse.TopicPartition]
        standby_partitions: Sequence[StreamsGroupHeartbeatResponse.TopicPartition]
        def __init__(
            self,
            *,
            user_endpoint: StreamsGroupHeartbeatResponse.Endpoint = ...,
            active_partitions: Sequence[StreamsGroupHeartbeatResponse.TopicPartition] = ...,
            standby_partitions: Sequence[StreamsGroupHeartbeatResponse.TopicPartition] = ...,
        ) -> None: ...

    class Endpoint(Message):
        host: str
        port: int
        def __init__(
            self,
            *,
            host: str = ...,
            port: int = ...,
        ) -> None: ...

    class TopicPartition(Message):
        topic: str
        partitions: Sequence[int]
        def __init__(
            self,
            *,
            topic: str = ...,
            partitions: Sequence[int] = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    error_message: str | None
    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    acceptable_recovery_lag: int
    task_offset_interval_ms: int
    status: Sequence[StreamsGroupHeartbeatResponse.Status] | None
    active_tasks: Sequence[StreamsGroupHeartbeatResponse.TaskIds] | None
    standby_tasks: Sequence[StreamsGroupHeartbeatResponse.TaskIds] | None
    warmup_tasks: Sequence[StreamsGroupHeartbeatResponse.TaskIds] | None
    endpoint_information_epoch: int
    partitions_by_user_endpoint: Sequence[StreamsGroupHeartbeatResponse.EndpointToPartitions] | None
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        error_message: str | None = ...,
        member_id: str = ...,
        member_epoch: int = ...,
        heartbeat_interval_ms: int = ...,
        acceptable_recovery_lag: int = ...,
        task_offset_interval_ms: int = ...,
        status: Sequence[StreamsGroupHeartbeatResponse.Status] | None = ...,
        active_tasks: Sequence[StreamsGroupHeartbeatResponse.TaskIds] | None = ...,
        standby_tasks: Sequence[StreamsGroupHeartbeatResponse.TaskIds] | None = ...,
        warmup_tasks: Sequence[StreamsGroupHeartbeatResponse.TaskIds] | None = ...,
        endpoint_information_epoch: int = ...,
        partitions_by_user_endpoint: Sequence[StreamsGroupHeartbeatResponse.EndpointToPartitions] | None = ...,
    ) -> None: ...

class SyncGroupRequest(Message):
    class SyncGroupRequestAssignment(Message):
        member_id: str
        assignment: bytes
        def __init__(
            self,
            *,
            member_id: str = ...,
            assignment: bytes = ...,
        ) -> None: ...

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None
    protocol_type: str | None
    protocol_name: str | None
    assignments: Sequence[SyncGroupRequest.SyncGroupRequestAssignment]
    def __init__(
        self,
        *,
        group_id: str = ...,
        generation_id: int = ...,
        member_id: str = ...,
        group_instance_id: str | None = ...,
        protocol_type: str | None = ...,
        protocol_name: str | None = ...,
        assignments: Sequence[SyncGroupRequest.SyncGroupRequestAssignment] = ...,
    ) -> None: ...

class SyncGroupResponse(Message):
    throttle_time_ms: int
    error_code: int
    protocol_type: str | None
    protocol_name: str | None
    assignment: bytes
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        protocol_type: str | None = ...,
        protocol_name: str | None = ...,
        assignment: bytes = ...,
    ) -> None: ...

class TopicRecord(Message):
    name: str
    topic_id: bytes
    def __init__(
        self,
        *,
        name: str = ...,
        topic_id: bytes = ...,
    ) -> None: ...

class TransactionLogKey(Message):
    transactional_id: str
    def __init__(
        self,
        *,
        transactional_id: str = ...,
    ) -> None: ...

class TransactionLogValue(Message):
    class PartitionsSchema(Message):
        topic: str
        partition_ids: Sequence[int]
        def __init__(
            self,
            *,
            topic: str = ...,
            partition_ids: Sequence[int] = ...,
        ) -> None: ...

    producer_id: int
    previous_producer_id: int
    next_producer_id: int
    producer_epoch: int
    transaction_timeout_ms: int
    transaction_status: int
    transaction_partitions: Sequence[TransactionLogValue.PartitionsSchema] | None
    transaction_last_update_timestamp_ms: int
    transaction_start_timestamp_ms: int
    client_transaction_version: int
    def __init__(
        self,
        *,
        producer_id: int = ...,
        previous_producer_id: int = ...,
        next_producer_id: int = ...,
        producer_epoch: int = ...,
        transaction_timeout_ms: int = ...,
        transaction_status: int = ...,
        transaction_partitions: Sequence[TransactionLogValue.PartitionsSchema] | None = ...,
        transaction_last_update_timestamp_ms: int = ...,
        transaction_start_timestamp_ms: int = ...,
        client_transaction_version: int = ...,
    ) -> None: ...

class TxnOffsetCommitRequest(Message):
    class TxnOffsetCommitRequestTopic(Message):
        name: str
        partitions: Sequence[TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition]
        def __init__(
            self,
            *,
            name: str = ...,
            partitions: Sequence[TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition] = ...,
        ) -> None: ...

    class TxnOffsetCommitRequestPartition(Message):
        partition_index: int
        committed_offset: int
        committed_leader_epoch: int
        committed_metadata: str | None
        def __init__(
            self,
            *,
            partition_index: int = ...,
            committed_offset: int = ...,
            committed_leader_epoch: int = ...,
            committed_metadata: str | None = ...,
        ) -> None: ...

    transactional_id: str
    group_id: str
    producer_id: int
    producer_epoch: int
    generation_id: int
    member_id: str
    group_instance_id: str | None
    topics: Sequence[TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic]
    def __init__(
        self,
        *,
        transactional_id: str = ...,
        group_id: str = ...,
        producer_id: int = ...,
        producer_epoch: int = ...,
        generation_id: int = ...,
        member_id: str = ...,
        group_instance_id: str | None = ...,
        topics: Sequence[TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic] = ...,
    ) -> None: ...

class TxnOffsetCommitResponse(Message):
    class TxnOffsetCommitResponseTopic(Message):
        name: str
        partitions: Sequence[TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition]
        def __init__(
            self,
            *,
            name: str = ...,
            partitions: Sequence[TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition] = ...,
        ) -> None: ...

    class TxnOffsetCommitResponsePartition(Message):
        partition_index: int
        error_code: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
            error_code: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    topics: Sequence[TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        topics: Sequence[TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic] = ...,
    ) -> None: ...

class UnfenceBrokerRecord(Message):
    id: int
    epoch: int
    def __init__(
        self,
        *,
        id: int = ...,
        epoch: int = ...,
    ) -> None: ...

class UnregisterBrokerRecord(Message):
    broker_id: int
    broker_epoch: int
    def __init__(
        self,
        *,
        broker_id: int = ...,
        broker_epoch: int = ...,
    ) -> None: ...

class UnregisterBrokerRequest(Message):
    broker_id: int
    def __init__(
        self,
        *,
        broker_id: int = ...,
    ) -> None: ...

class UnregisterBrokerResponse(Message):
    throttle_time_ms: int
    error_code: int
    error_message: str | None
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        error_message: str | None = ...,
    ) -> None: ...

class UpdateFeaturesRequest(Message):
    class FeatureUpdateKey(Message):
        feature: str
        max_version_level: int
        upgrade_type: int
        allow_downgrade: bool
        def __init__(
            self,
            *,
            feature: str = ...,
            max_version_level: int = ...,
            upgrade_type: int = ...,
            allow_downgrade: bool = ...,
        ) -> None: ...

    timeout_ms: int
    feature_updates: Sequence[UpdateFeaturesRequest.FeatureUpdateKey]
    validate_only: bool
    def __init__(
        self,
        *,
        timeout_ms: int = ...,
        feature_updates: Sequence[UpdateFeaturesRequest.FeatureUpdateKey] = ...,
        validate_only: bool = ...,
    ) -> None: ...

class UpdateFeaturesResponse(Message):
    class UpdatableFeatureResult(Message):
        feature: str
        error_code: int
        error_message: str | None
        def __init__(
            self,
            *,
            feature: str = ...,
            error_code: int = ...,
            error_message: str | None = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    error_message: str | None
    results: Sequence[UpdateFeaturesResponse.UpdatableFeatureResult]
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        error_message: str | None = ...,
        results: Sequence[UpdateFeaturesResponse.UpdatableFeatureResult] = ...,
    ) -> None: ...

class UpdateRaftVoterRequest(Message):
    class Listener(Message):
        name: str
        host: str
        port: int
        def __init__(
            self,
            *,
            name: str = ...,
            host: str = ...,
            port: int = ...,
        ) -> None: ...

    class KRaftVersionFeature(Message):
        min_supported_version: int
        max_supported_version: int
        def __init__(
            self,
            *,
            min_supported_version: int = ...,
            max_supported_version: int = ...,
        ) -> None: ...

    cluster_id: str | None
    current_leader_epoch: int
    voter_id: int
    voter_directory_id: bytes
    listeners: Sequence[UpdateRaftVoterRequest.Listener]
    k_raft_version_feature: UpdateRaftVoterRequest.KRaftVersionFeature
    def __init__(
        self,
        *,
        cluster_id: str | None = ...,
        current_leader_epoch: int = ...,
        voter_id: int = ...,
        voter_directory_id: bytes = ...,
        listeners: Sequence[UpdateRaftVoterRequest.Listener] = ...,
        k_raft_version_feature: UpdateRaftVoterRequest.KRaftVersionFeature = ...,
    ) -> None: ...

class UpdateRaftVoterResponse(Message):
    class CurrentLeader(Message):
        leader_id: int
        leader_epoch: int
        host: str
        port: int
        def __init__(
            self,
            *,
            leader_id: int = ...,
            leader_epoch: int = ...,
            host: str = ...,
            port: int = ...,
        ) -> None: ...

    throttle_time_ms: int
    error_code: int
    current_leader: UpdateRaftVoterResponse.CurrentLeader | None
    def __init__(
        self,
        *,
        throttle_time_ms: int = ...,
        error_code: int = ...,
        current_leader: UpdateRaftVoterResponse.CurrentLeader | None = ...,
    ) -> None: ...

class UserScramCredentialRecord(Message):
    name: str
    mechanism: int
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int
    def __init__(
        self,
        *,
        name: str = ...,
        mechanism: int = ...,
        salt: bytes = ...,
        stored_key: bytes = ...,
        server_key: bytes = ...,
        iterations: int = ...,
    ) -> None: ...

class VoteRequest(Message):
    class TopicData(Message):
        topic_name: str
        partitions: Sequence[VoteRequest.PartitionData]
        def __init__(
            self,
            *,
            topic_name: str = ...,
            partitions: Sequence[VoteRequest.PartitionData] = ...,
        ) -> None: ...

    class PartitionData(Message):
        partition_index: int
        replica_epoch: int
        replica_id: int
        replica_directory_id: bytes
        voter_directory_id: bytes
        last_offset_epoch: int
        last_offset: int
        pre_vote: bool
        def __init__(
            self,
            *,
            partition_index: int = ...,
            replica_epoch: int = ...,
            replica_id: int = ...,
            replica_directory_id: bytes = ...,
            voter_directory_id: bytes = ...,
            last_offset_epoch: int = ...,
            last_offset: int = ...,
            pre_vote: bool = ...,
        ) -> None: ...

    cluster_id: str | None
    voter_id: int
    topics: Sequence[VoteRequest.TopicData]
    def __init__(
        self,
        *,
        cluster_id: str | None = ...,
        voter_id: int = ...,
        topics: Sequence[VoteRequest.TopicData] = ...,
    ) -> None: ...

class VoteResponse(Message):
    class TopicData(Message):
        topic_name: str
        partitions: Sequence[VoteResponse.PartitionData]
        def __init__(
            self,
            *,
            topic_name: str = ...,
            partitions: Sequence[VoteResponse.PartitionData] = ...,
        ) -> None: ...

    class PartitionData(Message):
        partition_index: int
        error_code: int
        leader_id: int
        leader_epoch: int
        vote_granted: bool
        def __init__(
            self,
            *,
            partition_index: int = ...,
            error_code: int = ...,
            leader_id: int = ...,
            leader_epoch: int = ...,
            vote_granted: bool = ...,
        ) -> None: ...

    class NodeEndpoint(Message):
        node_id: int
        host: str
        port: int
        def __init__(
            self,
            *,
            node_id: int = ...,
            host: str = ...,
            port: int = ...,
        ) -> None: ...

    error_code: int
    topics: Sequence[VoteResponse.TopicData]
    node_endpoints: Sequence[VoteResponse.NodeEndpoint]
    def __init__(
        self,
        *,
        error_code: int = ...,
        topics: Sequence[VoteResponse.TopicData] = ...,
        node_endpoints: Sequence[VoteResponse.NodeEndpoint] = ...,
    ) -> None: ...

class VotersRecord(Message):
    class Voter(Message):
        voter_id: int
        voter_directory_id: bytes
        endpoints: Sequence[VotersRecord.Endpoint]
        k_raft_version_feature: VotersRecord.KRaftVersionFeature
        def __init__(
            self,
            *,
            voter_id: int = ...,
            voter_directory_id: bytes = ...,
            endpoints: Sequence[VotersRecord.Endpoint] = ...,
            k_raft_version_feature: VotersRecord.KRaftVersionFeature = ...,
        ) -> None: ...

    class Endpoint(Message):
        name: str
        host: str
        port: int
        def __init__(
            self,
            *,
            name: str = ...,
            host: str = ...,
            port: int = ...,
        ) -> None: ...

    class KRaftVersionFeature(Message):
        min_supported_version: int
        max_supported_version: int
        def __init__(
            self,
            *,
            min_supported_version: int = ...,
            max_supported_version: int = ...,
        ) -> None: ...

    version: int
    voters: Sequence[VotersRecord.Voter]
    def __init__(
        self,
        *,
        version: int = ...,
        voters: Sequence[VotersRecord.Voter] = ...,
    ) -> None: ...

class WriteShareGroupStateRequest(Message):
    class WriteStateData(Message):
        topic_id: bytes
        partitions: Sequence[WriteShareGroupStateRequest.PartitionData]
        def __init__(
            self,
            *,
            topic_id: bytes = ...,
            partitions: Sequence[WriteShareGroupStateRequest.PartitionData] = ...,
        ) -> None: ...

    class PartitionData(Message):
        partition: int
        state_epoch: int
        leader_epoch: int
        start_offset: int
        delivery_complete_count: int
        state_batches: Sequence[WriteShareGroupStateRequest.StateBatch]
        def __init__(
            self,
            *,
            partition: int = ...,
            state_epoch: int = ...,
            leader_epoch: int = ...,
            start_offset: int = ...,
            delivery_complete_count: int = ...,
            state_batches: Sequence[WriteShareGroupStateRequest.StateBatch] = ...,
        ) -> None: ...

    class StateBatch(Message):
        first_offset: int
        last_offset: int
        delivery_state: int
        delivery_count: int
        def __init__(
            self,
            *,
            first_offset: int = ...,
            last_offset: int = ...,
            delivery_state: int = ...,
            delivery_count: int = ...,
        ) -> None: ...

    group_id: str
    topics: Sequence[WriteShareGroupStateRequest.WriteStateData]
    def __init__(
        self,
        *,
        group_id: str = ...,
        topics: Sequence[WriteShareGroupStateRequest.WriteStateData] = ...,
    ) -> None: ...

class WriteShareGroupStateResponse(Message):
    class WriteStateResult(Message):
        topic_id: bytes
        partitions: Sequence[WriteShareGroupStateResponse.PartitionResult]
        def __init__(
            self,
            *,
            topic_id: bytes = ...,
            partitions: Sequence[WriteShareGroupStateResponse.PartitionResult] = ...,
        ) -> None: ...

    class PartitionResult(Message):
        partition: int
        error_code: int
        error_message: str | None
        def __init__(
            self,
            *,
            partition: int = ...,
            error_code: int = ...,
            error_message: str | None = ...,
        ) -> None: ...

    results: Sequence[WriteShareGroupStateResponse.WriteStateResult]
    def __init__(
        self,
        *,
        results: Sequence[WriteShareGroupStateResponse.WriteStateResult] = ...,
    ) -> None: ...

class WriteTxnMarkersRequest(Message):
    class WritableTxnMarker(Message):
        producer_id: int
        producer_epoch: int
        transaction_result: bool
        topics: Sequence[WriteTxnMarkersRequest.WritableTxnMarkerTopic]
        coordinator_epoch: int
        transaction_version: int
        def __init__(
            self,
            *,
            producer_id: int = ...,
            producer_epoch: int = ...,
            transaction_result: bool = ...,
            topics: Sequence[WriteTxnMarkersRequest.WritableTxnMarkerTopic] = ...,
            coordinator_epoch: int = ...,
            transaction_version: int = ...,
        ) -> None: ...

    class WritableTxnMarkerTopic(Message):
        name: str
        partition_indexes: Sequence[int]
        def __init__(
            self,
            *,
            name: str = ...,
            partition_indexes: Sequence[int] = ...,
        ) -> None: ...

    markers: Sequence[WriteTxnMarkersRequest.WritableTxnMarker]
    def __init__(
        self,
        *,
        markers: Sequence[WriteTxnMarkersRequest.WritableTxnMarker] = ...,
    ) -> None: ...

class WriteTxnMarkersResponse(Message):
    class WritableTxnMarkerResult(Message):
        producer_id: int
        topics: Sequence[WriteTxnMarkersResponse.WritableTxnMarkerTopicResult]
        def __init__(
            self,
            *,
            producer_id: int = ...,
            topics: Sequence[WriteTxnMarkersResponse.WritableTxnMarkerTopicResult] = ...,
        ) -> None: ...

    class WritableTxnMarkerTopicResult(Message):
        name: str
        partitions: Sequence[WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult]
        def __init__(
            self,
            *,
            name: str = ...,
            partitions: Sequence[WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult] = ...,
        ) -> None: ...

    class WritableTxnMarkerPartitionResult(Message):
        partition_index: int
        error_code: int
        def __init__(
            self,
            *,
            partition_index: int = ...,
            error_code: int = ...,
        ) -> None: ...

    markers: Sequence[WriteTxnMarkersResponse.WritableTxnMarkerResult]
    def __init__(
        self,
        *,
        markers: Sequence[WriteTxnMarkersResponse.WritableTxnMarkerResult] = ...,
    ) -> None: ...

class ZkMigrationStateRecord(Message):
    zk_migration_state: int
    def __init__(
        self,
        *,
        zk_migration_state: int = ...,
    ) -> None: ...
