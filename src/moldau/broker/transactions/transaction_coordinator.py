"""The transaction coordinator: one shard for each partition of `__transaction_state` that this node leads."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from moldau.broker.coordinators.host import CoordinatorHost
from moldau.broker.coordinators.shards import Shards
from moldau.broker.internal_topics import STATE_TOPIC
from moldau.broker.transactions.add_partitions import AddPartitionsChannel
from moldau.broker.transactions.markers import Markers
from moldau.broker.transactions.shard import FATAL_ERRORS, TransactionShard
from moldau.broker.transactions.state_topic import new_state_topic
from moldau.machines.metadata.delta import MetadataDelta
from moldau.machines.metadata.image import MetadataImage
from moldau.machines.transactions import ProducerIdentity
from moldau.model.errors import CoordinatorLoadInProgress, ErrorCode
from moldau.model.ids import TopicPartition

BACKLOG_MAX: Final = 1_000_000
"""Limit of queued markers; beyond it, EndTxn fails with a retriable error."""


class Transactions:
    """Finds the shard of a transactional id, and handles requests of clients and partitions with it."""

    def __init__(self, broker: CoordinatorHost, on_failure: Callable[[str, BaseException], None]) -> None:
        self._broker = broker
        self.markers = Markers(broker, on_failure)
        self.add_partitions_channel = AddPartitionsChannel(broker)
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
        self.markers.update_image(image)
        await self._shards.follow(image, delta)

    def start(self) -> None:
        """The metadata of this run is complete: a missing topic is a deleted one."""
        self.markers.start()

    async def init_producer(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdentity | None
    ) -> ProducerIdentity:
        """Initialize a producer: fence earlier ones, or bump the epoch of the `expected` one after an error."""
        shard = self.shard_for(transactional_id)
        try:
            return await shard.commit_with_id(
                lambda machine, fresh: machine.decide_init_producer_id(
                    transactional_id, timeout_ms, expected=expected, new_producer_id=fresh, now=shard.now
                )
            )
        except FATAL_ERRORS as error:
            raise await shard.confirm_error(error) from None

    async def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Sequence[TopicPartition],
        *,
        client_version: int,
    ) -> None:
        """Add all partitions to the transaction, or none and raise the error."""
        shard = self.shard_for(transactional_id)
        try:
            await shard.commit(
                lambda machine: machine.decide_add_partitions(
                    transactional_id, producer, partitions, client_version=client_version, now=shard.now
                )
            )
        except FATAL_ERRORS as error:
            raise await shard.confirm_error(error) from None

    async def verify_partitions(
        self, transactional_id: str, producer: ProducerIdentity, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Verify that the partitions are in the producer's open transaction, with a leadership check.

        A partition that trusts a stale coordinator would append a batch that never gets a marker.
        """
        shard = self.shard_for(transactional_id)
        try:
            codes = await shard.read(lambda machine: machine.verify_partitions(transactional_id, producer, partitions))
        except FATAL_ERRORS as error:
            raise await shard.confirm_error(error) from None
        await shard.ensure_leadership()
        return codes

    async def end(
        self, transactional_id: str, producer: ProducerIdentity, *, is_commit: bool, client_version: int
    ) -> ProducerIdentity:
        """Commit or abort; return the producer's id and epoch for the next transaction."""
        shard = self.shard_for(transactional_id)
        if self.markers.backlog >= BACKLOG_MAX:
            raise CoordinatorLoadInProgress("Too many transaction markers are queued; retry.")
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
        except FATAL_ERRORS as error:
            raise await shard.confirm_error(error) from None

    async def close(self) -> None:
        """Write pending decisions. The next coordinator sends the unwritten markers again."""
        await self.add_partitions_channel.close()
        await self.markers.close()
        await self._shards.close()
