"""The topic `_schemas`: one compacted partition with the whole content of the registry.

Every registry reads the topic and applies its records. Any of them may write, and several may run at once: there is no
elected leader. A writer takes over one transactional id, which fences the writer before it, reads to the end, and only
then decides what to write, for example the next id. Its records are part of a transaction, so that a fenced writer
cannot add any: the broker rejects them. No two registries give out the same id, whatever their clocks or networks do.

    take over the transactional id → read to the end → decide → write and commit → wait until applied
             ▲                                             │
             └───────── fenced by another registry ────────┘

The registry that was the last to write still owns the transactional id. Readers use read_committed.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from moldau.client.async_client import AsyncClient
from moldau.client.errors import ConnectionLost, ResponseTimeout, Unreachable
from moldau.client.transactional_producer import InDoubt, TransactionalProducer
from moldau.client.types import EARLIEST, LATEST, Isolation, Resource, ResourceKind
from moldau.client.visibility import visible_batches
from moldau.model.errors import KafkaError, OffsetOutOfRange, TopicAlreadyExists, UnknownTopicOrPartition
from moldau.model.units import SECOND_MS, MiB
from moldau.records.record import iterate_records
from moldau.registry.errors import STORE_FAILED, STORE_TIMED_OUT, RegistryError
from moldau.registry.records import InvalidRecord, StoredRecord
from moldau.registry.state import RegistryState

TOPIC: Final = "_schemas"
TRANSACTIONAL_ID: Final = "moldau-schema-registry"
TRANSACTION_MS: Final = 10 * SECOND_MS  # readers wait that long for a registry that dies within a write
REPLICATION_FACTOR: Final = 3  # fewer in a smaller cluster
PARTITION: Final = 0
FETCH_BYTES: Final = 4 * MiB
FETCH_WAIT_MS: Final = 500
RETRY_S: Final = 0.5
ATTEMPTS: Final = 5  # of a write that other registries fence
APPLY_S_MAX: Final = 30.0
READY_S_MAX: Final = 10.0
INVALID_RECORDS_LOGGED: Final = 20
FAILURES: Final = (KafkaError, ConnectionLost, ResponseTimeout, Unreachable, OSError)
UNAVAILABLE: Final = 50301

Result = TypeVar("Result")
Decide = Callable[[], Awaitable[tuple[Sequence[StoredRecord], Result]]]

log = logging.getLogger(__name__)


class SchemaLog:
    """Reads the topic into a state, and writes to it.

    `reader` has connections of its own: responses come in the order of requests, so that all others on its connections
    wait for the fetch that waits for new records.
    """

    def __init__(self, client: AsyncClient, reader: AsyncClient, *, topic: str = TOPIC) -> None:
        self.state = RegistryState()
        self.topic = topic
        self._client, self._reader = client, reader
        self._position = 0
        self._is_ready = asyncio.Event()
        self._progress = asyncio.Condition()
        self._writing = asyncio.Lock()
        self._producer = TransactionalProducer(
            client, f"{TRANSACTIONAL_ID}-{topic}", timeout_ms=TRANSACTION_MS, is_v1=True
        )
        self._is_owner = False
        self._invalid_records = 0
        self._last_error = "the topic has not been read yet"
        self._reading: asyncio.Task[None] | None = None

    # Lifecycle

    def start(self) -> None:
        self._reading = asyncio.get_running_loop().create_task(self._read_forever())

    async def stop(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def wait_until_ready(self) -> None:
        """Wait until the topic has been read once; raise an error for the client if that takes long."""
        try:
            await asyncio.wait_for(self._is_ready.wait(), READY_S_MAX)
        except TimeoutError as error:
            raise RegistryError(UNAVAILABLE, f"{self.topic} cannot be read: {self._last_error}") from error

    # Reads

    async def catch_up(self) -> None:
        """Apply what other registries have committed so far."""
        try:
            end = await self._client.list_offset(self.topic, PARTITION, LATEST, isolation=Isolation.READ_COMMITTED)
        except FAILURES as error:
            raise RegistryError(STORE_FAILED, f"{self.topic} cannot be read: {error}") from error
        await self._wait_for(end.offset)

    async def _wait_for(self, offset: int) -> None:
        """Wait until all records before the offset are applied."""
        async with self._progress:
            try:
                await asyncio.wait_for(self._progress.wait_for(lambda: self._position >= offset), APPLY_S_MAX)
            except TimeoutError as error:
                text = f"{self.topic} could not be read up to offset {offset} in {APPLY_S_MAX:g} s"
                raise RegistryError(STORE_TIMED_OUT, text) from error

    async def _read_forever(self) -> None:
        while True:
            try:
                if not self._is_ready.is_set():
                    await self._read_from_start()
                await self._fetch_once(FETCH_WAIT_MS)
            except (OffsetOutOfRange, UnknownTopicOrPartition) as error:
                log.warning("%s was deleted or truncated (%s): reading it again from its start", self.topic, error)
                self._is_ready.clear()
                await asyncio.sleep(RETRY_S)
            except FAILURES as error:
                if self._last_error != str(error):
                    log.warning("%s cannot be read, retrying: %s", self.topic, error)
                self._last_error = str(error)
                await asyncio.sleep(RETRY_S)
            except RegistryError as error:
                log.error("%s", error)
                self._last_error = str(error)
                await asyncio.sleep(RETRY_S)

    async def _read_from_start(self) -> None:
        await self._ensure_topic()
        self.state = RegistryState()
        committed = Isolation.READ_COMMITTED
        self._position = (await self._client.list_offset(self.topic, PARTITION, EARLIEST)).offset
        end = (await self._client.list_offset(self.topic, PARTITION, LATEST, isolation=committed)).offset
        while self._position < end:
            await self._fetch_once(FETCH_WAIT_MS)
        log.info("%s has been read: %d subjects", self.topic, len(self.state.subjects))
        self._is_ready.set()

    async def _fetch_once(self, max_wait_ms: int) -> None:
        fetched = await self._reader.fetch(
            self.topic,
            PARTITION,
            self._position,
            max_bytes=FETCH_BYTES,
            max_wait_ms=max_wait_ms,
            isolation=Isolation.READ_COMMITTED,
        )
        position = self._position
        for header, batch, is_visible in visible_batches(fetched.records, fetched.aborted, Isolation.READ_COMMITTED):
            if header.last_offset < position:
                continue
            if is_visible:
                for record in iterate_records(batch):
                    if record.offset >= position:
                        self._apply(record.offset, record.key, record.value)
            position = header.last_offset + 1
        if position != self._position:
            async with self._progress:
                self._position = position
                self._progress.notify_all()

    def _apply(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        try:
            self.state.apply(key, value)
        except (InvalidRecord, ValueError, TypeError) as error:
            self._invalid_records += 1
            if self._invalid_records <= INVALID_RECORDS_LOGGED:
                log.warning("%s offset %d: invalid record ignored: %s", self.topic, offset, error)

    # The topic

    async def _ensure_topic(self) -> None:
        """Create the topic, or check that it can hold schemas."""
        (view,) = await self._client.refresh([self.topic], may_create=False)
        if isinstance(view.error, UnknownTopicOrPartition):
            cluster = await self._client.describe_cluster()
            try:
                await self._client.create_topic(
                    self.topic,
                    partitions=1,
                    replication_factor=min(REPLICATION_FACTOR, len(cluster.brokers)),
                    configs={"cleanup.policy": "compact"},
                )
            except TopicAlreadyExists:
                log.info("%s was created by another registry", self.topic)
            return
        if view.error is not None:
            raise view.error
        if len(view.partitions) != 1:
            text = f"{self.topic} has {len(view.partitions)} partitions; a registry needs a topic with exactly one"
            raise RegistryError(STORE_FAILED, text)
        resource = Resource(ResourceKind.TOPIC, self.topic)
        (policy,) = await self._client.describe_configs(resource, ["cleanup.policy"])
        if policy.value != "compact":
            text = f"{self.topic} has cleanup.policy={policy.value}, which would delete schemas; set it to compact"
            raise RegistryError(STORE_FAILED, text)

    # Writes

    async def write(self, decide: "Decide[Result]", *, is_repeatable: bool) -> Result:
        """Write what `decide` returns, based on the newest state. Without records nothing is written.

        `decide` is called again when another registry has written in between, and after a lost connection, when the
        first attempt may have succeeded, if it is repeatable: if the same result follows from the state after it.
        """
        async with self._writing:
            for _ in range(ATTEMPTS):
                try:
                    return await self._try_write(decide)
                except (KafkaError, InDoubt) as error:
                    self._is_owner = False
                    failure: Exception = error
                    log.info("%s: write failed, trying again: %s", self.topic, error)
                except (ConnectionLost, ResponseTimeout, Unreachable, OSError) as error:
                    self._is_owner = False
                    failure = error
                    if is_repeatable:
                        continue
                    text = f"the outcome of the write to {self.topic} is unknown: {error}"
                    raise RegistryError(STORE_TIMED_OUT, text) from error
            raise RegistryError(STORE_FAILED, f"{self.topic} cannot be written: {failure}") from failure

    async def _try_write(self, decide: "Decide[Result]") -> Result:
        if not self._is_owner:
            await self._producer.initialise()
            self._is_owner = True
        await self.catch_up()
        records, result = await decide()
        if records:
            batch = [(time.time_ns() // 1_000_000, each.key, each.value, ()) for each in records]
            offset = await self._producer.send(self.topic, PARTITION, batch)
            await self._producer.end(is_commit=True)
            await self._wait_for(offset + len(records))
        return result
