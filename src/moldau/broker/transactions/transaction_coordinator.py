"""Who coordinates which transactional id here: a shard for each partition of the state topic that this node leads."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from moldau.broker.coordinators.host import CoordinatorHost
from moldau.broker.coordinators.shards import Shards
from moldau.broker.internal_topics import STATE_TOPIC
from moldau.broker.transactions.add_partitions import Enrolment
from moldau.broker.transactions.markers import Markers
from moldau.broker.transactions.shard import FINAL, TransactionShard
from moldau.broker.transactions.state_topic import new_state_topic
from moldau.machines.metadata.delta import MetadataDelta
from moldau.machines.metadata.image import MetadataImage
from moldau.machines.transactions import ProducerIdentity
from moldau.model.errors import CoordinatorLoadInProgress, ErrorCode
from moldau.model.ids import TopicPartition

BACKLOG_MAX: Final = 1_000_000
"""Markers that may wait to be written; beyond it, transactions are not ended by clients, who try again."""


class Transactions:
    """Finds the shard of a transactional id, and asks it on behalf of clients and of partitions."""

    def __init__(self, broker: CoordinatorHost, on_failure: Callable[[str, BaseException], None]) -> None:
        self._broker = broker
        self.markers = Markers(broker, on_failure)
        self.enrolment = Enrolment(broker)
        self._shards: Shards[TransactionShard] = Shards(
            broker,
            STATE_TOPIC,
            new_state_topic,
            lambda partition: TransactionShard(partition, broker, self.markers, on_failure),
            on_failure,
        )
        self.shard_for = self._shards.shard_of
        self.shards = self._shards.all
        self.coordinator_of = self._shards.coordinator_of

    async def follow(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Called when the partitions are in step with the image, before handlers see it."""
        self.markers.see(image)
        await self._shards.follow(image, delta)

    def start(self) -> None:
        """The metadata is here as it was when this life of the broker began, and newer."""
        self.markers.start()

    async def init_producer(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdentity | None
    ) -> ProducerIdentity:
        """A producer begins under a transactional id, or goes on after an error if it is `expected`."""
        shard = self.shard_for(transactional_id)
        try:
            return await shard.commit_with_id(
                lambda machine, fresh: machine.decide_init_producer_id(
                    transactional_id, timeout_ms, expected=expected, new_producer_id=fresh, now=shard.now
                )
            )
        except FINAL as refusal:
            raise await shard.sure(refusal) from None

    async def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Sequence[TopicPartition],
        *,
        client_version: int,
    ) -> None:
        """All of them join the transaction, or none and the refusal is raised."""
        shard = self.shard_for(transactional_id)
        try:
            await shard.commit(
                lambda machine: machine.decide_add_partitions(
                    transactional_id, producer, partitions, client_version=client_version, now=shard.now
                )
            )
        except FINAL as refusal:
            raise await shard.sure(refusal) from None

    async def verify_partitions(
        self, transactional_id: str, producer: ProducerIdentity, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Whether each is part of the transaction that is open: here, and nowhere else by now.

        A partition that believed a former coordinator would take a batch for which no marker is to come.
        """
        shard = self.shard_for(transactional_id)
        try:
            codes = await shard.read(lambda machine: machine.verify_partitions(transactional_id, producer, partitions))
        except FINAL as refusal:
            raise await shard.sure(refusal) from None
        await shard.be_sure()
        return codes

    async def end(
        self, transactional_id: str, producer: ProducerIdentity, *, is_commit: bool, client_version: int
    ) -> ProducerIdentity:
        """Commit or abort; the answer is who the producer is from now on."""
        shard = self.shard_for(transactional_id)
        if self.markers.backlog >= BACKLOG_MAX:
            raise CoordinatorLoadInProgress("Too many markers of transactions wait to be written; try again.")
        try:
            return await shard.commit_with_id(
                lambda machine, fresh: machine.decide_end(
                    transactional_id,
                    producer,
                    is_commit=is_commit,
                    client_version=client_version,
                    new_producer_id=fresh,
                    now=shard.now,
                )
            )
        except FINAL as refusal:
            raise await shard.sure(refusal) from None

    async def close(self) -> None:
        """Write what was decided; markers are sent again by whoever coordinates next."""
        await self.enrolment.close()
        await self.markers.close()
        await self._shards.close()
