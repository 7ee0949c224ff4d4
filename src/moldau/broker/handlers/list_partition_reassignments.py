"""ListPartitionReassignments: the ongoing moves of partitions."""

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.handlers.contexts import QuorumContext
from moldau.machines.metadata.reassignments import Move
from moldau.wire.messages import ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse

TopicResult = ListPartitionReassignmentsResponse.OngoingTopicReassignment
PartitionResult = ListPartitionReassignmentsResponse.OngoingPartitionReassignment


async def handle(
    request: ListPartitionReassignmentsRequest, context: QuorumContext
) -> ListPartitionReassignmentsResponse:
    """On the active controller, so that a client sees the moves it has started."""
    context.authorize(Operation.DESCRIBE, CLUSTER)
    wanted = None
    if request.topics is not None:
        wanted = [(topic.name, index) for topic in request.topics for index in topic.partition_indexes]
    results: dict[str, list[PartitionResult]] = {}
    for move in await context.broker.metadata.read(lambda machine: machine.reassignments(wanted)):
        results.setdefault(move.topic, []).append(_result(move))
    return ListPartitionReassignmentsResponse(
        topics=[TopicResult(name=name, partitions=partitions) for name, partitions in results.items()]
    )


def _result(move: Move) -> PartitionResult:
    return PartitionResult(
        partition_index=move.index,
        replicas=list(move.partition.replicas),
        adding_replicas=list(move.partition.adding_replicas),
        removing_replicas=list(move.partition.removing_replicas),
    )
