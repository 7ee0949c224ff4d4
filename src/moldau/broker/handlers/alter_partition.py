"""AlterPartition: a partition leader proposes a new ISR."""

from collections.abc import Iterator

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.handlers.contexts import QuorumContext
from moldau.machines.metadata.alter_partition import IsrProposal, IsrResult
from moldau.model.ids import NO_EPOCH, TopicId
from moldau.wire.messages import AlterPartitionRequest, AlterPartitionResponse


async def handle(request: AlterPartitionRequest, context: QuorumContext) -> AlterPartitionResponse:
    """On the active controller: return each partition's current state, or why the proposal was rejected."""
    context.authorize(Operation.CLUSTER_ACTION, CLUSTER)
    proposals = list(_proposals(request))
    outcomes = await context.broker.metadata.write(
        lambda machine: machine.decide_alter_partition(request.broker_id, request.broker_epoch, proposals)
    )
    results: dict[TopicId, list[AlterPartitionResponse.PartitionData]] = {}
    for outcome in outcomes:
        results.setdefault(outcome.topic_id, []).append(_result(outcome))
    return AlterPartitionResponse(
        topics=[
            AlterPartitionResponse.TopicData(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in results.items()
        ]
    )


def _proposals(request: AlterPartitionRequest) -> Iterator[IsrProposal]:
    for topic in request.topics:
        for partition in topic.partitions:
            known = [(each.broker_id, each.broker_epoch) for each in partition.new_isr_with_epochs]
            yield IsrProposal(
                TopicId(topic.topic_id),
                partition.partition_index,
                partition.leader_epoch,
                partition.partition_epoch,
                known or [(broker_id, NO_EPOCH) for broker_id in partition.new_isr],
                partition.leader_recovery_state,
            )


def _result(outcome: IsrResult) -> AlterPartitionResponse.PartitionData:
    result = AlterPartitionResponse.PartitionData(partition_index=outcome.index, error_code=int(outcome.error))
    partition = outcome.partition
    if partition is not None:
        result.leader_id = partition.leader
        result.leader_epoch = partition.leader_epoch
        result.isr = list(partition.isr)
        result.leader_recovery_state = partition.leader_recovery_state
        result.partition_epoch = partition.partition_epoch
    return result
