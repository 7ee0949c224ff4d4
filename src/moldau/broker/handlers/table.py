"""The table of all APIs: their versions, handlers and listeners. ApiVersions is computed from it."""

from functools import partial
from types import ModuleType
from typing import Final

from moldau.broker.fastpath import follower_fetch as follower_fetch_fast_path
from moldau.broker.fastpath import heartbeat as heartbeat_fast_path
from moldau.broker.fastpath import produce as produce_fast_path
from moldau.broker.handlers import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    add_raft_voter,
    allocate_producer_ids,
    alter_client_quotas,
    alter_configs,
    alter_partition,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    alter_share_group_offsets,
    alter_user_scram_credentials,
    api_versions,
    assign_replicas_to_dirs,
    begin_quorum_epoch,
    broker_heartbeat,
    broker_registration,
    consumer_group_describe,
    consumer_group_heartbeat,
    controller_registration,
    create_acls,
    create_delegation_token,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_share_group_offsets,
    delete_share_group_state,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_delegation_token,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_share_group_offsets,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_quorum_epoch,
    end_txn,
    envelope,
    expire_delegation_token,
    fetch,
    fetch_snapshot,
    find_coordinator,
    get_telemetry_subscriptions,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    initialize_share_group_state,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    logger_configs,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    push_telemetry,
    read_share_group_state,
    read_share_group_state_summary,
    remove_raft_voter,
    renew_delegation_token,
    sasl_authenticate,
    sasl_handshake,
    share_acknowledge,
    share_fetch,
    share_group_describe,
    share_group_heartbeat,
    sync_group,
    token_requests,
    txn_offset_commit,
    unregister_broker,
    update_features,
    update_raft_voter,
    vote,
    write_share_group_state,
    write_txn_markers,
)
from moldau.broker.requests.fast_path import FastPathFactory
from moldau.broker.requests.router import (
    Api,
    ErrorResponder,
    ServedOn,
    forwarded,
    requires_current_metadata,
    requires_feature,
    with_error_code,
)
from moldau.machines.metadata.features import SHARE_VERSION_FEATURE
from moldau.wire.messages import (
    AddOffsetsToTxnResponse,
    AddRaftVoterResponse,
    AllocateProducerIdsResponse,
    AlterPartitionReassignmentsResponse,
    AlterPartitionResponse,
    AlterShareGroupOffsetsResponse,
    ApiVersionsResponse,
    AssignReplicasToDirsResponse,
    BeginQuorumEpochResponse,
    BrokerHeartbeatResponse,
    ConsumerGroupHeartbeatResponse,
    ControllerRegistrationResponse,
    CreateDelegationTokenResponse,
    DeleteShareGroupOffsetsResponse,
    DescribeAclsResponse,
    DescribeClusterResponse,
    DescribeDelegationTokenResponse,
    DescribeLogDirsResponse,
    DescribeQuorumResponse,
    DescribeUserScramCredentialsResponse,
    EndQuorumEpochResponse,
    EndTxnResponse,
    EnvelopeResponse,
    ExpireDelegationTokenResponse,
    FetchSnapshotResponse,
    GetTelemetrySubscriptionsResponse,
    HeartbeatResponse,
    LeaveGroupResponse,
    ListConfigResourcesResponse,
    ListGroupsResponse,
    ListPartitionReassignmentsResponse,
    ListTransactionsResponse,
    OffsetDeleteResponse,
    PushTelemetryResponse,
    RemoveRaftVoterResponse,
    RenewDelegationTokenResponse,
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
    ShareGroupHeartbeatResponse,
    SyncGroupResponse,
    UnregisterBrokerResponse,
    UpdateRaftVoterResponse,
    VoteResponse,
)

# librdkafka 2.8 sends gzip and lz4 uncompressed to a broker that does not advertise Produce 0.
PRODUCE_ADVERTISED_FROM: Final = 0


_PRODUCE_FAST_PATH: Final = partial(produce_fast_path.create, reject_batches=produce.reject_batches)
_HEARTBEAT_FAST_PATH: Final = partial(heartbeat_fast_path.create, make_repeat=heartbeat.make_repeat)
_CONSUMER_HEARTBEAT_FAST_PATH: Final = partial(
    heartbeat_fast_path.create, make_repeat=consumer_group_heartbeat.make_repeat
)


def _api(
    key: int,
    name: str,
    oldest: int,
    newest: int,
    handler: ModuleType,
    error_response: ErrorResponder | None = None,
    *,
    fast_path: FastPathFactory | None = None,
) -> Api:
    """A client API, handled by the broker that receives it."""
    return Api(key, name, oldest, newest, handler.handle, error_response or handler.error_response, fast_path=fast_path)


def _any_listener(
    key: int,
    name: str,
    oldest: int,
    newest: int,
    handler: ModuleType,
    error_response: ErrorResponder | None = None,
    *,
    fast_path: FastPathFactory | None = None,
) -> Api:
    """Served on broker and controller listeners, by the node that receives it."""
    api = _api(key, name, oldest, newest, handler, error_response, fast_path=fast_path)
    api.served_on = ServedOn.BOTH
    return api


def _internal(
    key: int, name: str, oldest: int, newest: int, handler: ModuleType, error_response: ErrorResponder | None = None
) -> Api:
    """Between nodes, on controller listeners only."""
    return Api(
        key,
        name,
        oldest,
        newest,
        handler.handle,
        error_response or handler.error_response,
        served_on=ServedOn.CONTROLLER,
    )


def _controller(
    key: int, name: str, oldest: int, newest: int, handler: ModuleType, error_response: ErrorResponder | None = None
) -> Api:
    """Decided by the active controller: brokers forward it, inactive controllers respond NOT_CONTROLLER."""
    return Api(
        key,
        name,
        oldest,
        newest,
        forwarded(handler.handle),
        error_response or handler.error_response,
        served_on=ServedOn.BOTH,
        decide=handler.handle,
    )


def served_apis() -> list[Api]:
    """A new table for one broker, with its meters at zero."""
    apis = [
        *_topic_apis(),
        *_group_apis(),
        *_share_apis(),
        *_transaction_apis(),
        *_cluster_apis(),
        *_access_apis(),
        *_node_apis(),
        *_quorum_apis(),
        *_telemetry_apis(),
        *_sasl_apis(),
    ]
    for api in apis:
        if api.name == "Produce":
            api.advertised_from = PRODUCE_ADVERTISED_FROM
            api.coalesces_writes = True
        if api.name == "Fetch":
            api.needs_task = False
        if api.name == "ApiVersions":
            api.unsupported_version_response = api_versions.unsupported_version_response
            api.handle = partial(api_versions.handle, apis=apis)
        if api.name == "IncrementalAlterConfigs":
            api.handle = partial(logger_configs.handle, forward=api.handle)
        if api.name == "Envelope":
            api.handle = partial(envelope.handle, apis={each.key: each for each in apis if each.is_forwarded})
    return apis


def _topic_apis() -> list[Api]:
    """Records, topics and their configs."""
    return [
        _api(0, "Produce", 3, 13, produce, fast_path=_PRODUCE_FAST_PATH),
        _any_listener(1, "Fetch", 4, 18, fetch, fast_path=follower_fetch_fast_path.create),
        _api(2, "ListOffsets", 1, 11, list_offsets),
        requires_current_metadata(_api(3, "Metadata", 0, 13, metadata)),
        _any_listener(18, "ApiVersions", *api_versions.SERVED, api_versions, with_error_code(ApiVersionsResponse)),
        _controller(19, "CreateTopics", 2, 7, create_topics),
        _controller(20, "DeleteTopics", 1, 6, delete_topics),
        _api(21, "DeleteRecords", 0, 2, delete_records),
        _api(22, "InitProducerId", 0, 5, init_producer_id),
        _api(23, "OffsetForLeaderEpoch", 2, 4, offset_for_leader_epoch),
        _any_listener(32, "DescribeConfigs", 1, 4, describe_configs),
        _controller(33, "AlterConfigs", 0, 2, alter_configs),
        _api(34, "AlterReplicaLogDirs", 1, 2, alter_replica_log_dirs),
        _api(35, "DescribeLogDirs", 1, 5, describe_log_dirs, with_error_code(DescribeLogDirsResponse)),
        _controller(37, "CreatePartitions", 0, 3, create_partitions),
        _controller(44, "IncrementalAlterConfigs", 0, 1, incremental_alter_configs),
        _any_listener(60, "DescribeCluster", 0, 2, describe_cluster, with_error_code(DescribeClusterResponse)),
        _api(74, "ListConfigResources", 0, 1, list_config_resources, with_error_code(ListConfigResourcesResponse)),
        requires_current_metadata(_api(75, "DescribeTopicPartitions", 0, 0, describe_topic_partitions)),
    ]


def _group_apis() -> list[Api]:
    """Consumer groups."""
    return [
        _api(8, "OffsetCommit", 2, 10, offset_commit),
        _api(9, "OffsetFetch", 1, 10, offset_fetch),
        requires_current_metadata(_api(10, "FindCoordinator", 0, 6, find_coordinator)),
        _api(11, "JoinGroup", 0, 9, join_group),
        _api(12, "Heartbeat", 0, 4, heartbeat, with_error_code(HeartbeatResponse), fast_path=_HEARTBEAT_FAST_PATH),
        _api(13, "LeaveGroup", 0, 5, leave_group, with_error_code(LeaveGroupResponse)),
        _api(14, "SyncGroup", 0, 5, sync_group, with_error_code(SyncGroupResponse)),
        _api(15, "DescribeGroups", 0, 6, describe_groups),
        _api(16, "ListGroups", 0, 5, list_groups, with_error_code(ListGroupsResponse)),
        _api(42, "DeleteGroups", 0, 2, delete_groups),
        _api(47, "OffsetDelete", 0, 0, offset_delete, with_error_code(OffsetDeleteResponse)),
        _api(
            68,
            "ConsumerGroupHeartbeat",
            0,
            1,
            consumer_group_heartbeat,
            with_error_code(ConsumerGroupHeartbeatResponse),
            fast_path=_CONSUMER_HEARTBEAT_FAST_PATH,
        ),
        _api(69, "ConsumerGroupDescribe", 0, 1, consumer_group_describe),
    ]


def _share_apis() -> list[Api]:
    """Share groups, and their state at share coordinators."""
    heartbeat_error = with_error_code(ShareGroupHeartbeatResponse)
    alter_error = with_error_code(AlterShareGroupOffsetsResponse)
    delete_error = with_error_code(DeleteShareGroupOffsetsResponse)
    apis = [
        _api(76, "ShareGroupHeartbeat", 1, 1, share_group_heartbeat, heartbeat_error),
        _api(77, "ShareGroupDescribe", 1, 1, share_group_describe),
        _api(78, "ShareFetch", 1, 2, share_fetch),
        _api(79, "ShareAcknowledge", 1, 2, share_acknowledge),
        _api(83, "InitializeShareGroupState", 0, 0, initialize_share_group_state),
        _api(84, "ReadShareGroupState", 0, 0, read_share_group_state),
        _api(85, "WriteShareGroupState", 0, 1, write_share_group_state),
        _api(86, "DeleteShareGroupState", 0, 0, delete_share_group_state),
        _api(87, "ReadShareGroupStateSummary", 0, 1, read_share_group_state_summary),
        _api(90, "DescribeShareGroupOffsets", 0, 1, describe_share_group_offsets),
        _api(91, "AlterShareGroupOffsets", 0, 0, alter_share_group_offsets, alter_error),
        _api(92, "DeleteShareGroupOffsets", 0, 0, delete_share_group_offsets, delete_error),
    ]
    return [requires_feature(api, SHARE_VERSION_FEATURE) for api in apis]


def _transaction_apis() -> list[Api]:
    """Transactions: the coordinator's APIs, and those for partitions and groups in a transaction."""
    return [
        _api(24, "AddPartitionsToTxn", 0, 5, add_partitions_to_txn),
        _api(25, "AddOffsetsToTxn", 0, 4, add_offsets_to_txn, with_error_code(AddOffsetsToTxnResponse)),
        _api(26, "EndTxn", 0, 5, end_txn, with_error_code(EndTxnResponse)),
        _api(27, "WriteTxnMarkers", 1, 2, write_txn_markers),
        _api(28, "TxnOffsetCommit", 0, 5, txn_offset_commit),
        _api(61, "DescribeProducers", 0, 0, describe_producers),
        _api(65, "DescribeTransactions", 0, 0, describe_transactions),
        _api(66, "ListTransactions", 0, 2, list_transactions, with_error_code(ListTransactionsResponse)),
    ]


def _cluster_apis() -> list[Api]:
    """Brokers and replicas, for operators."""
    return [
        _controller(43, "ElectLeaders", 0, 2, elect_leaders),
        _controller(
            45,
            "AlterPartitionReassignments",
            0,
            1,
            alter_partition_reassignments,
            with_error_code(AlterPartitionReassignmentsResponse),
        ),
        _controller(
            46,
            "ListPartitionReassignments",
            0,
            0,
            list_partition_reassignments,
            with_error_code(ListPartitionReassignmentsResponse),
        ),
        _api(48, "DescribeClientQuotas", 0, 1, describe_client_quotas),
        _controller(49, "AlterClientQuotas", 0, 1, alter_client_quotas),
        _controller(57, "UpdateFeatures", 0, 2, update_features),
        _controller(64, "UnregisterBroker", 0, 0, unregister_broker, with_error_code(UnregisterBrokerResponse)),
    ]


def _access_apis() -> list[Api]:
    """ACLs."""
    return [
        _any_listener(29, "DescribeAcls", 1, 3, describe_acls, with_error_code(DescribeAclsResponse)),
        _controller(30, "CreateAcls", 1, 3, create_acls),
        _controller(31, "DeleteAcls", 1, 3, delete_acls),
    ]


def _node_apis() -> list[Api]:
    """Requests of brokers to the active controller."""
    return [
        _internal(56, "AlterPartition", 2, 3, alter_partition, with_error_code(AlterPartitionResponse)),
        _internal(58, "Envelope", 0, 0, envelope, with_error_code(EnvelopeResponse)),
        _internal(62, "BrokerRegistration", 0, 4, broker_registration),
        _internal(63, "BrokerHeartbeat", 0, 1, broker_heartbeat, with_error_code(BrokerHeartbeatResponse)),
        _internal(67, "AllocateProducerIds", 0, 0, allocate_producer_ids, with_error_code(AllocateProducerIdsResponse)),
        _internal(
            70, "ControllerRegistration", 0, 0, controller_registration, with_error_code(ControllerRegistrationResponse)
        ),
        _internal(
            73, "AssignReplicasToDirs", 0, 0, assign_replicas_to_dirs, with_error_code(AssignReplicasToDirsResponse)
        ),
    ]


def _token_apis() -> list[Api]:
    """Delegation tokens. The broker of the client checks how the client has authenticated, before it forwards."""
    create, renew, expire = create_delegation_token, renew_delegation_token, expire_delegation_token
    changes = [
        _controller(38, "CreateDelegationToken", 1, 3, create, with_error_code(CreateDelegationTokenResponse)),
        _controller(39, "RenewDelegationToken", 1, 2, renew, with_error_code(RenewDelegationTokenResponse)),
        _controller(40, "ExpireDelegationToken", 1, 2, expire, with_error_code(ExpireDelegationTokenResponse)),
    ]
    for api in changes:
        api.handle = token_requests.checked(api.handle, create.rejected if api is changes[0] else None)
    describe = with_error_code(DescribeDelegationTokenResponse)
    return [*changes, _api(41, "DescribeDelegationToken", 1, 3, describe_delegation_token, describe)]


def _sasl_apis() -> list[Api]:
    """Authentication, and credentials of users. The gate of a connection handles the first two before it is open."""
    return [
        _any_listener(17, "SaslHandshake", 0, 1, sasl_handshake, with_error_code(SaslHandshakeResponse)),
        _any_listener(36, "SaslAuthenticate", 0, 2, sasl_authenticate, with_error_code(SaslAuthenticateResponse)),
        _api(
            50,
            "DescribeUserScramCredentials",
            0,
            0,
            describe_user_scram_credentials,
            with_error_code(DescribeUserScramCredentialsResponse),
        ),
        _controller(51, "AlterUserScramCredentials", 0, 0, alter_user_scram_credentials),
        *_token_apis(),
    ]


def _telemetry_apis() -> list[Api]:
    """Metrics that clients push."""
    get, push = get_telemetry_subscriptions, push_telemetry
    return [
        _api(71, "GetTelemetrySubscriptions", 0, 0, get, with_error_code(GetTelemetrySubscriptionsResponse)),
        _api(72, "PushTelemetry", 0, 0, push, with_error_code(PushTelemetryResponse)),
    ]


def _quorum_apis() -> list[Api]:
    """Requests between the members of the metadata quorum, and about the quorum."""
    return [
        _internal(52, "Vote", 0, 2, vote, with_error_code(VoteResponse)),
        _internal(53, "BeginQuorumEpoch", 0, 1, begin_quorum_epoch, with_error_code(BeginQuorumEpochResponse)),
        _internal(54, "EndQuorumEpoch", 0, 1, end_quorum_epoch, with_error_code(EndQuorumEpochResponse)),
        _controller(55, "DescribeQuorum", 0, 2, describe_quorum, with_error_code(DescribeQuorumResponse)),
        _internal(59, "FetchSnapshot", 0, 1, fetch_snapshot, with_error_code(FetchSnapshotResponse)),
        _controller(80, "AddRaftVoter", 0, 1, add_raft_voter, with_error_code(AddRaftVoterResponse)),
        _controller(81, "RemoveRaftVoter", 0, 0, remove_raft_voter, with_error_code(RemoveRaftVoterResponse)),
        _internal(82, "UpdateRaftVoter", 0, 0, update_raft_voter, with_error_code(UpdateRaftVoterResponse)),
    ]
