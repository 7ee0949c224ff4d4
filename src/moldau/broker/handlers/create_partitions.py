"""CreatePartitions: topics grow."""

from moldau.broker.access import Operation
from moldau.broker.controllers.topic_creation import PLACEMENT_STARTS, check_room
from moldau.broker.internal_topics import is_internal
from moldau.broker.requests.context import RequestContext
from moldau.machines.metadata.partitions import MorePartitions
from moldau.model.errors import InvalidTopic, KafkaError, TopicAuthorizationFailed
from moldau.wire.messages import CreatePartitionsRequest, CreatePartitionsResponse

Asked = CreatePartitionsRequest.CreatePartitionsTopic
Answer = CreatePartitionsResponse.CreatePartitionsTopicResult


async def handle(request: CreatePartitionsRequest, context: RequestContext) -> CreatePartitionsResponse:
    """Each topic grows or is refused by itself."""
    broker = context.broker
    answers = []
    wanted = []
    for topic in request.topics:
        refusal = _refusal(topic.name, context)
        if refusal is None:
            wanted.append(_more(topic))
        else:
            answers.append(_refused(topic.name, refusal))
    if wanted:
        topics = broker.image.topics
        check_room(
            broker,
            sum(max(0, each.count - len(topics[each.name].partitions)) for each in wanted if each.name in topics),
        )
        start = broker.random.randrange(0, PLACEMENT_STARTS)
        grown = await broker.metadata.write(
            lambda machine: machine.decide_create_partitions(wanted, start=start, validate_only=request.validate_only)
        )
        await broker.caught_up()
        answers.extend(Answer(name=each.name, error_code=int(each.error), error_message=each.message) for each in grown)
    return CreatePartitionsResponse(results=answers)


def _refusal(name: str, context: RequestContext) -> KafkaError | None:
    """A group is kept in the partition that its id and their number give, so that number is for ever."""
    if not context.may(Operation.ALTER, name):
        return TopicAuthorizationFailed(f"Not authorized to alter topic {name}.")
    if is_internal(name):
        return InvalidTopic(f"Topic {name} is the brokers' own, and what is in it would not be found any more.")
    return None


def _more(topic: Asked) -> MorePartitions:
    assignments = None
    if topic.assignments is not None:
        assignments = [list(each.broker_ids) for each in topic.assignments]
    return MorePartitions(topic.name, topic.count, assignments)


def _refused(name: str, error: KafkaError) -> Answer:
    return Answer(name=name, error_code=int(error.code), error_message=error.message)


def refuse(request: CreatePartitionsRequest, error: KafkaError, version: int) -> CreatePartitionsResponse:  # noqa: ARG001
    """The same error for every topic."""
    return CreatePartitionsResponse(results=[_refused(topic.name, error) for topic in request.topics])
