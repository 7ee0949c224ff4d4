"""AlterPartitionReassignments: partitions move to other brokers, or their move is called off."""

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.requests.context import RequestContext
from moldau.machines.metadata.reassignments import Reassigned, Reassignment
from moldau.wire.messages import AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse

TopicAnswer = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
PartitionAnswer = AlterPartitionReassignmentsResponse.ReassignablePartitionResponse


async def handle(
    request: AlterPartitionReassignmentsRequest, context: RequestContext
) -> AlterPartitionReassignmentsResponse:
    """Answered once the moves have begun; each partition moves or is refused by itself."""
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
    answers: dict[str, list[PartitionAnswer]] = {}
    for outcome in outcomes:
        answers.setdefault(outcome.topic, []).append(_answer(outcome))
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=may_change_factor,
        responses=[TopicAnswer(name=name, partitions=partitions) for name, partitions in answers.items()],
    )


def _answer(outcome: Reassigned) -> PartitionAnswer:
    return PartitionAnswer(partition_index=outcome.index, error_code=int(outcome.error), error_message=outcome.message)
