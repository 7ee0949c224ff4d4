"""Every API that is served here, in which versions, and by whom. ApiVersions answers from this table."""

from types import ModuleType
from typing import Final

from moldau.broker.handlers import (
    alter_configs,
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_topic_partitions,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
)
from moldau.broker.router import Api, Refuse, with_error_code
from moldau.wire.messages import (
    ApiVersionsResponse,
    ConsumerGroupHeartbeatResponse,
    DescribeClusterResponse,
    DescribeLogDirsResponse,
    HeartbeatResponse,
    LeaveGroupResponse,
    ListGroupsResponse,
    OffsetDeleteResponse,
    SyncGroupResponse,
)

# librdkafka 2.8 sends gzip and lz4 uncompressed to a broker that does not claim Produce 0, so it is claimed.
PRODUCE_ADVERTISED_FROM: Final = 0


def _api(key: int, name: str, oldest: int, newest: int, handler: ModuleType, refuse: Refuse | None = None) -> Api:
    return Api(key, name, oldest, newest, handler.handle, refuse or handler.refuse)


def served_apis() -> list[Api]:
    """A new table, with counters at zero, for one broker."""
    apis = [
        _api(0, "Produce", 3, 13, produce),
        _api(1, "Fetch", 4, 18, fetch),
        _api(2, "ListOffsets", 1, 11, list_offsets),
        _api(3, "Metadata", 0, 13, metadata),
        _api(8, "OffsetCommit", 2, 10, offset_commit),
        _api(9, "OffsetFetch", 1, 10, offset_fetch),
        _api(10, "FindCoordinator", 0, 6, find_coordinator),
        _api(11, "JoinGroup", 0, 9, join_group),
        _api(12, "Heartbeat", 0, 4, heartbeat, with_error_code(HeartbeatResponse)),
        _api(13, "LeaveGroup", 0, 5, leave_group, with_error_code(LeaveGroupResponse)),
        _api(14, "SyncGroup", 0, 5, sync_group, with_error_code(SyncGroupResponse)),
        _api(15, "DescribeGroups", 0, 6, describe_groups),
        _api(16, "ListGroups", 0, 5, list_groups, with_error_code(ListGroupsResponse)),
        _api(18, "ApiVersions", *api_versions.SERVED, api_versions, with_error_code(ApiVersionsResponse)),
        _api(19, "CreateTopics", 2, 7, create_topics),
        _api(20, "DeleteTopics", 1, 6, delete_topics),
        _api(21, "DeleteRecords", 0, 2, delete_records),
        _api(22, "InitProducerId", 0, 5, init_producer_id),
        _api(23, "OffsetForLeaderEpoch", 2, 4, offset_for_leader_epoch),
        _api(32, "DescribeConfigs", 1, 4, describe_configs),
        _api(33, "AlterConfigs", 0, 2, alter_configs),
        _api(35, "DescribeLogDirs", 1, 4, describe_log_dirs, with_error_code(DescribeLogDirsResponse)),
        _api(37, "CreatePartitions", 0, 3, create_partitions),
        _api(42, "DeleteGroups", 0, 2, delete_groups),
        _api(44, "IncrementalAlterConfigs", 0, 1, incremental_alter_configs),
        _api(47, "OffsetDelete", 0, 0, offset_delete, with_error_code(OffsetDeleteResponse)),
        _api(60, "DescribeCluster", 0, 2, describe_cluster, with_error_code(DescribeClusterResponse)),
        _api(
            68,
            "ConsumerGroupHeartbeat",
            0,
            1,
            consumer_group_heartbeat,
            with_error_code(ConsumerGroupHeartbeatResponse),
        ),
        _api(69, "ConsumerGroupDescribe", 0, 1, consumer_group_describe),
        _api(75, "DescribeTopicPartitions", 0, 0, describe_topic_partitions),
    ]
    for api in apis:
        if api.name == "Produce":
            api.advertised_from = PRODUCE_ADVERTISED_FROM
        if api.name == "ApiVersions":
            api.unserved = api_versions.unserved
    return apis
