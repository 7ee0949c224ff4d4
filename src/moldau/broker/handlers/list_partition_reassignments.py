"""ListPartitionReassignments: which partitions are on the move, from where, to where."""

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.requests.context import RequestContext
from moldau.machines.metadata.reassignments import Move
from moldau.wire.messages import ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse

TopicAnswer = ListPartitionReassignmentsResponse.OngoingTopicReassignment
PartitionAnswer = ListPartitionReassignmentsResponse.OngoingPartitionReassignment


async def handle(
    request: ListPartitionReassignmentsRequest, context: RequestContext
) -> ListPartitionReassignmentsResponse:
    """Answered by the active controller: whoever began a move sees it."""
    context.authorize(Operation.DESCRIBE, CLUSTER)
    wanted = None
    if request.topics is not None:
        wanted = [(topic.name, index) for topic in request.topics for index in topic.partition_indexes]
    answers: dict[str, list[PartitionAnswer]] = {}
    for move in await context.broker.metadata.read(lambda machine: machine.reassignments(wanted)):
        answers.setdefault(move.topic, []).append(_answer(move))
    return ListPartitionReassignmentsResponse(
        topics=[TopicAnswer(name=name, partitions=partitions) for name, partitions in answers.items()]
    )


def _answer(move: Move) -> PartitionAnswer:
    return PartitionAnswer(
        partition_index=move.index,
        replicas=list(move.partition.replicas),
        adding_replicas=list(move.partition.adding_replicas),
        removing_replicas=list(move.partition.removing_replicas),
    )
