"""Batches with a producer id are retried; others only if they were certainly not stored."""

import asyncio
from typing import Any

import pytest
from scripted_cluster import Script, World, batch, produced

from moldau.client.async_client import AsyncClient
from moldau.client.errors import ConnectionLost
from moldau.model.errors import ErrorCode, KafkaError, MessageTooLarge, UnsupportedVersion
from moldau.model.ids import NO_PRODUCER_ID
from moldau.records.header import read_header
from moldau.wire import messages

ONCE = pytest.mark.proves("P2", part="a retry is stored once")
RECORD = (0, b"k", b"v", ())
INIT_PRODUCER_ID = 22


class RecordingScript(Script):
    """Broker 1 leads until its first response; producer id, epoch and first sequence of each batch are recorded."""

    def __init__(self, *codes: int) -> None:
        super().__init__()
        self.codes = list(codes)
        self.sent: list[tuple[int, int, int]] = []
        self.given = 3
        for node in (1, 2):
            self.on(node, "Produce", self._produce)
            self.on(node, "InitProducerId", self._give)

    def _give(self, _: Any) -> Any:
        self.given += 1
        return messages.InitProducerIdResponse(producer_id=self.given, producer_epoch=0)

    def _produce(self, request: Any) -> Any:
        header = read_header(request.topic_data[0].partition_data[0].records)
        self.sent.append((header.producer_id, header.producer_epoch, header.base_sequence))
        code = self.codes.pop(0) if self.codes else 0
        if code == LOST:
            raise ConnectionResetError
        return produced(code) if request.acks else None


LOST = -99


@ONCE
@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.REQUEST_TIMED_OUT,
    ],
)
@pytest.mark.proves("P2", part="a retry is stored once")
def test_batch_is_not_retried_when_a_former_leader_may_have_stored_it(code: ErrorCode) -> None:
    script = RecordingScript(code)
    with pytest.raises(KafkaError, match="it may be stored") as failed:
        World(script).run(lambda client: client.produce("t", 0, batch()))
    assert failed.value.code == code
    assert len(script.sent) == 1


def test_leader_metadata_is_invalidated_without_a_retry() -> None:
    script = RecordingScript(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    async def act(client: AsyncClient) -> None:
        with pytest.raises(KafkaError):
            await client.produce("t", 0, batch())
        assert "t" not in client.metadata.topics

    World(script).run(act)


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
def test_acks_one_error_means_not_stored(code: ErrorCode) -> None:
    script = RecordingScript(code)
    assert World(script).run(lambda client: client.produce("t", 0, batch(), acks=1)).base_offset == 7
    assert len(script.sent) == 2


@ONCE
@pytest.mark.parametrize("trouble", [LOST, ErrorCode.NOT_LEADER_OR_FOLLOWER])
@pytest.mark.proves("P2", part="a retry is stored once")
def test_records_get_a_producer_id_and_are_retried(trouble: int) -> None:
    script = RecordingScript(0, trouble)

    async def act(client: AsyncClient) -> None:
        for _ in range(3):
            await client.produce("t", 0, [RECORD, RECORD])

    World(script).run(act)
    assert script.sent == [(4, 0, 0), (4, 0, 2), (4, 0, 2), (4, 0, 4)]


@ONCE
def test_concurrent_batches_are_sent_in_order_with_one_producer_id() -> None:
    script = RecordingScript(0, LOST)

    async def act(client: AsyncClient) -> None:
        await asyncio.gather(*(client.produce("t", 0, [RECORD]) for _ in range(4)))

    World(script).run(act)
    assert script.sent == [(4, 0, 0), (4, 0, 1), (4, 0, 1), (4, 0, 2), (4, 0, 3)]


@ONCE
@pytest.mark.proves("P2", part="a retry is stored once")
def test_waiting_batches_use_a_new_producer_id_after_a_failure() -> None:
    script = RecordingScript(ErrorCode.MESSAGE_TOO_LARGE)

    async def act(client: AsyncClient) -> list[Any]:
        return list(await asyncio.gather(*(client.produce("t", 0, [RECORD]) for _ in range(3)), return_exceptions=True))

    first, *others = World(script).run(act)
    assert isinstance(first, MessageTooLarge)
    assert [each.base_offset for each in others] == [7, 7]
    assert script.sent == [(4, 0, 0), (5, 0, 0), (5, 0, 1)]


def test_produce_works_when_producer_ids_are_denied() -> None:
    script = RecordingScript(0, LOST)
    rejected = messages.InitProducerIdResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    for node in (1, 2):
        script.on(node, "InitProducerId", lambda _: rejected)

    async def act(client: AsyncClient) -> None:
        await client.produce("t", 0, [RECORD])
        with pytest.raises(ConnectionLost):
            await client.produce("t", 0, [RECORD])

    World(script).run(act)
    assert script.sent == [(NO_PRODUCER_ID, -1, -1)] * 2
    assert script.requested[1, "InitProducerId"] + script.requested[2, "InitProducerId"] == 1


@pytest.mark.parametrize("acks", [0, 1])
def test_no_producer_id_is_requested_without_acks_all(acks: int) -> None:
    script = RecordingScript()

    async def act(client: AsyncClient) -> None:
        await client.produce("t", 0, [RECORD], acks=acks)
        await asyncio.sleep(1)

    World(script).run(act)
    assert script.sent == [(NO_PRODUCER_ID, -1, -1)]


def test_producer_id_and_send_share_one_deadline() -> None:
    script = RecordingScript()
    loading = messages.InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    for node in (1, 2):
        script.on(node, "InitProducerId", lambda _: loading)
    world = World(script)
    with pytest.raises(KafkaError):
        world.run(lambda client: client.produce("t", 0, [RECORD], total_timeout_ms=3000))
    assert world.loop.time() < 1003.1


def test_produce_works_on_clusters_without_producer_ids() -> None:
    script = RecordingScript()
    script.versions = {INIT_PRODUCER_ID: (99, 99)}

    async def act(client: AsyncClient) -> None:
        with pytest.raises(UnsupportedVersion):
            await client.init_producer_id()
        await client.produce("t", 0, [RECORD])

    World(script).run(act)
    assert script.sent == [(NO_PRODUCER_ID, -1, -1)]
