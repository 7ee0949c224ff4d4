"""OffsetForLeaderEpoch: where a leader's reign ended, so that a client or follower can tell whether it lost records."""

from moldau.broker.access import Operation
from moldau.broker.requests.context import RequestContext
from moldau.broker.runtime.time_slice import TimeSlice
from moldau.model.errors import KafkaError, TopicAuthorizationFailed
from moldau.wire.messages import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse

Asked = OffsetForLeaderEpochRequest.OffsetForLeaderPartition
Answer = OffsetForLeaderEpochResponse.EpochEndOffset
TopicAnswer = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult


async def handle(request: OffsetForLeaderEpochRequest, context: RequestContext) -> OffsetForLeaderEpochResponse:
    """Each partition is answered for itself."""
    turn = TimeSlice(context)
    topics = []
    for topic in request.topics:
        answers = []
        for asked in topic.partitions:
            answers.append(_answer(topic.topic, asked, context))
            if turn.is_over():
                await turn.next()
        topics.append(TopicAnswer(topic=topic.topic, partitions=answers))
    return OffsetForLeaderEpochResponse(topics=topics)


def _answer(topic: str, asked: Asked, context: RequestContext) -> Answer:
    try:
        if not context.may(Operation.DESCRIBE, topic):
            raise TopicAuthorizationFailed(f"Not authorized to describe topic {topic}.")
        partition = context.broker.partitions.get(topic, asked.partition)
        partition.check_epoch(asked.current_leader_epoch)
    except KafkaError as error:
        return Answer(partition=asked.partition, error_code=int(error.code))
    if asked.leader_epoch == partition.leader_epoch:  # it goes on, also where it has written nothing yet
        epoch, end_offset = asked.leader_epoch, partition.log.end_offset
    else:
        epoch, end_offset = partition.log.end_offset_for_epoch(asked.leader_epoch)
    return Answer(partition=asked.partition, leader_epoch=epoch, end_offset=end_offset)


def refuse(request: OffsetForLeaderEpochRequest, error: KafkaError, version: int) -> OffsetForLeaderEpochResponse:  # noqa: ARG001
    """The same error for every partition."""
    topics = [
        TopicAnswer(
            topic=topic.topic,
            partitions=[Answer(partition=asked.partition, error_code=int(error.code)) for asked in topic.partitions],
        )
        for topic in request.topics
    ]
    return OffsetForLeaderEpochResponse(topics=topics)
