"""OffsetFetch: how far groups have read, of the partitions that are named or of all that they ever committed.

Whoever begins where an old coordinator says does again what was done since. So offsets are told only when it is sure
that nobody else has coordinated the group by the time of the question (broker/partitions/leadership_check.py).
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from moldau.broker.access import Operation
from moldau.broker.groups.shard import Shard
from moldau.broker.requests.context import RequestContext
from moldau.broker.runtime.time_slice import TimeSlice
from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.ids import NO_EPOCH, NO_OFFSET
from moldau.wire.messages import OffsetFetchRequest, OffsetFetchResponse

MANY_GROUPS_FROM: Final = 8
TOPIC_IDS_FROM: Final = 10

AskedGroup = OffsetFetchRequest.OffsetFetchRequestGroup
AskedTopic = OffsetFetchRequest.OffsetFetchRequestTopics
GroupAnswer = OffsetFetchResponse.OffsetFetchResponseGroup
TopicAnswer = OffsetFetchResponse.OffsetFetchResponseTopics
Answer = OffsetFetchResponse.OffsetFetchResponsePartitions
LeadershipCheck = dict[Shard, asyncio.Future[bool]]


async def handle(request: OffsetFetchRequest, context: RequestContext) -> OffsetFetchResponse:
    """Each group is answered for itself; before version 8 there is just one, in a form of its own."""
    if context.api_version < MANY_GROUPS_FROM:
        asked = _in_new_form(request)
        return _in_old_form(await _fetch(asked, request.require_stable, _question([asked], context), context))
    turn = TimeSlice(context)
    questions = _question(request.groups, context)
    groups = []
    for asked in request.groups:
        groups.append(await _fetch(asked, request.require_stable, questions, context))
        if turn.is_over():
            await turn.next()
    return OffsetFetchResponse(groups=groups)


def _question(groups: Iterable[AskedGroup], context: RequestContext) -> LeadershipCheck:
    """All shards that are concerned find out at the same time whether they still coordinate."""
    questions: LeadershipCheck = {}
    for asked in groups:
        with suppress(KafkaError):
            context.authorize_group(Operation.DESCRIBE, asked.group_id)
            shard = context.broker.groups.shard_of(asked.group_id)
            if shard not in questions:
                questions[shard] = shard.question()
    return questions


async def _fetch(
    asked: AskedGroup, require_stable: bool, questions: LeadershipCheck, context: RequestContext
) -> GroupAnswer:
    try:
        context.authorize_group(Operation.DESCRIBE, asked.group_id)
        shard = context.broker.groups.shard_of(asked.group_id)
        refused = _take_out_refused(asked, context) if asked.topics is not None else []
        if shard.is_ready and not await (questions.get(shard) or shard.question()):
            raise shard.unsure()
        answer = await shard.read(lambda machine: machine.fetch_offsets(asked, require_stable=require_stable))
    except KafkaError as error:
        return _refused_group(asked, error.code)
    if asked.topics is None:
        answer.topics = _visible(answer.topics, context)
    elif answer.error_code == ErrorCode.NONE:
        answer.topics = [*answer.topics, *refused]
    else:
        return _refused_group(asked, ErrorCode(answer.error_code))
    return answer


def _take_out_refused(asked: AskedGroup, context: RequestContext) -> list[TopicAnswer]:
    """Leave in the request what may be told, with its topic's name; the answers about the rest."""
    told: list[AskedTopic] = []
    refused: list[TopicAnswer] = []
    for topic in asked.topics or ():
        error = _find(topic, context)
        if error is ErrorCode.NONE:
            told.append(topic)
        else:
            refused.append(_refused_topic(topic, error))
    asked.topics = told
    return refused


def _find(topic: AskedTopic, context: RequestContext) -> ErrorCode:
    if context.api_version >= TOPIC_IDS_FROM:
        name = context.broker.image.topic_name(topic.topic_id)
        if name is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        topic.name = name
    return ErrorCode.NONE if context.may(Operation.DESCRIBE, topic.name) else ErrorCode.TOPIC_AUTHORIZATION_FAILED


def _visible(topics: Sequence[TopicAnswer], context: RequestContext) -> list[TopicAnswer]:
    """Of everything a group has committed, what the asker may see; from version 10 on by id, so what still exists."""
    visible = [topic for topic in topics if context.may(Operation.DESCRIBE, topic.name)]
    if context.api_version < TOPIC_IDS_FROM:
        return visible
    image = context.broker.groups.newest_image() or context.broker.image  # which the machine has compared them with
    for topic in visible:
        topic.topic_id = image.topic_id(topic.name)
    return [topic for topic in visible if topic.name in image.topics]


def _refused_group(asked: AskedGroup, error: ErrorCode) -> GroupAnswer:
    """Versions from before 8 also put the error at each partition."""
    topics = [_refused_topic(topic, error) for topic in asked.topics or ()]
    return GroupAnswer(group_id=asked.group_id, error_code=int(error), topics=topics)


def _refused_topic(topic: AskedTopic, error: ErrorCode) -> TopicAnswer:
    partitions = [
        Answer(
            partition_index=index,
            committed_offset=NO_OFFSET,
            committed_leader_epoch=NO_EPOCH,
            metadata="",
            error_code=int(error),
        )
        for index in topic.partition_indexes
    ]
    return TopicAnswer(topic_id=topic.topic_id, name=topic.name, partitions=partitions)


# The form of versions 1 to 7


def _in_new_form(request: OffsetFetchRequest) -> AskedGroup:
    topics = request.topics
    return AskedGroup(
        group_id=request.group_id,
        topics=None
        if topics is None
        else [AskedTopic(name=topic.name, partition_indexes=topic.partition_indexes) for topic in topics],
    )


def _in_old_form(answer: GroupAnswer) -> OffsetFetchResponse:
    topics = [
        OffsetFetchResponse.OffsetFetchResponseTopic(
            name=topic.name, partitions=[_old_partition(each) for each in topic.partitions]
        )
        for topic in answer.topics
    ]
    return OffsetFetchResponse(error_code=answer.error_code, topics=topics)


def _old_partition(answer: Answer) -> Any:
    return OffsetFetchResponse.OffsetFetchResponsePartition(
        partition_index=answer.partition_index,
        committed_offset=answer.committed_offset,
        committed_leader_epoch=answer.committed_leader_epoch,
        metadata=answer.metadata,
        error_code=answer.error_code,
    )


def refuse(request: OffsetFetchRequest, error: KafkaError, version: int) -> OffsetFetchResponse:
    """The same error for every group."""
    if version < MANY_GROUPS_FROM:
        return _in_old_form(_refused_group(_in_new_form(request), error.code))
    return OffsetFetchResponse(groups=[_refused_group(asked, error.code) for asked in request.groups])
