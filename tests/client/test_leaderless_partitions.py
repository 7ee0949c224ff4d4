"""A leaderless partition does not delay commands on the others."""

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from scripted_cluster import TOPIC_ID, Script, World

from moldau.cli.group_offsets import progress
from moldau.cli.partition_reader import RETRY_S, PartitionReader
from moldau.client.async_client import AsyncClient
from moldau.client.groups import DescribedGroup, Groups
from moldau.model.ids import TopicPartition
from moldau.records.builder import build_batch
from moldau.testing.clock import SimulatedClock
from moldau.wire import messages

LED, LEADERLESS = TopicPartition("t", 0), TopicPartition("t", 1)


class HalfLedScript(Script):
    """A topic of two partitions, the second of which has no leader at first."""

    def __init__(self) -> None:
        super().__init__()
        self.leaders = [1, -1]
        self.on(1, "Fetch", self._fetch)
        self.on(2, "Fetch", self._fetch)

    def _topic(self, name: str) -> Any:
        response = messages.MetadataResponse
        parts = [
            response.MetadataResponsePartition(partition_index=index, leader_id=leader, leader_epoch=5)
            for index, leader in enumerate(self.leaders)
        ]
        return response.MetadataResponseTopic(name=name, topic_id=TOPIC_ID, partitions=parts)

    def _fetch(self, request: Any) -> Any:
        """Return one more record at each fetch."""
        response = messages.FetchResponse
        parts = []
        for each in request.topics[0].partitions:
            records = build_batch([(0, None, b"v", ())], base_offset=each.fetch_offset)
            parts.append(
                response.PartitionData(
                    partition_index=each.partition, high_watermark=each.fetch_offset + 1, records=bytes(records)
                )
            )
        return response(responses=[response.FetchableTopicResponse(topic="t", topic_id=TOPIC_ID, partitions=parts)])


@pytest.mark.proves("A4", part="produce and consume")
def test_leaderless_partition_does_not_delay_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    script = HalfLedScript()
    world = World(script)

    async def read(client: AsyncClient) -> None:
        reading = PartitionReader(client, SimulatedClock(world.loop.now_ms), {LED: 0, LEADERLESS: 0})
        counts = {LED: 0, LEADERLESS: 0}
        async with asyncio.timeout(60), aclosing(reading.chunks()) as chunks:
            async for place, records in chunks:
                counts[place] += len(records)
                if counts[LED] == 2000:
                    script.leaders[1] = 2
                if counts[LEADERLESS]:
                    return

    began_ms = world.loop.now_ms()
    world.run(read)
    took_s = (world.loop.now_ms() - began_ms) / 1000
    assert script.requested[1, "Fetch"] >= 2000
    requested = script.requested[1, "Metadata"] + script.requested[2, "Metadata"]
    assert requested <= 3 + took_s / RETRY_S, "looked up again at every turn"
    assert capsys.readouterr().err == "partition 1 of topic t has no leader at the moment; retrying\n"


class GroupScript(HalfLedScript):
    """A group has read both partitions up to offset 4, and the first one ends at 10."""

    def __init__(self) -> None:
        super().__init__()
        offsets, ends = messages.OffsetFetchResponse, messages.ListOffsetsResponse
        committed = [
            offsets.OffsetFetchResponsePartition(partition_index=place.partition, committed_offset=4)
            for place in (LED, LEADERLESS)
        ]
        end = ends.ListOffsetsPartitionResponse(partition_index=0, offset=10, timestamp=-1)
        found = messages.FindCoordinatorResponse(node_id=1, host="b1", port=9092)
        for node in (1, 2):
            self.on(node, "FindCoordinator", lambda _: found)
        topic = offsets.OffsetFetchResponseTopic(name="t", partitions=committed)
        self.on(1, "OffsetFetch", lambda _: offsets(topics=[topic]))
        self.on(1, "ListOffsets", lambda _: ends(topics=[ends.ListOffsetsTopicResponse(name="t", partitions=[end])]))

    def describe_within(self, timeout_ms: int) -> list[tuple[Any, ...]]:
        world = World(self)
        began_ms = world.loop.now_ms()
        group = DescribedGroup("g", "Empty", "classic", "", 1)
        rows = world.run(lambda client: progress(Groups(client), group))
        assert world.loop.now_ms() - began_ms < timeout_ms
        return [(row.partition, row.committed, row.end, row.lag) for row in rows]


@pytest.mark.proves("A4", part="groups")
def test_group_is_described_when_a_partition_has_no_leader() -> None:
    assert GroupScript().describe_within(1_000) == [(0, 4, 10, 6), (1, 4, None, None)]


@pytest.mark.proves("A4", part="groups")
@pytest.mark.parametrize("is_frozen", [True, False], ids=["frozen", "gone"])
def test_group_is_described_when_a_leader_does_not_respond(is_frozen: bool, capsys: pytest.CaptureFixture[str]) -> None:
    def gone(_: Any) -> Any:
        raise ConnectionResetError

    script = GroupScript()
    script.leaders = [1, 2]
    script.on(2, "ListOffsets", (lambda _: None) if is_frozen else gone)
    assert script.describe_within(15_000) == [(0, 4, 10, 6), (1, 4, None, None)]
    assert capsys.readouterr().err == "no response from the leaders of t-1: their offsets are not shown\n"
