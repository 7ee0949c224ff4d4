"""OffsetFetch: the committed offsets of groups, for the named partitions or for all of them.

A stale coordinator would return old offsets, and the consumer would process records twice. So offsets are returned only
after a check that no other broker coordinated the group when the request came in (partitions/leadership_check.py).
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from moldau.broker.access import Operation
from moldau.broker.groups.shard import Shard
from moldau.broker.handlers.contexts import GroupContext
from moldau.broker.runtime.time_slice import TimeSlice
from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.ids import NO_EPOCH, NO_OFFSET
from moldau.model.protocol import OFFSETS_TOPIC_IDS_FROM
from moldau.wire.messages import OffsetFetchRequest, OffsetFetchResponse

GROUP_ERROR_FROM: Final = 2
MANY_GROUPS_FROM: Final = 8

RequestedGroup = OffsetFetchRequest.OffsetFetchRequestGroup
RequestedTopic = OffsetFetchRequest.OffsetFetchRequestTopics
GroupResult = OffsetFetchResponse.OffsetFetchResponseGroup
TopicResult = OffsetFetchResponse.OffsetFetchResponseTopics
Result = OffsetFetchResponse.OffsetFetchResponsePartitions
LeadershipCheck = dict[Shard, asyncio.Future[bool]]


async def handle(request: OffsetFetchRequest, context: GroupContext) -> OffsetFetchResponse:
    """Handle each group on its own; before version 8 there is just one, in a form of its own."""
    if context.api_version < MANY_GROUPS_FROM:
        requested = _in_new_form(request)
        return _in_old_form(
            await _fetch(requested, request.require_stable, _start_checks([requested], context), context)
        )
    turn = TimeSlice(context)
    checks = _start_checks(request.groups, context)
    groups = []
    for requested in request.groups:
        groups.append(await _fetch(requested, request.require_stable, checks, context))
        if turn.is_over():
            await turn.next()
    return OffsetFetchResponse(groups=groups)


def _start_checks(groups: Iterable[RequestedGroup], context: GroupContext) -> LeadershipCheck:
    """Start the leadership checks of all shards of the request at once."""
    checks: LeadershipCheck = {}
    for requested in groups:
        with suppress(KafkaError):
            context.authorize_group(Operation.DESCRIBE, requested.group_id)
            shard = context.broker.groups.shard_of(requested.group_id)
            if shard not in checks:
                checks[shard] = shard.check_leadership()
    return checks


async def _fetch(
    requested: RequestedGroup, require_stable: bool, checks: LeadershipCheck, context: GroupContext
) -> GroupResult:
    try:
        context.authorize_group(Operation.DESCRIBE, requested.group_id)
        shard = context.broker.groups.shard_of(requested.group_id)
        rejected = _remove_rejected(requested, context) if requested.topics is not None else []
        if shard.is_ready and not await (checks.get(shard) or shard.check_leadership()):
            raise shard.unconfirmed_error()
        result = await shard.read(lambda machine: machine.fetch_offsets(requested, require_stable=require_stable))
    except KafkaError as error:
        return _group_error(requested, error.code, context.api_version)
    if requested.topics is None:
        result.topics = _visible(result.topics, context)
    elif result.error_code == ErrorCode.NONE:
        result.topics = [*result.topics, *rejected]
    else:
        return _group_error(requested, ErrorCode(result.error_code), context.api_version)
    return result


def _remove_rejected(requested: RequestedGroup, context: GroupContext) -> list[TopicResult]:
    """Remove rejected topics from the request and return their errors; fill in the names of the others."""
    accepted: list[RequestedTopic] = []
    rejected: list[TopicResult] = []
    for topic in requested.topics or ():
        error = _find(topic, context)
        if error is ErrorCode.NONE:
            accepted.append(topic)
        else:
            rejected.append(_topic_error(topic, error))
    requested.topics = accepted
    return rejected


def _find(topic: RequestedTopic, context: GroupContext) -> ErrorCode:
    if context.api_version >= OFFSETS_TOPIC_IDS_FROM:
        name = context.broker.image.topic_name(topic.topic_id)
        if name is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        topic.name = name
    return ErrorCode.NONE if context.may(Operation.DESCRIBE, topic.name) else ErrorCode.TOPIC_AUTHORIZATION_FAILED


def _visible(topics: Sequence[TopicResult], context: GroupContext) -> list[TopicResult]:
    """Of all committed offsets, those of topics the client may describe; from version 10 on, of existing topics."""
    visible = [topic for topic in topics if context.may(Operation.DESCRIBE, topic.name, is_audited=False)]
    if context.api_version < OFFSETS_TOPIC_IDS_FROM:
        return visible
    image = context.broker.groups.newest_image() or context.broker.image  # the image that the machine has used
    for topic in visible:
        topic.topic_id = image.topic_id(topic.name)
    return [topic for topic in visible if topic.name in image.topics]


def _group_error(requested: RequestedGroup, error: ErrorCode, version: int) -> GroupResult:
    """The oldest versions have no error code for the group, so each partition carries it."""
    topics = [] if version >= GROUP_ERROR_FROM else [_topic_error(topic, error) for topic in requested.topics or ()]
    return GroupResult(group_id=requested.group_id, error_code=int(error), topics=topics)


def _topic_error(topic: RequestedTopic, error: ErrorCode) -> TopicResult:
    partitions = [
        Result(
            partition_index=index,
            committed_offset=NO_OFFSET,
            committed_leader_epoch=NO_EPOCH,
            metadata="",
            error_code=int(error),
        )
        for index in topic.partition_indexes
    ]
    return TopicResult(topic_id=topic.topic_id, name=topic.name, partitions=partitions)


# The form of versions 0 to 7


def _in_new_form(request: OffsetFetchRequest) -> RequestedGroup:
    topics = request.topics
    return RequestedGroup(
        group_id=request.group_id,
        topics=None
        if topics is None
        else [RequestedTopic(name=topic.name, partition_indexes=topic.partition_indexes) for topic in topics],
    )


def _in_old_form(result: GroupResult) -> OffsetFetchResponse:
    topics = [
        OffsetFetchResponse.OffsetFetchResponseTopic(
            name=topic.name, partitions=[_old_partition(each) for each in topic.partitions]
        )
        for topic in result.topics
    ]
    return OffsetFetchResponse(error_code=result.error_code, topics=topics)


def _old_partition(result: Result) -> Any:
    return OffsetFetchResponse.OffsetFetchResponsePartition(
        partition_index=result.partition_index,
        committed_offset=result.committed_offset,
        committed_leader_epoch=result.committed_leader_epoch,
        metadata=result.metadata,
        error_code=result.error_code,
    )


def error_response(request: OffsetFetchRequest, error: KafkaError, version: int) -> OffsetFetchResponse:
    """Return the same error for every group."""
    if version < MANY_GROUPS_FROM:
        return _in_old_form(_group_error(_in_new_form(request), error.code, version))
    return OffsetFetchResponse(groups=[_group_error(requested, error.code, version) for requested in request.groups])
