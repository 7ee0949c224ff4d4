"""DescribeQuorum: the leader, voters and observers of the metadata quorum, and each replica's log end offset."""

from collections.abc import Callable, Iterable

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.handlers.contexts import QuorumContext
from moldau.broker.requests.quorum_requests import only_partition
from moldau.machines.raft import NEVER_MS, QuorumDescription, ReplicaDescription, VoterSet
from moldau.model.errors import ErrorCode, InvalidRequest
from moldau.model.ids import NO_TIMESTAMP
from moldau.model.protocol import METADATA_PARTITION, METADATA_TOPIC
from moldau.wire.messages import DescribeQuorumRequest, DescribeQuorumResponse

Replica = DescribeQuorumResponse.ReplicaState


async def handle(request: DescribeQuorumRequest, context: QuorumContext) -> DescribeQuorumResponse:
    """Only the leader knows the progress of the other replicas."""
    context.authorize(Operation.DESCRIBE, CLUSTER)
    try:
        only_partition(request.topics)
    except InvalidRequest as rejection:
        return _unknown(request, str(rejection))
    machine = context.broker.metadata.quorum.machine
    clock = context.broker.clock
    now_ms, wall_ms = clock.monotonic_ms(), clock.wall_ms()
    if not machine.is_leader:
        return _response(
            DescribeQuorumResponse.PartitionData(
                partition_index=METADATA_PARTITION,
                error_code=int(ErrorCode.NOT_LEADER_OR_FOLLOWER),
                leader_id=machine.leadership.leader_id,
                leader_epoch=machine.epoch,
            )
        )

    def on_wall(then_ms: float) -> int:
        return NO_TIMESTAMP if then_ms == NEVER_MS else wall_ms - round(now_ms - then_ms)

    return _response(_described(machine.describe(now_ms), on_wall), machine.voters)


def _unknown(request: DescribeQuorumRequest, message: str) -> DescribeQuorumResponse:
    """Return the error for each partition of the request."""

    def rejected(partition_index: int) -> DescribeQuorumResponse.PartitionData:
        return DescribeQuorumResponse.PartitionData(
            partition_index=partition_index,
            error_code=int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            error_message=message,
        )

    return DescribeQuorumResponse(
        topics=[
            DescribeQuorumResponse.TopicData(
                topic_name=topic.topic_name, partitions=[rejected(each.partition_index) for each in topic.partitions]
            )
            for topic in request.topics
        ]
    )


def _described(quorum: QuorumDescription, on_wall: Callable[[float], int]) -> DescribeQuorumResponse.PartitionData:
    def replicas(described: Iterable[ReplicaDescription]) -> list[DescribeQuorumResponse.ReplicaState]:
        return [
            Replica(
                replica_id=each.key.node_id,
                replica_directory_id=each.key.directory_id,
                log_end_offset=each.end_offset,
                last_fetch_timestamp=on_wall(each.last_fetch_ms),
                last_caught_up_timestamp=on_wall(each.last_caught_up_ms),
            )
            for each in described
        ]

    return DescribeQuorumResponse.PartitionData(
        partition_index=METADATA_PARTITION,
        leader_id=quorum.leadership.leader_id,
        leader_epoch=quorum.leadership.epoch,
        high_watermark=quorum.high_watermark,
        current_voters=replicas(quorum.voters),
        observers=replicas(quorum.observers),
    )


def _response(
    partition: DescribeQuorumResponse.PartitionData, voters: VoterSet | None = None
) -> DescribeQuorumResponse:
    return DescribeQuorumResponse(
        topics=[DescribeQuorumResponse.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])],
        nodes=[
            DescribeQuorumResponse.Node(
                node_id=each.node_id,
                listeners=[
                    DescribeQuorumResponse.Listener(name=name, host=address.host, port=address.port)
                    for name, address in each.endpoints
                ],
            )
            for each in voters or ()
        ],
    )
