"""OffsetCommit: commit a group's offsets. Each partition is committed or rejected on its own."""

from collections.abc import Sequence

from moldau.broker.access import Operation
from moldau.broker.handlers.contexts import GroupContext
from moldau.machines.metadata.image import TopicImage
from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.ids import TopicId
from moldau.model.protocol import OFFSETS_TOPIC_IDS_FROM
from moldau.wire.messages import OffsetCommitRequest, OffsetCommitResponse

Topic = OffsetCommitRequest.OffsetCommitRequestTopic
Partition = OffsetCommitRequest.OffsetCommitRequestPartition
TopicResult = OffsetCommitResponse.OffsetCommitResponseTopic
Result = OffsetCommitResponse.OffsetCommitResponsePartition


async def handle(request: OffsetCommitRequest, context: GroupContext) -> OffsetCommitResponse:
    """Commit all valid partitions in one decision of the group's shard."""
    context.authorize_group(Operation.READ, request.group_id)
    shard = context.broker.groups.shard_of(request.group_id)
    rejected = [result for topic in request.topics if (result := _remove_rejected(topic, context)) is not None]
    if rejected:
        request.topics = [topic for topic in request.topics if topic.partitions]
    if not request.topics:
        return OffsetCommitResponse(topics=rejected)
    version = context.api_version
    try:
        response = await shard.commit(
            lambda machine: machine.decide_commit_offsets(request, api_version=version, now=shard.now)
        )
    except KafkaError as error:
        response = error_response(request, error, version)
    return OffsetCommitResponse(topics=_merged(rejected, response.topics)) if rejected else response


def _remove_rejected(topic: Topic, context: GroupContext) -> TopicResult | None:
    """Remove invalid partitions from the request and return their errors; fill in the topic's name and id."""
    known, error = _find(topic, context)
    if error is not ErrorCode.NONE or known is None:
        results = _error_result(topic.partitions, error)
        topic.partitions = []
        return TopicResult(topic_id=topic.topic_id, name=topic.name, partitions=results)
    topic.name, topic.topic_id = known.name, known.topic_id
    count = len(known.partitions)
    unknown = [each for each in topic.partitions if not 0 <= each.partition_index < count]
    if not unknown:
        return None
    topic.partitions = [each for each in topic.partitions if 0 <= each.partition_index < count]
    results = _error_result(unknown, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return TopicResult(topic_id=topic.topic_id, name=topic.name, partitions=results)


def _find(topic: Topic, context: GroupContext) -> tuple[TopicImage | None, ErrorCode]:
    image = context.broker.image
    if context.api_version >= OFFSETS_TOPIC_IDS_FROM:
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


def _error_result(partitions: Sequence[Partition], error: ErrorCode) -> list[Result]:
    return [Result(partition_index=each.partition_index, error_code=int(error)) for each in partitions]


def _merged(rejected: list[TopicResult], committed: Sequence[TopicResult]) -> list[TopicResult]:
    """Merge both into one response per topic."""
    results = {(result.topic_id, result.name): result for result in rejected}
    for result in committed:
        known = results.setdefault((result.topic_id, result.name), result)
        if known is not result:
            known.partitions = [*known.partitions, *result.partitions]
    return list(results.values())


def error_response(request: OffsetCommitRequest, error: KafkaError, version: int) -> OffsetCommitResponse:  # noqa: ARG001
    """Return the same error for every partition."""
    topics = [
        TopicResult(topic_id=topic.topic_id, name=topic.name, partitions=_error_result(topic.partitions, error.code))
        for topic in request.topics
    ]
    return OffsetCommitResponse(topics=topics)
