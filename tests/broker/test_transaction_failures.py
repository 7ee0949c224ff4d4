"""Failures around transactions: full disks, late requests, duplicate names, missing transactional ids."""

import asyncio
import errno
import os
from types import SimpleNamespace
from typing import Any

import pytest
from broker_scene import Scene, Talker, batch, produce_request
from writer_scene import NONE, NOW_MS, Writer, committed, play, values

from moldau.broker.internal_topics import OFFSETS_TOPIC, STATE_TOPIC
from moldau.broker.transactions.add_partitions import AddPartitionsChannel, PartitionsOfTransaction
from moldau.client.errors import TooManyPendingRequests
from moldau.model.errors import ErrorCode
from moldau.model.ids import Address, TopicPartition
from moldau.wire.messages import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    IncrementalAlterConfigsRequest,
)

pytestmark = pytest.mark.proves("P3")


async def alter(talker: Talker, kind: int, name: str, **configs: str) -> None:
    request = IncrementalAlterConfigsRequest
    changes = [
        request.AlterableConfig(name=each.replace("_", "."), config_operation=0, value=value)
        for each, value in configs.items()
    ]
    resource = request.AlterConfigsResource(resource_type=kind, resource_name=name, configs=changes)
    assert (await talker.ask(1, request(resources=[resource]))).responses[0].error_code == 0


def test_transaction_survives_a_temporarily_full_disk() -> None:
    async def script(scene: Scene, writer: Writer) -> None:
        scene.simulation.disks_fail = True
        await scene.node.broker.groups.coordinator_of("g")
        await writer.write(b"a")
        talker, disk = await scene.connect(), scene.host.disk
        disk.fail("pwrite", errno.ENOSPC, path=STATE_TOPIC, times=1)
        rejected = await talker.ask(5, writer.end_request())
        assert rejected.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        await writer.described()  # the coordinator is reloaded
        disk.fail("pwrite", errno.ENOSPC, path=OFFSETS_TOPIC, times=1)
        assert await writer.commit_offset(1) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        disk.forget_plans()
        while (code := await writer.commit_offset(1)) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            await asyncio.sleep(0.01)
        assert code is NONE
        await writer.finish()
        assert await values(talker) == [b"a"]
        assert await committed(talker) == (1, NONE)

    play(script)


def test_pending_offsets_are_written_before_the_epoch_can_change(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(scene: Scene, writer: Writer) -> None:
        broker = scene.node.broker
        await broker.groups.coordinator_of("g")
        shard = broker.groups.shard_of("g")
        commit, verifications = shard.commit, shard.partition.log.producers.verifications

        async def with_another(decide: Any, **options: Any) -> Any:
            """In the same event loop iteration a request with a later epoch arrives."""
            asyncio.get_running_loop().call_soon(verifications.seek, writer.producer_id, writer.epoch + 9, -1, NOW_MS)
            return await commit(decide, **options)

        with monkeypatch.context() as patched:
            patched.setattr(shard, "commit", with_another)
            assert await writer.commit_offset(5) is NONE
        assert shard.is_ready
        await writer.finish()
        assert await committed(writer.talker) == (5, NONE)

    play(script)


def test_overloaded_coordinator_is_retried() -> None:
    async def ask() -> dict[TopicPartition, ErrorCode]:
        async def reject(*_: object, **__: object) -> None:
            raise TooManyPendingRequests("1000 requests wait for it already")

        image = SimpleNamespace(
            topics={STATE_TOPIC: SimpleNamespace(partitions=[SimpleNamespace(leader=2)])},
            brokers={2: SimpleNamespace(address=lambda _: Address("n2", 9092))},
        )
        broker: Any = SimpleNamespace(
            image=image, node_id=1, inter_broker_listener="x", peers=SimpleNamespace(ask=reject)
        )
        return dict(
            await AddPartitionsChannel(broker).request(
                PartitionsOfTransaction("t", 1, 0, True, [TopicPartition("t", 0)])
            )
        )

    assert asyncio.run(ask()) == {TopicPartition("t", 0): ErrorCode.NETWORK_EXCEPTION}


async def _send(talker: Talker, records: Any) -> int:
    response = await talker.ask(9, produce_request("t", records, acks=1))
    return int(response.responses[0].partition_responses[0].error_code)


@pytest.mark.parametrize("way", ["plain", "repeated", "looked into"])
def test_transactional_batch_requires_its_transactional_id_on_every_path(way: str) -> None:
    async def script(scene: Scene, writer: Writer) -> None:
        await writer.write(b"a")
        talker, value = await scene.connect(), b"b"
        if way == "repeated":
            for _ in range(2):
                assert await _send(talker, batch(b"plain", timestamp=NOW_MS)) == 0
        if way == "looked into":
            await alter(talker, 2, "t", compression_type="gzip")
            value = os.urandom(80_000)
        rejected = await _send(talker, writer.batch(value))
        assert rejected == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

    play(script)


def test_producer_id_expiration_changes_at_runtime() -> None:
    async def script(scene: Scene, writer: Writer) -> None:
        await writer.write(b"a")
        await writer.finish()
        producers = scene.node.broker.partitions.get("t", 0).log.producers
        await asyncio.sleep(30)
        assert len(producers.by_id) == 1
        await alter(await scene.connect(), 4, "", producer_id_expiration_ms="5000")
        await asyncio.sleep(30)
        assert not producers.by_id
        await scene.create("u")
        assert scene.node.broker.partitions.get("u", 0).log.producers.expiration_ms == 5000

    play(script, 2, "producer.id.expiration.check.interval.ms=10000")


def test_repeated_transactional_id_is_described_once() -> None:
    async def script(scene: Scene, writer: Writer) -> None:  # noqa: ARG001
        await writer.write(b"a")
        requested = [DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[0, 0, 1]) for _ in range(3)]
        (topic,) = (await writer.talker.ask(0, DescribeProducersRequest(topics=requested))).topics
        assert [each.partition_index for each in topic.partitions] == [0, 1]
        response = await writer.talker.ask(0, DescribeTransactionsRequest(transactional_ids=["t", "t", "u"]))
        assert [each.transactional_id for each in response.transaction_states] == ["t", "u"]

    play(script)


def test_internal_topic_cannot_join_a_transaction() -> None:
    async def script(scene: Scene, writer: Writer) -> None:
        await scene.node.broker.groups.coordinator_of("g")
        request = produce_request(OFFSETS_TOPIC, writer.batch(b"a"))
        request.transactional_id = writer.transactional_id
        response = await writer.talker.ask(12, request)
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        described = await writer.described()
        assert (described.transaction_state, list(described.topics)) == ("Empty", [])

    play(script)
