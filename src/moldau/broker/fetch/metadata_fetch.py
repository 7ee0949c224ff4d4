"""Fetch on a controller listener: replicas of the metadata log fetch from the quorum leader."""

from collections.abc import Sequence
from typing import Final

from moldau.broker.drivers.delayed_fetches import FetchResult
from moldau.broker.drivers.quorum_messages import FETCH_BYTES_MAX
from moldau.broker.fetch.contexts import MetadataFetchContext
from moldau.broker.requests.quorum_requests import check_member, leader_endpoints
from moldau.machines.raft import FetchRequested, OffsetAndEpoch, ReplicaKey, RespondToFetch, Ticket
from moldau.model.errors import ErrorCode, InvalidRequest
from moldau.model.ids import NO_NODE, NO_OFFSET, NodeId
from moldau.model.protocol import (
    FETCH_REPLICA_STATE_FROM,
    FETCH_TOPIC_IDS_FROM,
    METADATA_PARTITION,
    METADATA_TOPIC,
    METADATA_TOPIC_ID,
)
from moldau.wire.messages import FetchRequest, FetchResponse

WAIT_MS_MAX: Final = 10_000

PartitionResult = FetchResponse.PartitionData


async def handle(request: FetchRequest, context: MetadataFetchContext) -> FetchResponse:
    """Wait for records, or for a new high watermark."""
    check_member(request.cluster_id, context)
    wanted = _only_partition(request.topics, context.api_version)
    replica_id = request.replica_id
    if context.api_version >= FETCH_REPLICA_STATE_FROM:
        replica_id = request.replica_state.replica_id if request.replica_state is not None else NO_NODE
    replica = ReplicaKey(NodeId(replica_id), wanted.replica_directory_id) if replica_id >= 0 else None

    def event(ticket: Ticket) -> FetchRequested:
        return FetchRequested(
            ticket=ticket,
            replica=replica,
            epoch=wanted.current_leader_epoch,
            offset=wanted.fetch_offset,
            last_epoch=wanted.last_fetched_epoch,
            high_watermark=wanted.high_watermark,
        )

    response = await context.broker.metadata.quorum.fetch(
        event,
        max_bytes=max(0, min(wanted.partition_max_bytes, request.max_bytes, FETCH_BYTES_MAX)),
        wait_ms=max(0, min(request.max_wait_ms, WAIT_MS_MAX)),
    )
    partition = _records_result(response) if isinstance(response, FetchResult) else _error_result(response)
    is_rejected = partition.error_code != ErrorCode.NONE
    topic = FetchResponse.FetchableTopicResponse(
        topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[partition]
    )
    return FetchResponse(
        responses=[topic],
        node_endpoints=leader_endpoints(FetchResponse.NodeEndpoint, response.leadership) if is_rejected else [],
    )


def _only_partition(topics: Sequence[FetchRequest.FetchTopic], version: int) -> FetchRequest.FetchPartition:
    partitions = [each for topic in topics for each in topic.partitions]
    names = [topic.topic_id if version >= FETCH_TOPIC_IDS_FROM else topic.topic for topic in topics]
    is_it = (
        names in ([METADATA_TOPIC_ID], [METADATA_TOPIC])
        and len(partitions) == 1
        and partitions[0].partition == METADATA_PARTITION
    )
    if not is_it:
        raise InvalidRequest(f"Controllers serve {METADATA_TOPIC}-{METADATA_PARTITION} only.")
    return partitions[0]


def _records_result(response: FetchResult) -> PartitionResult:
    return PartitionResult(
        partition_index=METADATA_PARTITION,
        high_watermark=response.high_watermark,
        last_stable_offset=response.high_watermark,
        log_start_offset=response.start_offset,
        current_leader=_leader(response),
        aborted_transactions=None,
        records=response.records,
    )


def _error_result(response: RespondToFetch) -> PartitionResult:
    return PartitionResult(
        partition_index=METADATA_PARTITION,
        error_code=int(response.error),
        high_watermark=response.high_watermark,
        last_stable_offset=response.high_watermark,
        log_start_offset=NO_OFFSET,
        current_leader=_leader(response),
        diverging_epoch=_diverging_epoch(response.diverging),
        snapshot_id=_snapshot_id(response.snapshot),
        aborted_transactions=None,
        records=b"",
    )


def _leader(response: FetchResult | RespondToFetch) -> FetchResponse.LeaderIdAndEpoch:
    leadership = response.leadership
    return FetchResponse.LeaderIdAndEpoch(leader_id=leadership.leader_id, leader_epoch=leadership.epoch)


def _diverging_epoch(found: OffsetAndEpoch | None) -> FetchResponse.EpochEndOffset | None:
    return None if found is None else FetchResponse.EpochEndOffset(end_offset=found.offset, epoch=found.epoch)


def _snapshot_id(found: OffsetAndEpoch | None) -> FetchResponse.SnapshotId | None:
    return None if found is None else FetchResponse.SnapshotId(end_offset=found.offset, epoch=found.epoch)
