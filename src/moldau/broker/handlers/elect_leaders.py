"""ElectLeaders: preferred replicas lead again; or anybody leads, at the price of lost records."""

from moldau.broker.access import CLUSTER, Operation
from moldau.broker.requests.context import RequestContext
from moldau.machines.metadata.elect_leaders import LeaderElected
from moldau.model.errors import KafkaError
from moldau.wire.messages import ElectLeadersRequest, ElectLeadersResponse

TopicAnswer = ElectLeadersResponse.ReplicaElectionResult
PartitionAnswer = ElectLeadersResponse.PartitionResult


async def handle(request: ElectLeadersRequest, context: RequestContext) -> ElectLeadersResponse:
    """Each partition gets its leader or is refused by itself; without a list, all that need one."""
    context.authorize(Operation.ALTER, CLUSTER)
    election_type, wanted = request.election_type, _wanted(request)
    outcomes = await context.broker.metadata.write(lambda machine: machine.decide_elect_leaders(election_type, wanted))
    return ElectLeadersResponse(replica_election_results=_answers(outcomes))


def _wanted(request: ElectLeadersRequest) -> list[tuple[str, int]] | None:
    if request.topic_partitions is None:
        return None
    return [(each.topic, index) for each in request.topic_partitions for index in each.partitions]


def _answers(outcomes: list[LeaderElected]) -> list[TopicAnswer]:
    answers: dict[str, list[PartitionAnswer]] = {}
    for each in outcomes:
        answers.setdefault(each.topic, []).append(
            PartitionAnswer(partition_id=each.index, error_code=int(each.error), error_message=each.message)
        )
    return [TopicAnswer(topic=topic, partition_result=partitions) for topic, partitions in answers.items()]


def refuse(request: ElectLeadersRequest, error: KafkaError, version: int) -> ElectLeadersResponse:  # noqa: ARG001
    """The same error for every partition, and at the top, where older versions have no place for one."""
    refused = [LeaderElected(topic, index, error.code, error.message) for topic, index in _wanted(request) or ()]
    return ElectLeadersResponse(error_code=int(error.code), replica_election_results=_answers(refused))
