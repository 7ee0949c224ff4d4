"""AssignReplicasToDirs: a broker reports which directory its replicas are in, or that they are lost."""

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.handlers.contexts import QuorumContext
from moldau.machines.metadata.replica_dirs import ReplicaDirAssignment, ReplicaDirResult
from moldau.model.ids import DirectoryId, TopicId
from moldau.wire.messages import AssignReplicasToDirsRequest, AssignReplicasToDirsResponse

Results = dict[bytes, dict[bytes, list[AssignReplicasToDirsResponse.PartitionData]]]


async def handle(request: AssignReplicasToDirsRequest, context: QuorumContext) -> AssignReplicasToDirsResponse:
    """On the active controller: assign each replica on its own."""
    context.authorize(Operation.CLUSTER_ACTION, CLUSTER)
    placed = [
        ReplicaDirAssignment(TopicId(topic.topic_id), partition.partition_index, DirectoryId(directory.id_))
        for directory in request.directories
        for topic in directory.topics
        for partition in topic.partitions
    ]
    noted = await context.broker.metadata.write(
        lambda machine: machine.decide_assign_replicas_to_dirs(request.broker_id, request.broker_epoch, placed)
    )
    return AssignReplicasToDirsResponse(
        directories=[
            AssignReplicasToDirsResponse.DirectoryData(
                id_=directory,
                topics=[
                    AssignReplicasToDirsResponse.TopicData(topic_id=topic_id, partitions=partitions)
                    for topic_id, partitions in topics.items()
                ],
            )
            for directory, topics in _by_directory(noted).items()
        ]
    )


def _by_directory(noted: list[ReplicaDirResult]) -> Results:
    results: Results = {}
    for each in noted:
        result = AssignReplicasToDirsResponse.PartitionData(partition_index=each.copy.index, error_code=int(each.error))
        results.setdefault(each.copy.directory, {}).setdefault(each.copy.topic_id, []).append(result)
    return results
