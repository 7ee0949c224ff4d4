"""DescribeShareGroupOffsets: start offsets and lags of share groups."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from moldau.broker.access import Operation
from moldau.broker.groups.remote_end_offsets import fetch_end_offsets
from moldau.broker.handlers.contexts import ShareContext
from moldau.broker.runtime.time_slice import TimeSlice
from moldau.broker.shares.persister import SharePartitionKey
from moldau.machines.metadata.image import TopicImage
from moldau.machines.share_state.machine import Summary
from moldau.model.errors import KafkaError, TopicAuthorizationFailed, UnknownTopicOrPartition
from moldau.model.ids import NO_OFFSET, TopicPartition
from moldau.wire.messages import DescribeShareGroupOffsetsRequest, DescribeShareGroupOffsetsResponse

UNKNOWN_LAG: Final = -1

Requested = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup
GroupResult = DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup
TopicResult = DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseTopic
Result = DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponsePartition


async def handle(request: DescribeShareGroupOffsetsRequest, context: ShareContext) -> DescribeShareGroupOffsetsResponse:
    """Describe or reject each group on its own."""
    turn = TimeSlice(context)
    groups = []
    for requested in request.groups:
        groups.append(await _describe(requested, context))
        if turn.is_over():
            await turn.next()
    return DescribeShareGroupOffsetsResponse(groups=groups)


async def _describe(requested: Requested, context: ShareContext) -> GroupResult:
    group_id = requested.group_id
    try:
        context.authorize_group(Operation.DESCRIBE, group_id)
        shard = context.broker.groups.shard_of(group_id)
        states = await shard.read(lambda machine: machine.share_states(group_id))
    except KafkaError as error:
        return _group_error(group_id, error)
    image = context.broker.image
    if requested.topics is None:  # all that have a state and may be described
        names = {image.topic_name(topic_id): sorted(indexes) for topic_id, indexes in states.items()}
        wanted = {
            name: indexes
            for name, indexes in names.items()
            if name is not None and context.may(Operation.DESCRIBE, name, is_audited=False)
        }
    else:
        wanted = {each.topic_name: list(each.partitions) for each in requested.topics}
    topics = [await _topic(group_id, name, wanted[name], context) for name in sorted(wanted)]
    return GroupResult(group_id=group_id, topics=topics)


async def _topic(group_id: str, name: str, indexes: Sequence[int], context: ShareContext) -> TopicResult:
    if not context.may(Operation.DESCRIBE, name):
        error: KafkaError = TopicAuthorizationFailed(f"Not authorized to describe topic {name}.")
        return TopicResult(topic_name=name, partitions=[_error_result(index, error) for index in indexes])
    topic = context.broker.image.topics.get(name)
    if topic is None:
        error = UnknownTopicOrPartition(f"Topic {name} does not exist.")
        return TopicResult(topic_name=name, partitions=[_error_result(index, error) for index in indexes])
    ends = await _end_offsets(topic, indexes, context)
    partitions = await asyncio.gather(*(_partition(group_id, topic, index, ends, context) for index in indexes))
    return TopicResult(topic_name=name, topic_id=topic.topic_id, partitions=partitions)


async def _partition(
    group_id: str, topic: TopicImage, index: int, ends: Mapping[int, int], context: ShareContext
) -> Result:
    if not 0 <= index < len(topic.partitions):
        return _error_result(index, UnknownTopicOrPartition(f"Topic {topic.name} has no partition {index}."))
    try:
        key = SharePartitionKey(group_id, topic.topic_id, index)
        summary = await context.broker.share_persister.summary(key)
    except KafkaError as error:
        return _error_result(index, error)
    return Result(
        partition_index=index,
        start_offset=summary.start_offset,
        leader_epoch=max(summary.leader_epoch, 0),
        lag=_lag(summary, ends.get(index)),
    )


def _lag(summary: Summary, end_offset: int | None) -> int:
    """The records that are not delivered yet; unknown while the group has no start offset (KIP-1226)."""
    if end_offset is None or summary.start_offset == NO_OFFSET or summary.complete_count < 0:
        return UNKNOWN_LAG
    return max(0, end_offset - summary.start_offset - summary.complete_count)


async def _end_offsets(topic: TopicImage, indexes: Sequence[int], context: ShareContext) -> dict[int, int]:
    """High watermarks, from this broker's replicas or else from the leaders."""
    broker = context.broker
    local = {index: broker.partitions.find(topic.name, index) for index in indexes}
    ends = {index: each.high_watermark for index, each in local.items() if each is not None}
    missing = [TopicPartition(topic.name, index) for index, each in local.items() if each is None]
    if missing:
        ends |= {each.partition: end for each, end in (await fetch_end_offsets(broker, missing)).items()}
    return ends


def _error_result(index: int, error: KafkaError) -> Result:
    return Result(
        partition_index=index,
        start_offset=NO_OFFSET,
        lag=UNKNOWN_LAG,
        error_code=int(error.code),
        error_message=error.message,
    )


def _group_error(group_id: str, error: KafkaError) -> GroupResult:
    return GroupResult(group_id=group_id, error_code=int(error.code), error_message=error.message)


def error_response(
    request: DescribeShareGroupOffsetsRequest,
    error: KafkaError,
    version: int,  # noqa: ARG001
) -> DescribeShareGroupOffsetsResponse:
    """Return the same error for every group."""
    return DescribeShareGroupOffsetsResponse(groups=[_group_error(each.group_id, error) for each in request.groups])
