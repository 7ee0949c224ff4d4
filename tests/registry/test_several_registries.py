"""Several registries on one cluster: ids, reads after writes, a killed registry, and a topic that others wrote."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from typing import Any, cast

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from served_registry import RegistryClient, record, served_registry
from test_registry_state import CONFLUENT

from moldau.cli.cluster_client import connect_async
from moldau.client.async_client import AsyncClient
from moldau.client.types import FetchResult
from moldau.registry.model import Schema
from moldau.registry.registry import Registry
from moldau.registry.schema_log import SchemaLog
from moldau.schemas.types import AVRO
from moldau.testing import Broker

SCHEMAS = 40


@pytest.mark.proves("A6", part="ids given once")
def test_no_id_is_given_twice_while_registries_compete_and_one_is_killed() -> None:
    with Broker() as broker, ExitStack() as stack:
        registries = [stack.enter_context(served_registry(broker.bootstrap_servers)) for _ in range(2)]
        clients = [client for client, _ in registries]

        def register(number: int) -> tuple[int, int | None]:
            """Return the id, or None where the registry is gone; half of them go to each."""
            if number == SCHEMAS // 2:
                registries[1][1].kill()
            try:
                response = clients[number % 2].register(f"s{number}", record(f"R{number}", a="int"))
            except OSError:
                return number, None
            return number, response.body["id"] if response.status == 200 else None

        with ThreadPoolExecutor(4) as pool:
            given = {number: found for number, found in pool.map(register, range(SCHEMAS)) if found is not None}
        assert len(given) >= SCHEMAS // 2
        assert len(set(given.values())) == len(given)
        for number, schema_id in given.items():  # as the survivor has them
            assert clients[0].get(f"/subjects/s{number}/versions/1").body["id"] == schema_id


def test_schema_is_readable_at_another_registry_once_it_is_registered(broker: Broker, registry: RegistryClient) -> None:
    with served_registry(broker.bootstrap_servers) as (other, _):
        for number in range(10):
            schema = record(f"Both{number}", a="int")
            schema_id = other.register(f"both-{number}", schema).body["id"]
            assert registry.get(f"/schemas/ids/{schema_id}").status == 200
            assert registry.register(f"both-{number}", schema).body == {"id": schema_id}
            assert registry.delete(f"/subjects/both-{number}").body == [1]
            assert other.delete(f"/subjects/both-{number}?permanent=true").body == [1]


class HeldReader:
    """A reader whose fetches wait while it is held, as on a slow connection."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.is_free = asyncio.Event()
        self.is_free.set()

    async def fetch(self, *arguments: Any, **options: Any) -> FetchResult:
        await self.is_free.wait()
        fetched = await self._client.fetch(*arguments, **options)
        await self.is_free.wait()
        return fetched


@pytest.mark.proves("A6", part="ids given once")
async def test_writer_decides_after_it_has_read_what_others_wrote(broker: Broker) -> None:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect_async(broker.bootstrap_servers)) for _ in range(3)]
        held = HeldReader(clients[2])
        logs = [SchemaLog(clients[0], clients[0]), SchemaLog(clients[1], cast(AsyncClient, held))]
        for each in logs:
            each.start()
            stack.push_async_callback(each.stop)
            await each.wait_until_ready()
        held.is_free.clear()
        earlier = await Registry(logs[0]).register("caught-up-1", Schema(AVRO, record("CaughtUp1", a="int")))
        writing = asyncio.create_task(
            Registry(logs[1]).register("caught-up-2", Schema(AVRO, record("CaughtUp2", a="int")))
        )
        await asyncio.wait([writing], timeout=1)
        assert not writing.done()
        held.is_free.set()
        assert (await writing).schema_id > earlier.schema_id


def create_topic(broker: Broker, cleanup_policy: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    topic = NewTopic("_schemas", num_partitions=1, config={"cleanup.policy": cleanup_policy})
    admin.create_topics([topic])["_schemas"].result(30)


@pytest.mark.proves("A6", part="in-place migration")
def test_topic_of_another_registry_is_continued_in_place() -> None:
    with Broker() as broker:
        create_topic(broker, "compact")
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for key, value in [*CONFLUENT, ("not JSON", "x")]:
            producer.produce("_schemas", key=key, value=value)
        assert producer.flush(30) == 0
        with served_registry(broker.bootstrap_servers) as (client, _):
            assert client.get("/subjects").body == ["a"]
            assert client.get("/config").body == {"compatibilityLevel": "FULL"}
            assert client.register("c", '"string"').body == {"id": 1}
            assert client.register("c2", '"long"').body == {"id": 3}
        with served_registry(broker.bootstrap_servers) as (client, process):  # a restart reads all of it again
            assert client.get("/subjects").body == ["a", "c", "c2"]
            process.terminate()
            assert process.wait(20) == 0


@pytest.mark.proves("A6", part="schemas are kept")
def test_topic_that_would_lose_schemas_is_rejected_with_the_reason() -> None:
    with Broker() as broker:
        create_topic(broker, "delete")
        with served_registry(broker.bootstrap_servers) as (client, _):
            response = client.get("/subjects")
            assert response.status == 503
            assert "cleanup.policy=delete" in response.body["message"]
