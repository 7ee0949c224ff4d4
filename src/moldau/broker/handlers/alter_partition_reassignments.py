"""AlterPartitionReassignments: move partitions to other brokers, or cancel a move."""

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.handlers.contexts import QuorumContext
from moldau.machines.metadata.reassignments import Reassigned, Reassignment
from moldau.wire.messages import AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse

TopicResult = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
PartitionResult = AlterPartitionReassignmentsResponse.ReassignablePartitionResponse


async def handle(
    request: AlterPartitionReassignmentsRequest, context: QuorumContext
) -> AlterPartitionReassignmentsResponse:
    """Respond once the moves have started; start or reject each partition's on its own."""
    context.authorize(Operation.ALTER, CLUSTER)
    wanted = [
        Reassignment(topic.name, each.partition_index, None if each.replicas is None else list(each.replicas))
        for topic in request.topics
        for each in topic.partitions
    ]
    may_change_factor = request.allow_replication_factor_change
    outcomes = await context.broker.metadata.write(
        lambda machine: machine.decide_alter_reassignments(wanted, may_change_factor=may_change_factor)
    )
    results: dict[str, list[PartitionResult]] = {}
    for outcome in outcomes:
        results.setdefault(outcome.topic, []).append(_result(outcome))
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=may_change_factor,
        responses=[TopicResult(name=name, partitions=partitions) for name, partitions in results.items()],
    )


def _result(outcome: Reassigned) -> PartitionResult:
    return PartitionResult(partition_index=outcome.index, error_code=int(outcome.error), error_message=outcome.message)
