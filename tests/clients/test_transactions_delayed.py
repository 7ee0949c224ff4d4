"""Delayed requests of a transaction that arrive when the next one is open: none joins it, each is rejected.

`make soak-transactions` delays a thousand; a few are delayed here.
"""

import asyncio
import os
import random
from contextlib import ExitStack
from typing import Any, Final

import pytest

from moldau.client.async_client import AsyncClient
from moldau.client.settings import ClientSettings
from moldau.client.transactional_producer import TransactionalProducer
from moldau.client.transactions import Transactions
from moldau.client.types import LATEST, Isolation
from moldau.client.visibility import visible_batches
from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.ids import Address, TopicPartition
from moldau.model.ports import Connection, Endpoint
from moldau.model.tls import TlsSettings
from moldau.node.ports.clock import SystemClock
from moldau.node.ports.randomness import system_random
from moldau.node.ports.sockets import SocketNetwork
from moldau.records.builder import NewRecord
from moldau.records.record import iterate_records
from moldau.testing import Cluster
from moldau.wire import messages
from moldau_dev.chaos.proxy import HoldingProxy

FRAMES: Final = int(os.environ.get("MOLDAU_DELAYED_FRAMES", "30"))
TOPIC: Final = "deeds"
PARTITIONS: Final = 3
WAIT_S: Final = 60.0
PRODUCE, ADD_PARTITIONS, END, OFFSETS = 0, 24, 26, 28
# The held request; whether the client uses v1; and whether the same producer then ends its transaction with a retry and
# continues, instead of initialising again. In v1 that is safe only for a batch, whose partition is checked: EndTxn of
# v1 does not identify its transaction, so clients of v1 initialise again after an unknown outcome.
CASES: Final = (
    (PRODUCE, False, False),
    (PRODUCE, False, True),
    (END, False, False),
    (END, False, True),
    (OFFSETS, False, False),
    (OFFSETS, False, True),
    (PRODUCE, True, False),
    (PRODUCE, True, True),
    (END, True, False),
    (ADD_PARTITIONS, True, False),
)
# Expected errors of a delayed request.
LATE: Final = (
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.TRANSACTION_ABORTABLE,
)
SETTINGS: Final = {
    "auto.create.topics.enable": "false",
    "transaction.state.log.num.partitions": 3,
    "offsets.topic.num.partitions": 3,
}


class ProxiedNetwork(SocketNetwork):
    """A network that reaches every broker through its own proxy."""

    def __init__(self) -> None:
        super().__init__()
        self._proxies: dict[Address, HoldingProxy] = {}
        self._open = ExitStack()

    async def connect(
        self, address: Address, endpoint: Endpoint, frame_bytes_max: int, tls: TlsSettings | None = None
    ) -> Connection:
        if address not in self._proxies:
            self._proxies[address] = self._open.enter_context(HoldingProxy(*address))
        proxy = self._proxies[address]
        return await super().connect(Address("127.0.0.1", proxy.port), endpoint, frame_bytes_max, tls)

    @property
    def held(self) -> int:
        return sum(proxy.held for proxy in self._proxies.values())

    def hold_next(self, api_key: int) -> None:
        for proxy in self._proxies.values():
            proxy.hold_next(api_key)

    def deliver_held(self) -> None:
        for proxy in self._proxies.values():
            proxy.deliver_held()

    def close(self) -> None:
        self._open.close()


class Rounds:
    """One transaction whose last request is held, the next by the same id, and then the late arrival."""

    def __init__(self, servers: str, network: ProxiedNetwork, chance: random.Random) -> None:
        self._detour, self._chance = network, chance
        self._direct = _client(SocketNetwork(), servers)
        self._delayed = _client(network, servers)
        self._committed: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}

    async def run(self, count: int) -> None:
        async with self._direct, self._delayed:
            for broker in await self._delayed.brokers():  # creates the proxies
                await self._delayed.send(messages.MetadataRequest(topics=[]), node=broker.node_id)
            for number in range(count):
                async with asyncio.timeout(WAIT_S):
                    await self._round(number)
            await self._compare()

    async def _round(self, number: int) -> None:
        kind, is_v1, continues = CASES[number % len(CASES)]
        name = f"doer-{number % 7}"
        first, second, third = self._chance.sample(range(PARTITIONS), 3)
        early = TransactionalProducer(self._delayed, name, is_v1=is_v1)
        await early.initialise()
        await early.send(TOPIC, first, [_record(b"early %d" % number)])
        under_way = await self._delay(early, kind, number, second)
        late = TransactionalProducer(self._direct, name, is_v1=is_v1)
        await self._take_over(early, late, continues=continues, first=first, number=number)
        own = third if is_v1 else self._chance.choice((second, third))
        await late.send(TOPIC, own, [_record(b"late %d" % number)])
        self._detour.deliver_held()
        await self._expect_rejection(under_way, kind, number)
        await self._finish(late, own, number)

    async def _delay(
        self, early: TransactionalProducer, kind: int, number: int, partition: int
    ) -> "asyncio.Task[object]":
        held = self._detour.held
        self._detour.hold_next(kind)
        place = TopicPartition(TOPIC, partition)
        work: Any = {
            PRODUCE: lambda: early.send(TOPIC, partition, [_record(b"delayed %d" % number)]),
            ADD_PARTITIONS: lambda: early.send(TOPIC, partition, [_record(b"delayed %d" % number)]),
            END: lambda: early.end(is_commit=True),
            OFFSETS: lambda: early.send_offsets("group", {place: number}),
        }[kind]
        task = asyncio.create_task(work())
        while self._detour.held == held:
            assert not task.done(), f"round {number}: {kind} got its response before it was held: {task}"
            await asyncio.sleep(0.001)
        return task

    async def _take_over(
        self, early: TransactionalProducer, late: TransactionalProducer, *, continues: bool, first: int, number: int
    ) -> None:
        if not continues:
            await late.initialise()  # aborts what is open
            return
        late.identity = early.identity
        is_commit = self._chance.random() < 0.5
        await late.end(is_commit=is_commit)
        if is_commit:
            self._committed[first].append(b"early %d" % number)

    async def _expect_rejection(self, under_way: "asyncio.Task[object]", kind: int, number: int) -> None:
        await asyncio.wait([under_way])
        error = under_way.exception()
        assert isinstance(error, KafkaError), f"round {number}: a delayed {kind} came to {under_way}"
        assert error.code in LATE, f"round {number}: a delayed {kind} failed with {error!r}"

    async def _finish(self, late: TransactionalProducer, own: int, number: int) -> None:
        described = await Transactions(self._direct).describe(late.transactional_id)
        assert described.state == "Ongoing", f"round {number}: {described}"
        assert described.partitions == (TopicPartition(TOPIC, own),), f"round {number}: {described}"
        is_commit = self._chance.random() < 0.7
        await late.end(is_commit=is_commit)
        if is_commit:
            self._committed[own].append(b"late %d" % number)

    async def _compare(self) -> None:
        """Check that exactly the committed records are read, and that no transaction is open."""
        for partition, wanted in self._committed.items():
            end = await self._stable_end(partition)
            assert await self._read(partition, end) == wanted

    async def _stable_end(self, partition: int) -> int:
        """The end of the partition once all markers are written."""
        async with asyncio.timeout(WAIT_S):
            while True:
                stable = await self._direct.list_offset(TOPIC, partition, LATEST, isolation=Isolation.READ_COMMITTED)
                if stable.offset == (await self._direct.list_offset(TOPIC, partition, LATEST)).offset:
                    return stable.offset
                await asyncio.sleep(0.01)

    async def _read(self, partition: int, end: int) -> list[bytes]:
        seen: list[bytes] = []
        offset = 0
        while offset < end:
            fetched = await self._direct.fetch(TOPIC, partition, offset, isolation=Isolation.READ_COMMITTED)
            for header, batch, is_shown in visible_batches(fetched.records, fetched.aborted, Isolation.READ_COMMITTED):
                if is_shown:
                    seen += [each.value or b"" for each in iterate_records(batch) if each.offset >= offset]
                offset = header.last_offset + 1
        return seen


def _client(network: SocketNetwork, servers: str) -> AsyncClient:
    settings = ClientSettings(client_id="delayed", request_timeout_ms=60_000, total_timeout_ms=60_000)
    return AsyncClient(network, SystemClock(), system_random(), servers, settings=settings)


def _record(value: bytes) -> NewRecord:
    return (SystemClock().wall_ms(), None, value, ())


@pytest.mark.proves("P3")
@pytest.mark.timeout(120 + FRAMES)
def test_delayed_request_never_joins_a_later_transaction() -> None:
    with Cluster(brokers=3, settings=SETTINGS) as cluster:
        cluster.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        network = ProxiedNetwork()
        try:
            rounds = Rounds(cluster.bootstrap_servers, network, random.Random(FRAMES))
            asyncio.run(rounds.run(FRAMES))
        finally:
            network.close()
    assert network.held == FRAMES
