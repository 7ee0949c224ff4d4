"""OffsetCommit: a group notes how far it has read. Each partition is committed or refused by itself."""

from collections.abc import Sequence
from typing import Final

from moldau.broker.access import Operation
from moldau.broker.requests.context import RequestContext
from moldau.machines.metadata.image import TopicImage
from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.ids import TopicId
from moldau.wire.messages import OffsetCommitRequest, OffsetCommitResponse

TOPIC_IDS_FROM: Final = 10

Topic = OffsetCommitRequest.OffsetCommitRequestTopic
Partition = OffsetCommitRequest.OffsetCommitRequestPartition
TopicAnswer = OffsetCommitResponse.OffsetCommitResponseTopic
Answer = OffsetCommitResponse.OffsetCommitResponsePartition


async def handle(request: OffsetCommitRequest, context: RequestContext) -> OffsetCommitResponse:
    """What may be committed goes to the group's shard in one piece."""
    context.authorize_group(Operation.READ, request.group_id)
    shard = context.broker.groups.shard_of(request.group_id)
    refused = [answer for topic in request.topics if (answer := _take_out_refused(topic, context)) is not None]
    if refused:
        request.topics = [topic for topic in request.topics if topic.partitions]
    if not request.topics:
        return OffsetCommitResponse(topics=refused)
    version = context.api_version
    try:
        response = await shard.commit(
            lambda machine: machine.decide_commit_offsets(request, api_version=version, now=shard.now)
        )
    except KafkaError as error:
        response = refuse(request, error, version)
    return OffsetCommitResponse(topics=_merged(refused, response.topics)) if refused else response


def _take_out_refused(topic: Topic, context: RequestContext) -> TopicAnswer | None:
    """Leave in the request what can be committed, with its topic's name and id; the answer about the rest, if any."""
    known, error = _find(topic, context)
    if error is not ErrorCode.NONE or known is None:
        answers = _refused(topic.partitions, error)
        topic.partitions = []
        return TopicAnswer(topic_id=topic.topic_id, name=topic.name, partitions=answers)
    topic.name, topic.topic_id = known.name, known.topic_id
    count = len(known.partitions)
    unknown = [each for each in topic.partitions if not 0 <= each.partition_index < count]
    if not unknown:
        return None
    topic.partitions = [each for each in topic.partitions if 0 <= each.partition_index < count]
    answers = _refused(unknown, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return TopicAnswer(topic_id=topic.topic_id, name=topic.name, partitions=answers)


def _find(topic: Topic, context: RequestContext) -> tuple[TopicImage | None, ErrorCode]:
    image = context.broker.image
    if context.api_version >= TOPIC_IDS_FROM:
        known = image.topics_by_id.get(TopicId(topic.topic_id))
        if known is None:
            return None, ErrorCode.UNKNOWN_TOPIC_ID
        name = known.name
    else:
        name = topic.name
        known = image.topics.get(name)
    if not context.may(Operation.READ, name):
        return None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return known, ErrorCode.NONE if known is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _refused(partitions: Sequence[Partition], error: ErrorCode) -> list[Answer]:
    return [Answer(partition_index=each.partition_index, error_code=int(error)) for each in partitions]


def _merged(refused: list[TopicAnswer], taken: Sequence[TopicAnswer]) -> list[TopicAnswer]:
    """One answer for each topic, though some of its partitions were refused."""
    answers = {(answer.topic_id, answer.name): answer for answer in refused}
    for answer in taken:
        known = answers.setdefault((answer.topic_id, answer.name), answer)
        if known is not answer:
            known.partitions = [*known.partitions, *answer.partitions]
    return list(answers.values())


def refuse(request: OffsetCommitRequest, error: KafkaError, version: int) -> OffsetCommitResponse:  # noqa: ARG001
    """The same error for every partition."""
    topics = [
        TopicAnswer(topic_id=topic.topic_id, name=topic.name, partitions=_refused(topic.partitions, error.code))
        for topic in request.topics
    ]
    return OffsetCommitResponse(topics=topics)
