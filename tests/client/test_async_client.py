"""The asynchronous client against scripted brokers on a simulated network: routing, refreshing, trying again."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from moldau.client.asynchronous import AsyncClient
from moldau.client.blocking import BlockingClient
from moldau.client.errors import ConnectionLost, NoAnswer, Unreachable
from moldau.client.settings import ClientSettings
from moldau.client.words import EARLIEST, NewTopic, Resource, ResourceKind
from moldau.model.errors import (
    BrokerNotAvailable,
    ErrorCode,
    InvalidConfig,
    KafkaError,
    MessageTooLarge,
    NotEnoughReplicas,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from moldau.model.ids import Address, TopicPartition
from moldau.model.ports import Connection
from moldau.records.builder import build_batch
from moldau.records.record import iterate_batches, iterate_records
from moldau.testing.clock import SimulatedClock
from moldau.testing.loop import SimulatedLoop
from moldau.testing.network import SimulatedNetwork
from moldau.wire import codec, framing, messages

TOPIC_ID = bytes(range(16))
Answer = Callable[[Any], Any]
APIS = (0, 1, 2, 3, 18, 19, 20, 22, 32, 44, 60)


class Script:
    """What the brokers of a scripted cluster answer, and what they were asked."""

    def __init__(self, brokers: int = 2) -> None:
        self.brokers = brokers
        self.leader = 1
        self.leader_epoch = 5
        self.topics = {"t": TOPIC_ID}
        self.answers: dict[tuple[int, int], Answer] = {}
        self.asked: Counter[tuple[int, str]] = Counter()
        self.versions: dict[int, tuple[int, int]] = {}
        self.last: Any = None

    def on(self, node: int, api: str, answer: Answer) -> None:
        (key,) = (each for each in APIS if codec.api_name(each) == api)
        self.answers[node, key] = answer

    def answer(self, node: int, request: Any) -> Any:
        self.asked[node, codec.api_name(request.API_KEY)] += 1
        self.last = request
        scripted = self.answers.get((node, request.API_KEY))
        if scripted is not None:
            return scripted(request)
        return self.metadata(request) if request.API_KEY == 3 else self.api_versions()

    def api_versions(self) -> Any:
        response = messages.ApiVersionsResponse
        ranges = {key: self.versions.get(key) or codec.versions(key) or (0, 0) for key in APIS}
        return response(
            api_keys=[
                response.ApiVersion(api_key=key, min_version=low, max_version=high)
                for key, (low, high) in ranges.items()
            ]
        )

    def metadata(self, request: Any) -> Any:
        response = messages.MetadataResponse
        wanted = list(self.topics) if request.topics is None else [each.name for each in request.topics]
        return response(
            cluster_id="scripted",
            controller_id=2,
            brokers=[
                response.MetadataResponseBroker(node_id=node, host=f"b{node}", port=9092)
                for node in range(1, self.brokers + 1)
            ],
            topics=[self._topic(name) for name in wanted],
        )

    def _topic(self, name: str) -> Any:
        response = messages.MetadataResponse
        if name not in self.topics:
            return response.MetadataResponseTopic(name=name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partition = response.MetadataResponsePartition(
            partition_index=0, leader_id=self.leader, leader_epoch=self.leader_epoch, replica_nodes=[1, 2]
        )
        return response.MetadataResponseTopic(name=name, topic_id=self.topics[name], partitions=[partition])


class Peer:
    """The broker's side of one connection. An answer of None is silence; an exception closes the connection."""

    def __init__(self, script: Script, node: int) -> None:
        self.script, self.node = script, node
        self.connection: Connection | None = None

    def connected(self, connection: Connection) -> None:
        self.connection = connection

    def frame_received(self, frame: memoryview) -> None:
        assert self.connection is not None
        header, position = framing.parse_request_header(frame)
        request = codec.decode_request(header.api_key, header.api_version, memoryview(bytes(frame[position:])))
        try:
            response = self.script.answer(self.node, request)
        except ConnectionResetError:
            self.connection.abort()
            return
        if response is not None:
            self.connection.send(
                framing.frame_response(header.api_key, header.api_version, header.correlation_id, response)
            )

    def drained(self) -> None: ...

    def disconnected(self, reason: str) -> None: ...


class World:
    """A loop, a network, the scripted brokers and one client."""

    def __init__(self, script: Script, bootstrap: str = "b1:9092,b2:9092", **settings: Any) -> None:
        self.script = script
        self.loop = SimulatedLoop()
        self.network = SimulatedNetwork(self.loop, 3)
        self.settings = ClientSettings(**settings)
        self.bootstrap = bootstrap

    async def serve(self, node: int) -> None:
        host = self.network.host(f"b{node}")
        await host.listen(Address(f"b{node}", 9092), lambda: Peer(self.script, node), 10_000_000)

    def client(self) -> AsyncClient:
        ports = (self.network.host("c"), SimulatedClock(self.loop.now_ms), random.Random(1))
        return AsyncClient(*ports, self.bootstrap, settings=self.settings)

    def run(self, act: Callable[[AsyncClient], Coroutine[Any, Any, Any]]) -> Any:
        async def main() -> Any:
            for node in range(1, self.script.brokers + 1):
                await self.serve(node)
            async with self.client() as client:
                return await act(client)

        return self.loop.run(main())


def produced(code: int = 0, base_offset: int = 7, message: str | None = None) -> Any:
    response = messages.ProduceResponse
    part = response.PartitionProduceResponse(index=0, error_code=code, base_offset=base_offset, error_message=message)
    return response(responses=[response.TopicProduceResponse(name="t", topic_id=TOPIC_ID, partition_responses=[part])])


def batch(producer_id: int = -1) -> bytearray:
    sequence = 0 if producer_id >= 0 else -1
    return build_batch([(0, b"k", b"v", ())], producer_id=producer_id, producer_epoch=sequence, base_sequence=sequence)


def test_a_batch_goes_to_the_leader_with_the_topic_id() -> None:
    script = Script()
    script.leader = 2
    script.on(2, "Produce", lambda _: produced())
    assert World(script).run(lambda client: client.produce("t", 0, batch())).base_offset == 7
    assert script.last.topic_data[0].topic_id == TOPIC_ID
    assert bytes(script.last.topic_data[0].partition_data[0].records) == bytes(batch())


def test_a_cluster_without_topic_ids_is_served_by_name() -> None:
    script = Script()
    script.versions = {3: (0, 9), 0: (3, 13)}
    script.on(1, "Produce", lambda _: produced())
    World(script).run(lambda client: client.produce("t", 0, batch()))
    assert script.last.topic_data[0].name == "t"


@pytest.mark.parametrize(
    "code",
    [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
)
def test_a_broker_that_no_longer_leads_makes_us_look_again(code: ErrorCode) -> None:
    script = Script()

    def refuse(_: Any) -> Any:
        script.leader, script.leader_epoch = 2, 6
        return produced(code)

    script.on(1, "Produce", refuse)
    script.on(2, "Produce", lambda _: produced(base_offset=9))
    assert World(script).run(lambda client: client.produce("t", 0, batch())).base_offset == 9
    assert script.asked[1, "Produce"] == script.asked[2, "Produce"] == 1


def test_a_passing_error_is_tried_again_until_time_is_up() -> None:
    script = Script()
    script.on(1, "Produce", lambda _: produced(ErrorCode.NOT_ENOUGH_REPLICAS))
    world = World(script, total_timeout_ms=3000)
    with pytest.raises(NotEnoughReplicas):
        world.run(lambda client: client.produce("t", 0, batch()))
    assert 4 <= script.asked[1, "Produce"] <= 8
    assert world.loop.time() <= 1000 + 3.1


def test_a_lasting_error_is_raised_at_once_in_the_brokers_words() -> None:
    script = Script()
    script.on(1, "Produce", lambda _: produced(ErrorCode.MESSAGE_TOO_LARGE, message="at most 10 bytes"))
    with pytest.raises(MessageTooLarge, match="at most 10 bytes"):
        World(script).run(lambda client: client.produce("t", 0, batch()))
    assert script.asked[1, "Produce"] == 1


def lose_first(times: int) -> Answer:
    left = [times]

    def answer(_: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise ConnectionResetError
        return produced()

    return answer


def test_an_idempotent_batch_is_sent_again_when_its_connection_was_lost() -> None:
    script = Script()
    script.on(1, "Produce", lose_first(2))
    assert World(script).run(lambda client: client.produce("t", 0, batch(producer_id=4))).base_offset == 7
    assert script.asked[1, "Produce"] == 3


def test_a_batch_that_may_have_arrived_is_not_sent_twice_without_a_producer_id() -> None:
    script = Script()
    script.on(1, "Produce", lose_first(1))
    with pytest.raises(ConnectionLost, match="lost the connection to b1:9092"):
        World(script).run(lambda client: client.produce("t", 0, batch()))
    assert script.asked[1, "Produce"] == 1


def test_silence_is_an_error_after_the_request_timeout() -> None:
    script = Script()
    script.on(1, "Produce", lambda _: None)
    world = World(script, request_timeout_ms=2000)
    with pytest.raises(NoAnswer, match="b1:9092 did not answer Produce in time"):
        world.run(lambda client: client.produce("t", 0, batch()))
    assert 1002 <= world.loop.time() < 1003


def test_without_acknowledgement_nothing_is_awaited_and_nothing_is_lost_on_close() -> None:
    script = Script()
    script.on(1, "Produce", lambda _: None)

    async def act(client: AsyncClient) -> None:
        assert (await client.produce("t", 0, batch(), acks=0)).base_offset == -1
        await client.close()
        await asyncio.sleep(1)

    World(script).run(act)
    assert script.asked[1, "Produce"] == 1


def test_nobody_at_home_is_said_at_once_with_what_to_try() -> None:
    world = World(Script(brokers=0), bootstrap="localhost:9092")
    with pytest.raises(Unreachable, match="cannot reach localhost:9092: connection refused; is the broker running"):
        world.run(lambda client: client.describe_topics())
    assert world.loop.time() < 1001


def test_the_second_bootstrap_server_is_tried_when_the_first_is_down() -> None:
    script = Script(brokers=1)
    world = World(script, bootstrap="b9:9092,b1:9092")
    assert [each.name for each in world.run(lambda client: client.describe_topics())] == ["t"]


def test_a_broker_that_comes_back_is_found_again() -> None:
    script = Script(brokers=1)
    script.on(1, "Produce", lambda _: produced())
    world = World(script)

    async def act(client: AsyncClient) -> Any:
        await client.produce("t", 0, batch(4))
        world.network.crash("b1")
        waiting = asyncio.get_running_loop().create_task(client.produce("t", 0, batch(4)))
        await asyncio.sleep(3)
        assert not waiting.done()
        await world.serve(1)
        return await waiting

    assert world.run(act).base_offset == 7


def test_an_unknown_topic_is_given_up_soon() -> None:
    script = Script()
    world = World(script)
    with pytest.raises(UnknownTopicOrPartition, match="topic nope does not exist"):
        world.run(lambda client: client.fetch("nope", 0, 0))
    assert world.loop.time() < 1004


def test_a_partition_that_is_not_there_is_told_with_the_count() -> None:
    with pytest.raises(UnknownTopicOrPartition, match="topic t has 1 partitions, there is no 5"):
        World(Script()).run(lambda client: client.fetch("t", 5, 0))


def test_many_askers_make_one_lookup() -> None:
    script = Script()
    script.on(1, "Produce", lambda _: produced())

    async def act(client: AsyncClient) -> None:
        await asyncio.gather(*(client.produce("t", 0, batch()) for _ in range(50)))

    World(script).run(act)
    assert script.asked[1, "Metadata"] + script.asked[2, "Metadata"] == 1
    assert script.asked[1, "Produce"] == 50


def test_an_asker_who_leaves_does_not_take_the_connection_along() -> None:
    script = Script()
    script.on(1, "Produce", lambda _: produced())

    async def act(client: AsyncClient) -> Any:
        loop = asyncio.get_running_loop()
        one, other = (loop.create_task(client.produce("t", 0, batch())) for _ in range(2))
        await asyncio.sleep(0)
        one.cancel()
        return await other

    assert World(script).run(act).base_offset == 7


def test_requests_under_way_fail_when_the_client_is_closed() -> None:
    script = Script()
    script.on(1, "Produce", lambda _: None)

    async def act(client: AsyncClient) -> None:
        waiting = asyncio.get_running_loop().create_task(client.produce("t", 0, batch(producer_id=4)))
        await asyncio.sleep(1)
        await client.close()
        with pytest.raises(ConnectionLost, match="we closed it"):
            await waiting
        with pytest.raises(ConnectionLost, match="this client is closed"):
            await client.describe_topics()

    World(script).run(act)


def test_a_leader_epoch_that_is_older_than_the_known_one_is_not_believed() -> None:
    script = Script()

    async def act(client: AsyncClient) -> int:
        await client.refresh(["t"])
        script.leader, script.leader_epoch = 2, 4
        await client.refresh(["t"])
        return client.metadata.leader("t", 0).leader

    assert World(script).run(act) == 1


def test_a_cluster_that_names_no_brokers_is_not_believed() -> None:
    script = Script()

    async def act(client: AsyncClient) -> int:
        await client.refresh(["t"])
        script.brokers = 0
        await client.refresh(["t"])
        return len(client.metadata.brokers)

    assert World(script).run(act) == 2


def test_a_broker_nobody_knows_is_given_up_soon() -> None:
    world = World(Script())
    with pytest.raises(BrokerNotAvailable, match="the cluster has no broker 9"):
        world.run(lambda client: client.describe_configs(Resource(ResourceKind.BROKER, "9")))
    assert world.loop.time() < 1004


def test_a_host_that_is_silent_is_given_up_after_the_connect_timeout() -> None:
    world = World(Script(brokers=1), bootstrap="b1:9092", connect_timeout_ms=3000)

    async def act(client: AsyncClient) -> None:
        world.network.crash("b1", silently=True)
        await client.describe_topics()

    with pytest.raises(Unreachable, match="cannot reach b1:9092: no connection within 3 s"):
        world.run(act)


def test_topics_are_created_at_the_controller_each_with_its_outcome() -> None:
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


def test_a_former_controller_makes_us_look_for_the_new_one() -> None:
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


def test_settings_of_a_broker_are_asked_of_that_broker() -> None:
    script = Script()
    response = messages.DescribeConfigsResponse
    entry = response.DescribeConfigsResourceResult(name="log.retention.ms", value="5", config_source=4)
    result = response.DescribeConfigsResult(resource_type=4, resource_name="2", configs=[entry])
    script.on(2, "DescribeConfigs", lambda _: response(results=[result]))
    (config,) = World(script).run(lambda client: client.describe_configs(Resource(ResourceKind.BROKER, "2")))
    assert (config.name, config.value, config.source_name) == ("log.retention.ms", "5", "static_broker")


def test_a_refused_setting_is_raised_in_the_brokers_words() -> None:
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


def test_a_fetch_returns_raw_batches() -> None:
    script = Script()
    script.on(1, "Fetch", lambda _: fetch_response(bytes(batch())))
    fetched = World(script).run(lambda client: client.fetch("t", 0, 0))
    assert fetched.high_watermark == 1
    assert [record.value for _, each in iterate_batches(fetched.records) for record in iterate_records(each)] == [b"v"]
    assert script.last.topics[0].partitions[0].current_leader_epoch == 5


def test_several_partitions_of_one_broker_come_in_one_answer() -> None:
    script = Script()
    script.on(1, "Fetch", lambda _: fetch_response(b""))
    where = TopicPartition("t", 0)

    async def act(client: AsyncClient) -> Any:
        await client.topic("t")
        return await client.fetch_from(1, {where: 4})

    assert list(World(script).run(act)) == [where]


def test_offsets_of_partitions_that_fail_carry_their_error() -> None:
    script = Script()
    response = messages.ListOffsetsResponse
    part = response.ListOffsetsPartitionResponse(partition_index=0, offset=3, timestamp=-1)
    topics = [response.ListOffsetsTopicResponse(name="t", partitions=[part])]
    script.on(1, "ListOffsets", lambda _: response(topics=topics))
    wanted = {TopicPartition("t", 0): EARLIEST, TopicPartition("t", 1): EARLIEST}
    there, missing = World(script).run(lambda client: client.list_offsets(wanted)).values()
    assert (there.offset, there.error) == (3, None)
    assert isinstance(missing.error, UnknownTopicOrPartition)


def test_a_code_nobody_knows_is_still_a_kafka_error() -> None:
    script = Script()
    script.on(1, "Produce", lambda _: produced(9999))
    with pytest.raises(KafkaError):
        World(script).run(lambda client: client.produce("t", 0, batch()))


def test_the_blocking_client_runs_on_the_loop_it_is_given() -> None:
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
