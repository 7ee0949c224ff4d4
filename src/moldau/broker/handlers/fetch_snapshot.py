"""FetchSnapshot: a replica that lags too far behind fetches a metadata snapshot in pieces."""

from typing import Any

from moldau.broker.drivers.metadata_snapshots import SnapshotId
from moldau.broker.drivers.quorum_messages import FETCH_BYTES_MAX
from moldau.broker.handlers.contexts import QuorumContext
from moldau.broker.requests.quorum_requests import check_member, leader_endpoints, only_partition
from moldau.machines.raft import (
    FetchSnapshotRequested,
    Leadership,
    OffsetAndEpoch,
    ReplicaKey,
    RespondToFetchSnapshot,
    ServeSnapshot,
    Ticket,
)
from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.ids import NodeId
from moldau.model.protocol import METADATA_PARTITION, METADATA_TOPIC
from moldau.wire.messages import FetchSnapshotRequest, FetchSnapshotResponse

PartitionResult = FetchSnapshotResponse.PartitionSnapshot


async def handle(request: FetchSnapshotRequest, context: QuorumContext) -> FetchSnapshotResponse:
    """Only the leader serves snapshots; the request also proves to it that the replica is alive."""
    check_member(request.cluster_id, context)
    if (elsewhere := _wrong_partition(request)) is not None:
        return elsewhere
    requested = only_partition(request.topics)
    snapshot = SnapshotId(requested.snapshot_id.end_offset, requested.snapshot_id.epoch)
    replica = (
        ReplicaKey(NodeId(request.replica_id), requested.replica_directory_id) if request.replica_id >= 0 else None
    )

    def event(ticket: Ticket) -> FetchSnapshotRequested:
        return FetchSnapshotRequested(
            ticket=ticket,
            replica=replica,
            epoch=requested.current_leader_epoch,
            snapshot=OffsetAndEpoch(*snapshot),
        )

    quorum = context.broker.metadata.quorum
    response: RespondToFetchSnapshot | ServeSnapshot = await quorum.ask(event)
    if isinstance(response, RespondToFetchSnapshot):
        return _response(response.leadership, snapshot, error_code=int(response.error))
    leadership = quorum.machine.leadership
    max_bytes = max(1, min(request.max_bytes, FETCH_BYTES_MAX))
    try:
        size_bytes, piece = await context.broker.metadata.snapshots.read_piece(snapshot, requested.position, max_bytes)
    except KafkaError as error:
        return _response(leadership, snapshot, error_code=int(error.code))
    return _response(leadership, snapshot, size=size_bytes, position=requested.position, unaligned_records=piece)


def _wrong_partition(request: FetchSnapshotRequest) -> FetchSnapshotResponse | None:
    """The error for a single partition that is not the metadata log's."""
    named = [(topic.name, each.partition) for topic in request.topics for each in topic.partitions]
    if len(named) != 1 or named == [(METADATA_TOPIC, METADATA_PARTITION)]:
        return None
    ((name, index),) = named
    partition = PartitionResult(
        index=index, error_code=int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), unaligned_records=b""
    )
    return FetchSnapshotResponse(topics=[FetchSnapshotResponse.TopicSnapshot(name=name, partitions=[partition])])


def _response(leadership: Leadership, snapshot: SnapshotId, **fields: Any) -> FetchSnapshotResponse:
    partition = PartitionResult(
        index=METADATA_PARTITION,
        snapshot_id=FetchSnapshotResponse.SnapshotId(end_offset=snapshot.offset, epoch=snapshot.epoch),
        current_leader=FetchSnapshotResponse.LeaderIdAndEpoch(
            leader_id=leadership.leader_id, leader_epoch=leadership.epoch
        ),
        **{"unaligned_records": b"", **fields},
    )
    is_rejected = partition.error_code != ErrorCode.NONE
    return FetchSnapshotResponse(
        topics=[FetchSnapshotResponse.TopicSnapshot(name=METADATA_TOPIC, partitions=[partition])],
        node_endpoints=leader_endpoints(FetchSnapshotResponse.NodeEndpoint, leadership) if is_rejected else [],
    )
