"""ElectLeaders: elect the preferred replicas, or any live replica (unclean, which may lose records)."""

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.handlers.contexts import QuorumContext
from moldau.machines.metadata.elect_leaders import LeaderElected
from moldau.model.errors import KafkaError
from moldau.wire.messages import ElectLeadersRequest, ElectLeadersResponse

TopicResult = ElectLeadersResponse.ReplicaElectionResult
PartitionResult = ElectLeadersResponse.PartitionResult


async def handle(request: ElectLeadersRequest, context: QuorumContext) -> ElectLeadersResponse:
    """Elect or reject each partition on its own; without a list, elect all partitions that need a leader."""
    context.authorize(Operation.ALTER, CLUSTER)
    election_type, wanted = request.election_type, _wanted(request)
    outcomes = await context.broker.metadata.write(lambda machine: machine.decide_elect_leaders(election_type, wanted))
    return ElectLeadersResponse(replica_election_results=_results(outcomes))


def _wanted(request: ElectLeadersRequest) -> list[tuple[str, int]] | None:
    if request.topic_partitions is None:
        return None
    return [(each.topic, index) for each in request.topic_partitions for index in each.partitions]


def _results(outcomes: list[LeaderElected]) -> list[TopicResult]:
    results: dict[str, list[PartitionResult]] = {}
    for each in outcomes:
        results.setdefault(each.topic, []).append(
            PartitionResult(partition_id=each.index, error_code=int(each.error), error_message=each.message)
        )
    return [TopicResult(topic=topic, partition_result=partitions) for topic, partitions in results.items()]


def error_response(request: ElectLeadersRequest, error: KafkaError, version: int) -> ElectLeadersResponse:  # noqa: ARG001
    """Return the error for every partition and, from version 1 on, at the top level."""
    rejected = [LeaderElected(topic, index, error.code, error.message) for topic, index in _wanted(request) or ()]
    return ElectLeadersResponse(error_code=int(error.code), replica_election_results=_results(rejected))
