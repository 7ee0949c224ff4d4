"""The transactional producer on scripted brokers: batches with an unknown outcome."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import scripted_cluster
from scripted_cluster import Script, World, produced

from moldau.client.async_client import AsyncClient
from moldau.client.errors import ConnectionLost, ResponseTimeout
from moldau.client.settings import ClientSettings
from moldau.client.transactional_producer import InDoubt, TransactionalProducer
from moldau.client.types import LATEST, Isolation
from moldau.client.visibility import visible_batches
from moldau.model.errors import ErrorCode, MessageTooLarge
from moldau.node.ports.clock import SystemClock
from moldau.node.ports.randomness import system_random
from moldau.node.ports.sockets import SocketNetwork
from moldau.records.header import read_header
from moldau.records.record import iterate_records
from moldau.testing.broker import Broker
from moldau.wire import messages

ADD_PARTITIONS, END = 24, 26
COMMITTED = Isolation.READ_COMMITTED
RECORD = (0, b"k", b"v", ())
Sent = tuple[int, int]  # epoch, base sequence


@pytest.fixture(autouse=True)
def _with_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripted_cluster, "APIS", (*scripted_cluster.APIS, ADD_PARTITIONS, END))


class TransactionalScript(Script):
    """Broker 1 leads the partition, broker 2 coordinates. While it loses, batches arrive without a response."""

    def __init__(self, *responses: Any) -> None:
        super().__init__(2)
        self._responses = list(responses)
        self.loses = False
        self.epoch = -1
        self.calls: list[str] = []
        self.sent: list[Sent] = []
        self.on(1, "Produce", self._produce)
        found = messages.FindCoordinatorResponse(node_id=2, host="b2", port=9092)
        for node in (1, 2):
            self.on(node, "FindCoordinator", lambda _: found)
        self.on(2, "InitProducerId", self._initialise)
        self.on(2, "AddPartitionsToTxn", self._enrol)
        self.on(2, "EndTxn", self._end)

    def _initialise(self, request: Any) -> Any:
        self.calls.append(f"initialise {request.producer_epoch}")
        self.epoch += 1
        return messages.InitProducerIdResponse(producer_id=7, producer_epoch=self.epoch)

    def _enrol(self, request: Any) -> Any:
        self.calls.append(f"enrol {request.v3_and_below_producer_epoch}")
        whole = messages.AddPartitionsToTxnResponse
        part = whole.AddPartitionsToTxnPartitionResult(partition_index=0, partition_error_code=0)
        topic = whole.AddPartitionsToTxnTopicResult(name="t", results_by_partition=[part])
        return whole(results_by_topic_v3_and_below=[topic])

    def _end(self, request: Any) -> Any:
        self.calls.append(f"{'commit' if request.committed else 'abort'} {request.producer_epoch}")
        return messages.EndTxnResponse()

    def _produce(self, request: Any) -> Any:
        header = read_header(request.topic_data[0].partition_data[0].records)
        self.sent.append((header.producer_epoch, header.base_sequence))
        if self.loses:
            raise ConnectionResetError
        return self._responses.pop(0) if self._responses else produced()


def run(script: Script, act: Callable[[TransactionalProducer], Any], **settings: Any) -> Any:
    async def main(client: AsyncClient) -> Any:
        producer = TransactionalProducer(client, "x", is_v1=True)
        await producer.initialise()
        return await act(producer)

    return World(script, request_timeout_ms=1000, **{"total_timeout_ms": 1500, **settings}).run(main)


@pytest.mark.proves("P3")
def test_abort_bumps_the_epoch_after_an_unknown_outcome() -> None:
    script = TransactionalScript()

    async def act(producer: TransactionalProducer) -> None:
        script.loses = True
        with pytest.raises(ConnectionLost):
            await producer.send("t", 0, [RECORD])
        script.loses = False
        await producer.end(is_commit=False)
        await producer.send("t", 0, [RECORD])
        await producer.end(is_commit=True)

    run(script, act)
    assert {epoch for epoch, _ in script.sent[:-1]} == {0}
    assert script.sent[-1] == (1, 0)  # with the old epoch, it might count as a duplicate
    assert script.calls == [
        *("initialise -1", "enrol 0", "abort 0"),
        *("initialise 0", "enrol 1", "abort 1"),  # the batch may be in flight, so the coordinator gets the new epoch
        *("enrol 1", "commit 1"),
    ]


@pytest.mark.proves("P3")
def test_batch_in_doubt_blocks_sends_and_commit() -> None:
    script = TransactionalScript()

    async def act(producer: TransactionalProducer) -> None:
        script.loses = True
        with pytest.raises(ConnectionLost):
            await producer.send("t", 0, [RECORD])
        tries = len(script.sent)
        with pytest.raises(InDoubt, match="t-0 is unknown"):
            await producer.send("t", 0, [RECORD])
        with pytest.raises(InDoubt, match="abort the transaction"):
            await producer.end(is_commit=True)
        assert len(script.sent) == tries

    run(script, act)
    assert "commit 0" not in script.calls


@pytest.mark.proves("P3")
def test_cancelled_send_leaves_the_batch_in_doubt() -> None:
    async def act(producer: TransactionalProducer) -> None:
        sending = asyncio.ensure_future(producer.send("t", 0, [RECORD]))
        await asyncio.sleep(0.5)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        with pytest.raises(InDoubt):
            await producer.end(is_commit=True)

    run(TransactionalScript(None), act)


@pytest.mark.proves("P3")
@pytest.mark.parametrize("code", [ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.REQUEST_TIMED_OUT])
def test_rejected_retry_leaves_the_batch_in_doubt(code: ErrorCode) -> None:
    async def act(producer: TransactionalProducer) -> None:
        with pytest.raises(MessageTooLarge):
            await producer.send("t", 0, [RECORD])
        with pytest.raises(InDoubt):
            await producer.end(is_commit=True)

    run(TransactionalScript(produced(code), produced(ErrorCode.MESSAGE_TOO_LARGE)), act)


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT])
def test_acknowledged_retry_clears_the_doubt(code: ErrorCode) -> None:
    script = TransactionalScript(produced(code))

    async def act(producer: TransactionalProducer) -> None:
        await producer.send("t", 0, [RECORD])
        await producer.send("t", 0, [RECORD])
        await producer.end(is_commit=True)

    run(script, act, total_timeout_ms=10_000)
    assert script.sent == [(0, 0), (0, 0), (0, 1)]


def test_rejected_batch_leaves_no_doubt() -> None:
    script = TransactionalScript(produced(ErrorCode.MESSAGE_TOO_LARGE))

    async def act(producer: TransactionalProducer) -> None:
        with pytest.raises(MessageTooLarge):
            await producer.send("t", 0, [RECORD])
        await producer.send("t", 0, [RECORD])
        await producer.end(is_commit=True)

    run(script, act)
    assert script.sent == [(0, 0), (0, 0)]
    assert script.calls == ["initialise -1", "enrol 0", "commit 0"]


@pytest.mark.proves("P3")
def test_invalidation_during_a_lookup_does_not_fail_the_send() -> None:
    script = TransactionalScript()

    async def act(producer: TransactionalProducer) -> None:
        client = producer._client
        look_up = client.topic

        async def look_up_and_invalidate(name: str) -> Any:
            view = await look_up(name)
            client.metadata.forget(name)  # another caller has just invalidated it
            return view

        client.topic = look_up_and_invalidate  # type: ignore[method-assign]
        await producer.send("t", 0, [RECORD])

    run(script, act, total_timeout_ms=100)
    assert script.sent == [(0, 0)]


class LossyClient(AsyncClient):
    """Batches arrive, but their responses are lost."""

    is_deaf = False

    async def send(self, request: Any, **how: Any) -> Any:
        response = await super().send(request, **how)
        if self.is_deaf and isinstance(request, messages.ProduceRequest):
            raise ResponseTimeout("no response", was_sent=True)
        return response


async def committed_values(client: AsyncClient, topic: str) -> list[bytes | None]:
    end, position = (await client.list_offset(topic, 0, LATEST)).offset, 0
    values: list[bytes | None] = []
    while position < end:  # markers are written with a delay
        fetched = await client.fetch(topic, 0, position, isolation=COMMITTED)
        for header, batch, is_shown in visible_batches(fetched.records, fetched.aborted, COMMITTED):
            values += [record.value for record in iterate_records(batch)] if is_shown else []
            position = header.next_offset
    return values


@pytest.mark.proves("P3")
def test_records_after_a_batch_in_doubt_are_stored_by_a_real_broker(moldau_broker: Broker) -> None:
    topic = moldau_broker.create_topic("after-a-doubt")

    async def values() -> list[bytes | None]:
        ports = (SocketNetwork(), SystemClock(), system_random(), moldau_broker.bootstrap_servers)
        client = LossyClient(*ports, settings=ClientSettings(total_timeout_ms=5_000))
        async with client:
            producer = TransactionalProducer(client, topic, is_v1=True)
            await producer.initialise()
            client.is_deaf = True
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await producer.send(topic, 0, [(0, b"k", b"old", ())])
            client.is_deaf = False
            await producer.end(is_commit=False)
            await producer.send(topic, 0, [(0, b"k", b"new", ())])
            await producer.end(is_commit=True)
            return await committed_values(client, topic)

    assert asyncio.run(values()) == [b"new"]
