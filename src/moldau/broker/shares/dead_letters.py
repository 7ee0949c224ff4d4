"""`DeadLetters`: writes the dead letters of a share partition to the group's dead-letter topic (KIP-1191), once each.

    ACQUIRED --reject, last attempt--> ARCHIVING --durable--> dead letter appended --> ARCHIVED --durable--> passed
                                                   |                       |                       |
                                      a crash here: appended    a crash here: appended       a crash here: as before
                                      by the next leader        again, a duplicate

A leader appends dead letters only for records that are durably ARCHIVING, and archives them when the append is
committed. So a crash at any step leaves a record whose dead letter is missing or written, and ARCHIVING in both cases:
the next leader appends it again. The log of the dead-letter topic decides whether that is a duplicate, as for any
idempotent producer. For that, each dead letter is a batch of its own, with a producer id that is derived from its
origin (group, partition, state epoch, offset), epoch 0 and sequence 0. Whichever leaders append it, however often, the
log has it once: an append that a former leader sent, and that arrives late, is a duplicate too. Neither fencing nor a
scan of the topic is necessary.

What this relies on: partition p has its dead letters in partition p modulo the number of partitions of the dead-letter
topic, which must not change between two attempts; and the log remembers a producer id for
`producer.id.expiration.ms` (a day) and at least for the next 18,000 producers. After a reset of the group's offsets the
state epoch differs, and a record may have another dead letter. A group that is deleted and created again has the same
state epochs: within that day, a record that it had rejected before has one dead letter for both.

Nothing is dropped: while the topic is missing, not enabled for dead letters or unavailable, the records stay ARCHIVING
and count as in flight, and the attempts are repeated at growing intervals. Removing the group's dead-letter topic from
its configs archives them without dead letters.
"""

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, Protocol

from moldau.broker.coordinators.host import CoordinatorHost
from moldau.broker.partitions.partition import Partition
from moldau.broker.runtime.lazy_timer import LazyTimer
from moldau.broker.runtime.meters import ShareMeter
from moldau.broker.shares.persister import SharePartitionKey
from moldau.broker.shares.record_reader import read_records
from moldau.client.errors import check
from moldau.machines.groups.share.settings import ShareGroupConfig
from moldau.machines.metadata.image import MetadataImage
from moldau.machines.metadata.topics import NewTopic
from moldau.machines.shares.partition import DeadLetter, SharePartitionMachine
from moldau.model.errors import (
    CorruptMessage,
    InvalidRecord,
    InvalidTopic,
    KafkaError,
    LeaderNotAvailable,
    MessageTooLarge,
    PolicyViolation,
    UnknownTopicOrPartition,
)
from moldau.model.ids import NO_NODE
from moldau.model.protocol import ACKS_ALL
from moldau.model.units import SECOND_MS
from moldau.records.builder import build_batch
from moldau.records.record import Headers, Record
from moldau.storage.settings import LogSettings
from moldau.wire.messages import ProduceRequest

LETTERS_PER_STEP: Final = 16  # written at the same time
TIMEOUT_MS: Final = 10 * SECOND_MS
RETRY_FIRST_MS: Final = 500.0
RETRY_LONGEST_MS: Final = 30_000.0
CONNECTION: Final = "dead-letters"
ENABLED: Final = "errors.deadletterqueue.group.enable"

CONTEXT: Final = "__dlq.errors."  # begins the names of the headers that are added
REJECTED: Final = "The record was rejected by a member."
EXHAUSTED: Final = "The record reached the delivery count limit."
_PRODUCER_IDS_FROM: Final = 1 << 62  # the controller allocates ids from 0 on


class DeadLettersHost(CoordinatorHost, Protocol):
    """The parts of the broker that dead letters use."""

    def log_settings(self, image: MetadataImage, topic: str) -> LogSettings: ...

    def report_bug(self, where: str, error: BaseException) -> None: ...


class DeadLetters:
    """The dead letters of one share partition in one leader epoch."""

    def __init__(
        self,
        key: SharePartitionKey,
        partition: Partition,
        host: DeadLettersHost,
        meter: ShareMeter,
        on_archived: Callable[[], None],
    ) -> None:
        """`on_archived` is called when records were archived, which must be persisted."""
        self._key = key
        self._partition = partition
        self._host = host
        self._meter = meter
        self._on_archived = on_archived
        self._task: asyncio.Task[None] | None = None
        self._retry = LazyTimer(self._try_again)
        self._retry_ms = RETRY_FIRST_MS
        self._machine: SharePartitionMachine | None = None
        self._config: ShareGroupConfig | None = None
        self._is_closed = False

    def write(self, machine: SharePartitionMachine, config: ShareGroupConfig) -> None:
        """Write the dead letters of the records that are durably ARCHIVING."""
        if config != self._config:
            self._retry.stop()
            self._retry_ms = RETRY_FIRST_MS
        self._machine, self._config = machine, config
        if not self._retry.is_set:
            self._try_again()

    def _try_again(self) -> None:
        machine, config = self._machine, self._config
        if self._task is not None or self._is_closed or machine is None or config is None:
            return
        if machine.dead_letters(1):
            self._start(self._write_all(machine))

    def _start(self, work: Coroutine[None, None, None]) -> None:
        self._task = asyncio.get_running_loop().create_task(work)
        self._task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._task = None
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._host.report_bug(f"dead letters of {self._key.group_id} {self._partition.name}", error)
            self._back_off()
        self._on_archived()

    async def _write_all(self, machine: SharePartitionMachine) -> None:
        while letters := machine.dead_letters(LETTERS_PER_STEP):
            config = self._config
            assert config is not None
            if self._is_closed:
                return
            if not config.dead_letter_topic:
                for letter in letters:
                    machine.archive(letter.offset)
                continue
            try:
                await self._write_step(machine, letters, config)
            except (KafkaError, OSError) as error:
                self._failed(error, config)
                return
            self._retry_ms = RETRY_FIRST_MS
            self._on_archived()

    def _failed(self, error: KafkaError | OSError, config: ShareGroupConfig) -> None:
        self._meter.dead_letter_failures += 1
        reason = error.message if isinstance(error, KafkaError) else str(error)
        self._host.limited_logger.write(
            "dead letters failed",
            f"group={self._key.group_id} partition={self._partition.name} dead letters wait: "
            f"{config.dead_letter_topic}: {reason}",
        )
        self._back_off()

    def _back_off(self) -> None:
        if not self._is_closed:
            self._retry.set(self._retry_ms)
            self._retry_ms = min(2 * self._retry_ms, RETRY_LONGEST_MS)

    async def _write_step(
        self, machine: SharePartitionMachine, letters: Sequence[DeadLetter], config: ShareGroupConfig
    ) -> None:
        """Write some dead letters; raise the first error after archiving those that were written."""
        index = await self._target(config.dead_letter_topic)
        records = await self._records(letters) if config.copies_dead_records else {}
        outcomes = await asyncio.gather(
            *(
                self._write_one(each, records.get(each.offset), machine.state_epoch, config.dead_letter_topic, index)
                for each in letters
            ),
            return_exceptions=True,
        )
        for letter, outcome in zip(letters, outcomes, strict=True):
            if outcome is None:
                machine.archive(letter.offset)
                self._meter.count_dead_letter(self._key.group_id)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def _records(self, letters: Sequence[DeadLetter]) -> Mapping[int, Record]:
        """The records that are still in the log and readable."""
        records: dict[int, Record] = {}
        for letter in letters:
            if letter.offset in records:
                continue
            try:
                reader = read_records(self._partition, letter.offset, letter.offset, self._host.executor)
                records.update([(each.offset, each) async for each in reader])
            except CorruptMessage:
                continue
        return records

    async def _target(self, name: str) -> int:
        """The partition for the dead letters; raises if the topic cannot be used."""
        host = self._host
        prefix = host.settings.errors_deadletterqueue_topic_name_prefix
        if not name.startswith(prefix) or name == self._partition.name.topic:
            raise InvalidTopic(f"its name must begin with {prefix!r}, and it must not be the topic itself")
        topic = host.image.topics.get(name)
        if topic is None and host.settings.errors_deadletterqueue_auto_create_topics_enable:
            created = await host.create_topic(NewTopic(name, configs=[(ENABLED, "true")]))
            check(created.error)
            topic = host.image.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartition("the topic does not exist")
        if not host.log_settings(host.image, name).errors_deadletterqueue_group_enable:
            raise PolicyViolation(f"the topic has not set {ENABLED}=true")
        return self._key.partition % len(topic.partitions)

    # One dead letter

    async def _write_one(
        self, letter: DeadLetter, record: Record | None, state_epoch: int, topic: str, index: int
    ) -> None:
        try:
            await self._append(self._batch(letter, record, state_epoch), topic, index)
        except (MessageTooLarge, InvalidRecord):
            if record is None:
                raise
            await self._append(self._batch(letter, None, state_epoch), topic, index)

    def _batch(self, letter: DeadLetter, record: Record | None, state_epoch: int) -> bytearray:
        key, value, headers = (None, None, ()) if record is None else (record.key, record.value, record.headers)
        context = self._context(letter)
        kept = tuple(each for each in headers if not each[0].startswith(CONTEXT))  # those of an earlier dead letter
        return build_batch(
            [(self._host.clock.wall_ms(), key, value, kept + context)],
            producer_id=producer_id_of(self._key, state_epoch, letter.offset),
            producer_epoch=0,
            base_sequence=0,
        )

    def _context(self, letter: DeadLetter) -> Headers:
        """Where the record came from, and why it is a dead letter; with the names of KIP-1191."""
        context = (
            ("topic", self._partition.name.topic),
            ("partition", str(self._key.partition)),
            ("offset", str(letter.offset)),
            ("group", self._key.group_id),
            ("delivery.count", str(letter.delivery_count)),
            ("message", REJECTED if letter.is_rejected else EXHAUSTED),
        )
        return tuple((CONTEXT + name, text.encode()) for name, text in context)

    async def _append(self, batch: bytearray, topic: str, index: int) -> None:
        """Append a batch to a partition and wait until it is committed; a duplicate is appended already."""
        image = self._host.image
        found = image.topics.get(topic)
        where = image.partition(topic, index)
        if found is None or where is None or where.leader == NO_NODE:
            raise LeaderNotAvailable(f"partition {index} has no leader")
        data = ProduceRequest.PartitionProduceData(index=index, records=memoryview(batch))
        request = ProduceRequest(
            acks=ACKS_ALL,
            timeout_ms=TIMEOUT_MS,
            topic_data=[ProduceRequest.TopicProduceData(topic_id=found.topic_id, name=topic, partition_data=[data])],
        )
        response = await self._send(where.leader, request)
        result = response.responses[0].partition_responses[0]
        check(result.error_code, result.error_message)

    async def _send(self, node_id: int, request: ProduceRequest) -> Any:
        host = self._host
        if node_id == host.node_id:
            return await host.local.handle(request)
        registered = host.image.brokers.get(node_id)
        address = None if registered is None else registered.address(host.inter_broker_listener)
        if address is None:
            raise LeaderNotAvailable(f"broker {node_id} has no address on the inter-broker listener")
        return await host.peers.ask(address, request, timeout_ms=2 * TIMEOUT_MS, purpose=CONNECTION)

    # The end

    def close(self) -> None:
        """This broker does not lead the share partition any more; an append under way may still succeed."""
        self._is_closed = True
        self._retry.close()

    async def stop(self) -> None:
        self.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def producer_id_of(key: SharePartitionKey, state_epoch: int, offset: int) -> int:
    """The producer id of a dead letter: the same for every attempt to append it, and for no other one."""
    group_id, topic_id, partition = key
    origin = b"%d %d %d " % (partition, state_epoch, offset) + topic_id + group_id.encode()
    return _PRODUCER_IDS_FROM | int.from_bytes(hashlib.blake2b(origin, digest_size=8).digest(), "big") >> 2
