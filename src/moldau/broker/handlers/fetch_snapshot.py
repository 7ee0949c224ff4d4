"""FetchSnapshot: a node that lags too far behind takes over a snapshot of the metadata, piece by piece."""

from typing import Any

from moldau.broker.drivers.metadata_snapshots import SnapshotId
from moldau.broker.drivers.quorum_messages import FETCH_BYTES_MAX, PARTITION, TOPIC
from moldau.broker.requests.context import RequestContext
from moldau.broker.requests.quorum_requests import check_member, only_partition, where_leader_is
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
from moldau.wire.messages import FetchSnapshotRequest, FetchSnapshotResponse

Answer = FetchSnapshotResponse.PartitionSnapshot


async def handle(request: FetchSnapshotRequest, context: RequestContext) -> FetchSnapshotResponse:
    """The leader alone serves them: it also hears thereby that the node is there."""
    check_member(request.cluster_id, context)
    if (elsewhere := _elsewhere(request)) is not None:
        return elsewhere
    asked = only_partition(request.topics)
    snapshot = SnapshotId(asked.snapshot_id.end_offset, asked.snapshot_id.epoch)
    replica = ReplicaKey(NodeId(request.replica_id), asked.replica_directory_id) if request.replica_id >= 0 else None

    def event(ticket: Ticket) -> FetchSnapshotRequested:
        return FetchSnapshotRequested(
            ticket=ticket,
            replica=replica,
            epoch=asked.current_leader_epoch,
            snapshot=OffsetAndEpoch(*snapshot),
        )

    quorum = context.broker.metadata.quorum
    answer: RespondToFetchSnapshot | ServeSnapshot = await quorum.ask(event)
    if isinstance(answer, RespondToFetchSnapshot):
        return _response(answer.leadership, snapshot, error_code=int(answer.error))
    leadership = quorum.machine.leadership
    max_bytes = max(1, min(request.max_bytes, FETCH_BYTES_MAX))
    try:
        size_bytes, piece = await context.broker.metadata.snapshots.read_piece(snapshot, asked.position, max_bytes)
    except KafkaError as error:
        return _response(leadership, snapshot, error_code=int(error.code))
    return _response(leadership, snapshot, size=size_bytes, position=asked.position, unaligned_records=piece)


def _elsewhere(request: FetchSnapshotRequest) -> FetchSnapshotResponse | None:
    """The answer to whoever asks about one partition, which is not that of the metadata."""
    named = [(topic.name, each.partition) for topic in request.topics for each in topic.partitions]
    if len(named) != 1 or named == [(TOPIC, PARTITION)]:
        return None
    ((name, index),) = named
    partition = Answer(index=index, error_code=int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), unaligned_records=b"")
    return FetchSnapshotResponse(topics=[FetchSnapshotResponse.TopicSnapshot(name=name, partitions=[partition])])


def _response(leadership: Leadership, snapshot: SnapshotId, **fields: Any) -> FetchSnapshotResponse:
    partition = Answer(
        index=PARTITION,
        snapshot_id=FetchSnapshotResponse.SnapshotId(end_offset=snapshot.offset, epoch=snapshot.epoch),
        current_leader=FetchSnapshotResponse.LeaderIdAndEpoch(
            leader_id=leadership.leader_id, leader_epoch=leadership.epoch
        ),
        **{"unaligned_records": b"", **fields},
    )
    is_refused = partition.error_code != ErrorCode.NONE
    return FetchSnapshotResponse(
        topics=[FetchSnapshotResponse.TopicSnapshot(name=TOPIC, partitions=[partition])],
        node_endpoints=where_leader_is(FetchSnapshotResponse.NodeEndpoint, leadership) if is_refused else [],
    )
