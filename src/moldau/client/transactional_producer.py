"""A transactional producer: records and offsets that become visible atomically.

It sends one batch at a time and returns the response, as tests and simulated clients need it.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final

from moldau.client import requests
from moldau.client.async_client import AsyncClient
from moldau.client.coordinators import GROUP_KEY, TRANSACTION_KEY, Coordinator, single_error_code
from moldau.client.errors import RETRIABLE, TooManyPendingRequests, Unreachable, check, error_of
from moldau.client.leader_requests import AFTER_APPEND, first_error, partitions_of
from moldau.client.types import ProducerIdentity
from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.ids import TopicPartition
from moldau.model.ports import Buffer
from moldau.records.builder import NewRecord, build_batch
from moldau.records.record import Record
from moldau.wire import messages

# The last versions in which a client adds partitions and groups explicitly (transactions v1) ...
PRODUCE_V1: Final = 11
OFFSET_COMMIT_V1: Final = 4
END_V1: Final = 4
# ... and the newest version for clients.
ADD_PARTITIONS: Final = 3
SEQUENCES: Final = 1 << 31
# After these errors the leader may have appended the batch.
UNCERTAIN: Final = AFTER_APPEND | {ErrorCode.UNKNOWN_SERVER_ERROR}


class InDoubt(RuntimeError):
    """The outcome of a batch is unknown: its transaction can only be aborted."""


class TransactionalProducer:
    """Call `initialise` first; then any number of transactions, each of sends and an `end`.

    With `is_v1` it behaves like clients before KIP-890: it adds each partition at the coordinator first, and keeps its
    epoch across transactions.

    A batch without a response may have been appended, so its sequence is not reused: another batch with the same
    sequence would be dropped as a duplicate. The producer therefore neither sends to that partition nor commits until
    its epoch changes.
    """

    def __init__(
        self, client: AsyncClient, transactional_id: str, *, timeout_ms: int = 60_000, is_v1: bool = False
    ) -> None:
        self.transactional_id = transactional_id
        self.identity = ProducerIdentity(-1, -1)
        self.is_v1 = is_v1
        self.coordinator = Coordinator(client, transactional_id, TRANSACTION_KEY)
        self._client, self._timeout_ms = client, timeout_ms
        self._sequences: dict[TopicPartition, int] = {}
        self._in_doubt: dict[TopicPartition, None] = {}
        self._added_partitions: dict[TopicPartition, None] = {}
        self._added_groups: dict[str, None] = {}

    async def initialise(self) -> ProducerIdentity:
        """Take over the transactional id: fence its previous owner and abort its open transaction."""
        return await self._init_producer_id(ProducerIdentity(-1, -1))

    async def send(self, topic: str, partition: int, records: Sequence[Record | NewRecord]) -> int:
        """Send one batch; return the offset of its first record."""
        topic_partition = TopicPartition(topic, partition)
        return await self.send_batch(topic_partition, self.batch(topic_partition, records), len(records))

    async def send_batch(self, topic_partition: TopicPartition, batch: Buffer, records_count: int) -> int:
        """Send a batch built elsewhere with this identity and the next sequence."""
        if topic_partition in self._in_doubt:
            raise InDoubt(f"the outcome of the last batch for {topic_partition} is unknown: abort the transaction")
        if self.is_v1 and topic_partition not in self._added_partitions:
            await self.coordinator.send(
                self.add_partitions_request([topic_partition]), add_partitions_codes, version_at_most=ADD_PARTITIONS
            )
            self._added_partitions[topic_partition] = None
        offset = await self._produce(topic_partition, batch)
        self._in_doubt.pop(topic_partition, None)
        self._sequences[topic_partition] = (self.next_sequence(topic_partition) + records_count) % SEQUENCES
        return offset

    def next_sequence(self, topic_partition: TopicPartition) -> int:
        """The sequence of the next batch."""
        return self._sequences.get(topic_partition, 0)

    async def send_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int], *, generation: int = -1, member: str = ""
    ) -> None:
        """Commit offsets of a consumer group as part of the transaction."""
        if self.is_v1 and group not in self._added_groups:
            await self.coordinator.send(self.add_offsets_request(group), single_error_code)
            self._added_groups[group] = None
        request = self._offset_commit(group, offsets, generation, member)
        at_most = OFFSET_COMMIT_V1 if self.is_v1 else None
        await Coordinator(self._client, group, GROUP_KEY).send(request, offset_commit_codes, version_at_most=at_most)

    async def end(self, *, is_commit: bool) -> None:
        """Commit or abort the transaction."""
        if is_commit and self._in_doubt:
            topic_partitions = ", ".join(str(each) for each in self._in_doubt)
            raise InDoubt(f"the outcome of some batches is unknown ({topic_partitions}): abort the transaction")
        # In v1 a duplicate EndTxn could end the next transaction: after an unknown outcome, only `initialise` is safe.
        response = await self.coordinator.send(
            self.end_request(is_commit),
            single_error_code,
            version_at_most=END_V1 if self.is_v1 else None,
            is_idempotent=not self.is_v1,
        )
        self._added_partitions.clear()
        self._added_groups.clear()
        if response.producer_id >= 0:
            self._set_identity(ProducerIdentity(response.producer_id, response.producer_epoch))
        if self._in_doubt:
            await self._bump_epoch(list(self._in_doubt))

    # Requests, for callers that send them later

    def batch(self, topic_partition: TopicPartition, records: Sequence[Record | NewRecord]) -> bytes:
        batch = build_batch(
            records,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            base_sequence=self.next_sequence(topic_partition),
            is_transactional=True,
        )
        return bytes(batch)

    def add_partitions_request(
        self, topic_partitions: Iterable[TopicPartition]
    ) -> "messages.AddPartitionsToTxnRequest":
        request = messages.AddPartitionsToTxnRequest
        topics = [
            request.AddPartitionsToTxnTopic(name=topic, partitions=[each.partition for each in chosen])
            for topic, chosen in by_topic(topic_partitions)
        ]
        return request(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.identity.producer_id,
            v3_and_below_producer_epoch=self.identity.epoch,
            v3_and_below_topics=topics,
        )

    def add_offsets_request(self, group: str) -> "messages.AddOffsetsToTxnRequest":
        return messages.AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            group_id=group,
        )

    def end_request(self, is_commit: bool) -> "messages.EndTxnRequest":
        return messages.EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            committed=is_commit,
        )

    # Internals

    async def _init_producer_id(self, expected: ProducerIdentity) -> ProducerIdentity:
        """Without an identity, take over the transactional id; with one, only if it is current (KIP-360)."""
        request = messages.InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=expected.producer_id,
            producer_epoch=expected.epoch,
        )
        response = await self.coordinator.send(request, single_error_code)
        self._set_identity(ProducerIdentity(response.producer_id, response.producer_epoch))
        return self.identity

    async def _bump_epoch(self, topic_partitions: Sequence[TopicPartition]) -> None:
        """Bump the epoch, which in v1 the end of a transaction does not.

        A delayed batch of the old epoch must not open a transaction that never ends. An empty transaction announces the
        new epoch on these partitions: it ends what was appended and fences later batches.
        """
        await self._init_producer_id(self.identity)  # fails if another producer owns the transactional id by now
        await self.coordinator.send(
            self.add_partitions_request(topic_partitions), add_partitions_codes, version_at_most=ADD_PARTITIONS
        )
        await self.coordinator.send(
            self.end_request(False), single_error_code, version_at_most=END_V1, is_idempotent=False
        )

    def _set_identity(self, identity: ProducerIdentity) -> None:
        if identity != self.identity:  # sequences of a new epoch start at 0
            self._sequences.clear()
            self._in_doubt.clear()
        self.identity = identity
        self._added_partitions.clear()
        self._added_groups.clear()

    async def _produce(self, topic_partition: TopicPartition, batch: Buffer) -> int:
        client = self._client

        async def once() -> "messages.ProduceResponse":
            view = await client.topic(topic_partition.topic)
            leader = client.metadata.leader_in(view, topic_partition.partition).leader
            timeout_ms = client.settings.request_timeout_ms
            request = requests.produce(view, topic_partition.partition, batch, -1, timeout_ms, self.transactional_id)
            response = await self._try_produce(topic_partition, request, leader)
            code, message = first_error(response)
            if code in RETRIABLE:
                raise error_of(code, message)
            return response

        ((_, response),) = partitions_of(await client.retry(once, about=topic_partition.topic))
        check(response.error_code, response.error_message)
        return int(response.base_offset)

    async def _try_produce(
        self, topic_partition: TopicPartition, request: "messages.ProduceRequest", leader: int
    ) -> "messages.ProduceResponse":
        """Send once. Success does not clear the doubt left by an earlier attempt."""
        was_in_doubt = topic_partition in self._in_doubt
        self._in_doubt[topic_partition] = None
        is_known = False
        try:
            at_most = PRODUCE_V1 if self.is_v1 else None
            response = await self._client.send(request, node=leader, version_at_most=at_most)
            is_known = first_error(response)[0] not in UNCERTAIN
        except Exception as error:
            is_known = isinstance(error, KafkaError | Unreachable | TooManyPendingRequests) or not getattr(
                error, "was_sent", True
            )
            raise
        finally:
            if is_known and not was_in_doubt:
                del self._in_doubt[topic_partition]
        return response

    def _offset_commit(
        self, group: str, offsets: Mapping[TopicPartition, int], generation: int, member: str
    ) -> "messages.TxnOffsetCommitRequest":
        whole = messages.TxnOffsetCommitRequest
        topics = [
            whole.TxnOffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    whole.TxnOffsetCommitRequestPartition(
                        partition_index=each.partition, committed_offset=offsets[each], committed_metadata=""
                    )
                    for each in chosen
                ],
            )
            for topic, chosen in by_topic(offsets)
        ]
        return whole(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            generation_id=generation,
            member_id=member,
            topics=topics,
        )


def by_topic(topic_partitions: Iterable[TopicPartition]) -> list[tuple[str, list[TopicPartition]]]:
    return [(topic, list(chosen)) for topic, chosen in groupby(sorted(topic_partitions), key=lambda each: each.topic)]


def add_partitions_codes(response: "messages.AddPartitionsToTxnResponse") -> list[int]:
    """Return the error codes of AddPartitionsToTxn."""
    return [
        each.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for each in topic.results_by_partition
    ]


def offset_commit_codes(response: "messages.TxnOffsetCommitResponse") -> list[int]:
    """Return the error codes of TxnOffsetCommit."""
    return [each.error_code for topic in response.topics for each in topic.partitions]
