"""A shard of the share coordinator: a partition of `__share_group_state` and the machine on it."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Set
from typing import Final

from moldau.broker.coordinators.host import CoordinatorHost
from moldau.broker.coordinators.shard import CoordinatorShard
from moldau.broker.coordinators.uncompacted_log import UncompactedLog
from moldau.broker.partitions.partition import Partition
from moldau.broker.shares.record_serde import ShareStateCoding
from moldau.machines.metadata.image import MetadataImage
from moldau.machines.share_state import PruneLog, Record, ShareStateMachine
from moldau.model.errors import KafkaError
from moldau.model.ids import TopicId
from moldau.records.compression import Compression

logger = logging.getLogger(__name__)

LOAD_CHECK_S: Final = 0.5  # between checks whether the shard is loaded
WRITE_RETRY_S: Final = 5.0  # after a failed write; each attempt reloads the shard


class ShareStateShard(CoordinatorShard[ShareStateMachine, Record]):
    """`commit` and `read` raise while the shard is loading."""

    def __init__(
        self,
        partition: Partition,
        broker: CoordinatorHost,
        newest_image: Callable[[], MetadataImage | None],
        on_failure: Callable[[str, BaseException], None],
    ) -> None:
        self._newest_image = newest_image
        settings = broker.settings
        log: UncompactedLog[Record] = UncompactedLog(
            partition,
            ShareStateCoding(),
            broker.clock,
            broker.executor,
            Compression(settings.share_coordinator_state_topic_compression_codec),
            read_bytes=settings.share_coordinator_load_buffer_size,
        )
        super().__init__(
            partition,
            broker,
            log,
            self._new_machine,
            on_failure,
            kind="share partition",
            commit_ms_max=lambda: broker.settings.share_coordinator_write_timeout_ms,
            perform=self._perform,
        )
        self._deleted_topics: set[TopicId] = set()  # deleted topics whose states may not all be deleted

    def _new_machine(self) -> ShareStateMachine:
        now = self.now
        return ShareStateMachine(
            self._broker.settings,
            wall_offset_ms=now.wall_ms - now.ms,
            image=lambda: self._broker.image,
            newest_image=self._newest_image,
        )

    def _perform(self, effect: object) -> None:
        """The records before the oldest snapshot are deleted together with their segments by the next retention run."""
        assert isinstance(effect, PruneLog)
        self._partition.delete_before(effect.offset)

    async def topics_deleted(self, topic_ids: Iterable[TopicId]) -> None:
        """Delete the topics' states, retrying until the shard is loaded and its log is writable."""
        self._deleted_topics.update(topic_ids)
        while self._deleted_topics:
            deleted = frozenset(self._deleted_topics)
            if not self.is_ready:
                await asyncio.sleep(LOAD_CHECK_S)
                continue
            try:
                if await self._delete_states(deleted):
                    self._deleted_topics -= deleted
            except KafkaError as error:
                logger.warning("%s: deleting states of deleted topics failed, will retry: %s", self.name, error)
                await asyncio.sleep(WRITE_RETRY_S)

    async def _delete_states(self, topic_ids: Set[TopicId]) -> bool:
        """Delete one decision's worth of states; return whether none are left."""
        is_all: bool = await self.commit(lambda machine: machine.decide_topics_deleted(topic_ids))
        return is_all

    def resign(self) -> None:
        self._deleted_topics.clear()  # the next coordinator finds them when it loads the shard
        super().resign()
