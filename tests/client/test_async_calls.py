"""Typed calls of the client: their requests, and the results of responses."""

import random
from collections.abc import Awaitable
from typing import Any

import pytest
from scripted_cluster import TOPIC_ID, Script, World, batch, produced

from moldau.client.async_client import AsyncClient
from moldau.client.blocking_client import BlockingClient
from moldau.client.errors import ResponseTimeout
from moldau.client.types import EARLIEST, NewTopic, Resource, ResourceKind
from moldau.model.errors import ErrorCode, InvalidConfig, KafkaError, TopicAlreadyExists, UnknownTopicOrPartition
from moldau.model.ids import TopicPartition
from moldau.records.record import iterate_batches, iterate_records
from moldau.testing.clock import SimulatedClock
from moldau.wire import messages


def test_create_topics_goes_to_the_controller_and_returns_each_result() -> None:
    script = Script()
    response = messages.CreateTopicsResponse
    results = [
        response.CreatableTopicResult(name="a", topic_id=TOPIC_ID, num_partitions=3, replication_factor=1),
        response.CreatableTopicResult(name="b", error_code=36, error_message="Topic 'b' already exists."),
    ]
    script.on(2, "CreateTopics", lambda _: response(topics=results))
    new = [NewTopic("a", partitions=3, configs={"retention.ms": "1"}), NewTopic("b", assignments=((1, 2),))]
    a, b = World(script).run(lambda client: client.create_topics(new))
    assert (a.error, a.partitions) == (None, 3)
    assert isinstance(b.error, TopicAlreadyExists)
    assert str(b.error) == "Topic 'b' already exists."
    first, second = script.last.topics
    assert (first.num_partitions, first.configs[0].name) == (3, "retention.ms")
    assert (second.num_partitions, tuple(second.assignments[0].broker_ids)) == (-1, (1, 2))


def test_not_controller_error_refreshes_the_controller() -> None:
    script = Script()
    response = messages.DeleteTopicsResponse
    codes = [ErrorCode.NOT_CONTROLLER, ErrorCode.NONE]
    script.on(
        2,
        "DeleteTopics",
        lambda _: response(responses=[response.DeletableTopicResult(name="t", error_code=codes.pop(0))]),
    )
    (outcome,) = World(script).run(lambda client: client.delete_topics(["t"]))
    assert outcome.error is None
    assert codes == []


def test_broker_configs_are_described_by_that_broker() -> None:
    script = Script()
    response = messages.DescribeConfigsResponse
    entry = response.DescribeConfigsResourceResult(name="log.retention.ms", value="5", config_source=4)
    result = response.DescribeConfigsResult(resource_type=4, resource_name="2", configs=[entry])
    script.on(2, "DescribeConfigs", lambda _: response(results=[result]))
    (config,) = World(script).run(lambda client: client.describe_configs(Resource(ResourceKind.BROKER, "2")))
    assert (config.name, config.value, config.source_name) == ("log.retention.ms", "5", "static_broker")


def test_rejected_config_raises_the_brokers_message() -> None:
    script = Script()
    response = messages.IncrementalAlterConfigsResponse
    result = response.AlterConfigsResourceResponse(error_code=40, error_message="Unknown topic config name: x")
    for node in (1, 2):
        script.on(node, "IncrementalAlterConfigs", lambda _: response(responses=[result]))
    with pytest.raises(InvalidConfig, match="Unknown topic config name: x"):
        World(script).run(lambda client: client.alter_configs(Resource(ResourceKind.TOPIC, "t"), {"x": "1"}))


def fetch_response(records: bytes, topic_id: bytes = TOPIC_ID) -> Any:
    response = messages.FetchResponse
    part = response.PartitionData(partition_index=0, high_watermark=1, records=records, aborted_transactions=None)
    return response(responses=[response.FetchableTopicResponse(topic="t", topic_id=topic_id, partitions=[part])])


def test_fetch_returns_raw_batches() -> None:
    script = Script()
    script.on(1, "Fetch", lambda _: fetch_response(bytes(batch())))
    fetched = World(script).run(lambda client: client.fetch("t", 0, 0))
    assert fetched.high_watermark == 1
    assert [record.value for _, each in iterate_batches(fetched.records) for record in iterate_records(each)] == [b"v"]
    assert script.last.topics[0].partitions[0].current_leader_epoch == 5


@pytest.mark.proves("D1")
def test_throttled_fetch_waits_and_retries() -> None:
    script = Script()
    world = World(script, retry_backoff_ms=100)
    responses = [messages.FetchResponse(throttle_time_ms=700), messages.FetchResponse(), fetch_response(bytes(batch()))]
    requested_ms: list[float] = []

    def response(_: Any) -> Any:
        requested_ms.append(world.loop.now_ms())
        return responses.pop(0)

    script.on(1, "Fetch", response)
    assert world.run(lambda client: client.fetch("t", 0, 0)).high_watermark == 1
    first, second, third = requested_ms
    assert 700 <= second - first < 750
    assert 100 <= third - second < 150  # without a throttle time, the client's own backoff


def test_fetch_times_out_when_always_throttled() -> None:
    script = Script()
    script.on(1, "Fetch", lambda _: messages.FetchResponse(throttle_time_ms=900))
    with pytest.raises(ResponseTimeout, match="throttled for 900 ms more"):
        World(script, total_timeout_ms=2000).run(lambda client: client.fetch("t", 0, 0))
    assert script.requested[1, "Fetch"] == 3


def test_fetch_from_returns_several_partitions_in_one_response() -> None:
    script = Script()
    script.on(1, "Fetch", lambda _: fetch_response(b""))
    where = TopicPartition("t", 0)

    async def act(client: AsyncClient) -> Any:
        await client.topic("t")
        return await client.fetch_from(1, {where: 4})

    assert list(World(script).run(act)) == [where]


def test_list_offsets_returns_errors_by_partition() -> None:
    script = Script()
    response = messages.ListOffsetsResponse
    part = response.ListOffsetsPartitionResponse(partition_index=0, offset=3, timestamp=-1)
    topics = [response.ListOffsetsTopicResponse(name="t", partitions=[part])]
    script.on(1, "ListOffsets", lambda _: response(topics=topics))
    wanted = {TopicPartition("t", 0): EARLIEST, TopicPartition("t", 1): EARLIEST}
    there, missing = World(script).run(lambda client: client.list_offsets(wanted)).values()
    assert (there.offset, there.error) == (3, None)
    assert isinstance(missing.error, UnknownTopicOrPartition)


def test_unknown_error_code_is_a_kafka_error() -> None:
    script = Script()
    script.on(1, "Produce", lambda _: produced(9999))
    with pytest.raises(KafkaError):
        World(script).run(lambda client: client.produce("t", 0, batch()))


def test_blocking_client_runs_on_the_given_loop() -> None:
    script = Script()
    script.on(1, "Produce", lambda _: produced())
    world = World(script)
    serving: Awaitable[None] = world.serve(1)
    world.loop.run_until_complete(serving)
    ports = (world.network.host("c"), SimulatedClock(world.loop.now_ms), random.Random(1))
    with BlockingClient(*ports, "b1:9092", loop=world.loop) as client:
        assert client.describe_topic("t").partitions[0].leader == 1
        assert client.produce("t", 0, [(0, None, b"v", ())]).base_offset == 7
        assert client.send(messages.MetadataRequest(topics=[]), node=1).cluster_id == "scripted"
    world.loop.close()
