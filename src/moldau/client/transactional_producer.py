"""A transactional producer: records and offsets that become visible together, or never.

It sends one batch at a time and says what it was answered, which is what tests and simulated clients want of it.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from moldau.client import requests
from moldau.client.async_client import AsyncClient
from moldau.client.coordinators import GROUP_KEY, TRANSACTION_KEY, Coordinator, one_code
from moldau.client.errors import PASSING, TooManyWaiting, Unreachable, check, error_of
from moldau.client.leader_requests import AFTER_APPEND, first_error, partitions_of
from moldau.client.types import ProducerIdentity
from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.ids import TopicPartition
from moldau.model.ports import Buffer
from moldau.records.builder import NewRecord, build_batch
from moldau.records.record import Record
from moldau.wire import messages
from moldau.wire.messages import Message

# The last versions in which a client enrols partitions and groups by itself (transactions v1) ...
PRODUCE_V1: Final = 11
OFFSET_COMMIT_V1: Final = 4
END_V1: Final = 4
# ... and what a client may use at all.
ADD_PARTITIONS: Final = 3
SEQUENCES: Final = 1 << 31
# After these answers a leader may have the batch all the same.
UNCERTAIN: Final = AFTER_APPEND | {ErrorCode.UNKNOWN_SERVER_ERROR}


class InDoubt(RuntimeError):
    """Nobody knows whether a batch has arrived: its transaction can only be aborted."""


class TransactionalProducer:
    """Begins by `initialise`; then any number of transactions, each of sends and an `end`.

    With `is_v1` it does what clients did before KIP-890: it tells the coordinator of each partition first, and keeps
    its epoch from one transaction to the next.

    A batch that nobody answered may have arrived, and then its sequence is taken: another batch with it would be called
    a repetition, and dropped. So nothing more is sent there, nor committed, until the epoch is another one.
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
        self._enrolled: dict[TopicPartition, None] = {}
        self._enrolled_groups: dict[str, None] = {}

    async def initialise(self) -> ProducerIdentity:
        """Take the transactional id over: whoever had it is fenced, what it left open is aborted."""
        return await self._begin_as(ProducerIdentity(-1, -1))

    async def send(self, topic: str, partition: int, records: Sequence[Record | NewRecord]) -> int:
        """One batch; the offset of its first record."""
        place = TopicPartition(topic, partition)
        return await self.send_batch(place, self.batch(place, records), len(records))

    async def send_batch(self, place: TopicPartition, batch: Buffer, records_count: int) -> int:
        """A batch that was made elsewhere, of our identity and with the sequence that is next there."""
        if place in self._in_doubt:
            raise InDoubt(f"nobody knows whether the last batch for {place} arrived: abort, then send again")
        if self.is_v1 and place not in self._enrolled:
            await self.coordinator.ask(self.enrolling([place]), added_codes, version_at_most=ADD_PARTITIONS)
            self._enrolled[place] = None
        offset = await self._deliver(place, batch)
        self._in_doubt.pop(place, None)
        self._sequences[place] = (self.next_sequence(place) + records_count) % SEQUENCES
        return offset

    def next_sequence(self, place: TopicPartition) -> int:
        """Of the next batch that goes there."""
        return self._sequences.get(place, 0)

    async def send_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int], *, generation: int = -1, member: str = ""
    ) -> None:
        """A consumer's progress, as a part of the transaction."""
        if self.is_v1 and group not in self._enrolled_groups:
            await self.coordinator.ask(self.enrolling_group(group), one_code)
            self._enrolled_groups[group] = None
        request = self._offset_commit(group, offsets, generation, member)
        at_most = OFFSET_COMMIT_V1 if self.is_v1 else None
        await Coordinator(self._client, group, GROUP_KEY).ask(request, committed_codes, version_at_most=at_most)

    async def end(self, *, is_commit: bool) -> None:
        """All of it, or nothing."""
        if is_commit and self._in_doubt:
            places = ", ".join(str(each) for each in self._in_doubt)
            raise InDoubt(f"nobody knows whether all batches arrived ({places}): the transaction can only be aborted")
        # In v1 an end that comes twice could hit the next transaction: after a doubt, `initialise` alone is safe.
        answer = await self.coordinator.ask(
            self.ending(is_commit),
            one_code,
            version_at_most=END_V1 if self.is_v1 else None,
            is_repeatable=not self.is_v1,
        )
        self._enrolled.clear()
        self._enrolled_groups.clear()
        if answer.producer_id >= 0:
            self._become(ProducerIdentity(answer.producer_id, answer.producer_epoch))
        if self._in_doubt:
            await self._leave_behind(list(self._in_doubt))

    # The requests, for those who want to send them at another time

    def batch(self, place: TopicPartition, records: Sequence[Record | NewRecord]) -> bytes:
        batch = build_batch(
            records,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            base_sequence=self.next_sequence(place),
            is_transactional=True,
        )
        return bytes(batch)

    def enrolling(self, places: Iterable[TopicPartition]) -> Message:
        request = messages.AddPartitionsToTxnRequest
        topics = [
            request.AddPartitionsToTxnTopic(name=topic, partitions=[each.partition for each in chosen])
            for topic, chosen in by_topic(places)
        ]
        return request(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.identity.producer_id,
            v3_and_below_producer_epoch=self.identity.epoch,
            v3_and_below_topics=topics,
        )

    def enrolling_group(self, group: str) -> Message:
        return messages.AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            group_id=group,
        )

    def ending(self, is_commit: bool) -> Message:
        return messages.EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            committed=is_commit,
        )

    # Inside

    async def _begin_as(self, expected: ProducerIdentity) -> ProducerIdentity:
        """Without an identity, whoever has the transactional id; else only if that is who has it (KIP-360)."""
        request = messages.InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=expected.producer_id,
            producer_epoch=expected.epoch,
        )
        answer = await self.coordinator.ask(request, one_code)
        self._become(ProducerIdentity(answer.producer_id, answer.producer_epoch))
        return self.identity

    async def _leave_behind(self, places: Sequence[TopicPartition]) -> None:
        """Begin a new epoch, which in v1 the end of a transaction does not.

        What is on its way there still must not begin a transaction that nobody ends. So the new epoch is made known in
        these places, by a transaction without records: it ends what has come, and fences what is to come.
        """
        await self._begin_as(self.identity)  # if somebody else has the transactional id by now, we are told so
        await self.coordinator.ask(self.enrolling(places), added_codes, version_at_most=ADD_PARTITIONS)
        await self.coordinator.ask(self.ending(False), one_code, version_at_most=END_V1, is_repeatable=False)

    def _become(self, identity: ProducerIdentity) -> None:
        if identity != self.identity:  # a new epoch counts its batches from 0
            self._sequences.clear()
            self._in_doubt.clear()
        self.identity = identity
        self._enrolled.clear()
        self._enrolled_groups.clear()

    async def _deliver(self, place: TopicPartition, batch: Buffer) -> int:
        client = self._client

        async def once() -> Any:
            view = await client.topic(place.topic)
            leader = client.metadata.leader_in(view, place.partition).leader
            patience_ms = client.settings.request_timeout_ms
            request = requests.produce(view, place.partition, batch, -1, patience_ms, self.transactional_id)
            answer = await self._hand_over(place, request, leader)
            code, words = first_error(answer)
            if code in PASSING:
                raise error_of(code, words)
            return answer

        ((_, answer),) = partitions_of(await client.persist(once, about=place.topic))
        check(answer.error_code, answer.error_message)
        return int(answer.base_offset)

    async def _hand_over(self, place: TopicPartition, request: Message, leader: int) -> Any:
        """One try. What is said of this one takes no doubt away that an earlier one has left."""
        was_in_doubt = place in self._in_doubt
        self._in_doubt[place] = None
        is_known = False
        try:
            at_most = PRODUCE_V1 if self.is_v1 else None
            answer = await self._client.send(request, node=leader, version_at_most=at_most)
            is_known = first_error(answer)[0] not in UNCERTAIN
        except Exception as error:
            is_known = isinstance(error, KafkaError | Unreachable | TooManyWaiting) or not getattr(
                error, "was_sent", True
            )
            raise
        finally:
            if is_known and not was_in_doubt:
                del self._in_doubt[place]
        return answer

    def _offset_commit(
        self, group: str, offsets: Mapping[TopicPartition, int], generation: int, member: str
    ) -> Message:
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


def by_topic(places: Iterable[TopicPartition]) -> list[tuple[str, list[TopicPartition]]]:
    return [(topic, list(chosen)) for topic, chosen in groupby(sorted(places), key=lambda each: each.topic)]


def added_codes(answer: Any) -> list[int]:
    """The error codes of AddPartitionsToTxn as clients ask it."""
    return [
        each.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for each in topic.results_by_partition
    ]


def committed_codes(answer: Any) -> list[int]:
    """The error codes of TxnOffsetCommit."""
    return [each.error_code for topic in answer.topics for each in topic.partitions]
