"""AlterShareGroupOffsets: set the start offsets of a share group without members."""

import asyncio
from collections.abc import Sequence

from moldau.broker.access import Operation
from moldau.broker.handlers.contexts import ShareContext
from moldau.broker.shares.persister import SharePartitionKey
from moldau.model.errors import InvalidRequest, KafkaError, TopicAuthorizationFailed, UnknownTopicOrPartition
from moldau.model.ids import NO_TOPIC_ID, TopicId
from moldau.wire.messages import AlterShareGroupOffsetsRequest, AlterShareGroupOffsetsResponse

Requested = AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestPartition
TopicResult = AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponseTopic
Result = AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponsePartition


async def handle(request: AlterShareGroupOffsetsRequest, context: ShareContext) -> AlterShareGroupOffsetsResponse:
    """Reset the valid partitions in a new state epoch, which fences the leaders that know the old state."""
    context.authorize_group(Operation.READ, request.group_id)
    shard = context.broker.groups.shard_of(request.group_id)
    checked = [(topic.topic_name, *_check(topic.topic_name, topic.partitions, context)) for topic in request.topics]
    wanted: dict[TopicId, dict[int, int]] = {}
    for _, topic_id, _, valid in checked:
        if valid:
            wanted.setdefault(topic_id, {}).update(valid)
    epoch = await shard.commit(
        lambda machine: machine.decide_alter_share_offsets(
            request.group_id, {topic_id: frozenset(each) for topic_id, each in wanted.items()}, now=shard.now
        )
    )
    responses = []
    for name, topic_id, invalid, valid in checked:
        reset = await asyncio.gather(
            *(
                _reset(SharePartitionKey(request.group_id, topic_id, index), epoch, offset, context)
                for index, offset in valid.items()
            )
        )
        responses.append(TopicResult(topic_name=name, topic_id=topic_id, partitions=[*invalid, *reset]))
    return AlterShareGroupOffsetsResponse(responses=responses)


def _check(
    name: str, partitions: Sequence[Requested], context: ShareContext
) -> tuple[TopicId, list[Result], dict[int, int]]:
    """Return the topic id, the results of invalid partitions, and the start offsets of valid ones."""
    topic = context.broker.image.topics.get(name)
    count = 0 if topic is None else len(topic.partitions)
    invalid: list[Result] = []
    valid: dict[int, int] = {}
    for each in partitions:
        if not context.may(Operation.READ, name):
            invalid.append(_result(each.partition_index, TopicAuthorizationFailed(f"Not authorized to read {name}.")))
        elif not 0 <= each.partition_index < count:
            error = UnknownTopicOrPartition(f"Partition {each.partition_index} of topic {name} does not exist.")
            invalid.append(_result(each.partition_index, error))
        elif each.start_offset < 0:
            invalid.append(_result(each.partition_index, InvalidRequest("A start offset must not be negative.")))
        else:
            valid[each.partition_index] = each.start_offset
    return NO_TOPIC_ID if topic is None else topic.topic_id, invalid, valid


async def _reset(key: SharePartitionKey, state_epoch: int, start_offset: int, context: ShareContext) -> Result:
    try:
        await context.broker.share_persister.initialize(key, state_epoch, start_offset)
    except KafkaError as error:
        return _result(key.partition, error)
    return Result(partition_index=key.partition)


def _result(index: int, error: KafkaError) -> Result:
    return Result(partition_index=index, error_code=int(error.code), error_message=error.message)
