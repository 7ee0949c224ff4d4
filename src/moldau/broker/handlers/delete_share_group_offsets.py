"""DeleteShareGroupOffsets: delete the states of whole topics of a share group without members."""

from moldau.broker.access import Operation
from moldau.broker.handlers.contexts import ShareContext
from moldau.broker.handlers.share_states import delete_states
from moldau.model.errors import KafkaError, TopicAuthorizationFailed, UnknownTopicOrPartition
from moldau.model.ids import NO_TOPIC_ID, TopicId
from moldau.wire.messages import DeleteShareGroupOffsetsRequest, DeleteShareGroupOffsetsResponse

Result = DeleteShareGroupOffsetsResponse.DeleteShareGroupOffsetsResponseTopic


async def handle(request: DeleteShareGroupOffsetsRequest, context: ShareContext) -> DeleteShareGroupOffsetsResponse:
    """Delete or reject each topic on its own; a later subscription starts again by `share.auto.offset.reset`."""
    context.authorize_group(Operation.DELETE, request.group_id)
    shard = context.broker.groups.shard_of(request.group_id)
    await shard.read(lambda machine: machine.share_states(request.group_id))  # raises if it is not a share group
    results: list[Result] = []
    wanted: list[TopicId] = []
    for name in dict.fromkeys(topic.topic_name for topic in request.topics):
        try:
            topic_id = _topic_id(name, context)
        except KafkaError as error:
            results.append(_result(name, NO_TOPIC_ID, error))
        else:
            wanted.append(topic_id)
            results.append(Result(topic_name=name, topic_id=topic_id))
    await delete_states(context.broker, request.group_id, wanted)
    return DeleteShareGroupOffsetsResponse(responses=results)


def _topic_id(name: str, context: ShareContext) -> TopicId:
    if not context.may(Operation.READ, name):
        raise TopicAuthorizationFailed(f"Not authorized to read topic {name}.")
    topic = context.broker.image.topics.get(name)
    if topic is None:
        raise UnknownTopicOrPartition(f"Topic {name} does not exist.")
    return topic.topic_id


def _result(name: str, topic_id: TopicId, error: KafkaError) -> Result:
    return Result(topic_name=name, topic_id=topic_id, error_code=int(error.code), error_message=error.message)
