"""Administration of share groups: their members, start offsets and lags."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from moldau.client.async_client import AsyncClient
from moldau.client.coordinators import GROUP_KEY, Codes, Coordinator, single_error_code
from moldau.client.errors import check, error_of
from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.ids import TopicPartition
from moldau.wire import messages
from moldau.wire.messages import Request, Response

UNINITIALIZED = -1


class StartOffset(NamedTuple):
    """Where a share group starts in a partition; None before the first delivery."""

    offset: int | None
    lag: int | None


class ShareGroups:
    """Start offsets of share groups."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def start_offsets(self, group: str) -> dict[TopicPartition, StartOffset]:
        """Return the start offsets and lags of all partitions that the group reads."""
        whole = messages.DescribeShareGroupOffsetsRequest
        request = whole(groups=[whole.DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None)])
        response = await self._send(group, request, _group_codes)
        (found,) = response.groups
        offsets: dict[TopicPartition, StartOffset] = {}
        for topic in found.topics:
            for each in topic.partitions:
                check(each.error_code, each.error_message)
                offset = None if each.start_offset == UNINITIALIZED else each.start_offset
                lag = None if each.lag < 0 else each.lag
                offsets[TopicPartition(topic.topic_name, each.partition_index)] = StartOffset(offset, lag)
        return offsets

    async def alter(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set start offsets; the coordinator rejects it while the group has members."""
        whole = messages.AlterShareGroupOffsetsRequest
        topics: dict[str, list[messages.AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestPartition]] = {}
        for place in sorted(offsets):
            part = whole.AlterShareGroupOffsetsRequestPartition(
                partition_index=place.partition, start_offset=offsets[place]
            )
            topics.setdefault(place.topic, []).append(part)
        request = whole(
            group_id=group,
            topics=[
                whole.AlterShareGroupOffsetsRequestTopic(topic_name=name, partitions=parts)
                for name, parts in topics.items()
            ],
        )
        response = await self._send(group, request, single_error_code)
        for topic in response.responses:
            for each in topic.partitions:
                check(each.error_code, each.error_message)

    async def delete_offsets(self, group: str, topics: Iterable[str]) -> dict[str, KafkaError]:
        """Delete the start offsets of whole topics; return the errors by topic."""
        whole = messages.DeleteShareGroupOffsetsRequest
        request = whole(
            group_id=group,
            topics=[whole.DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in sorted(topics)],
        )
        response = await self._send(group, request, single_error_code)
        return {
            each.topic_name: error_of(each.error_code, each.error_message)
            for each in response.responses
            if each.error_code != ErrorCode.NONE
        }

    async def _send(self, group: str, request: Request[Response], codes: Codes[Response]) -> Response:
        return await Coordinator(self._client, group, GROUP_KEY).send(request, codes)


def _group_codes(response: "messages.DescribeShareGroupOffsetsResponse") -> list[int]:
    return [each.error_code for each in response.groups]
