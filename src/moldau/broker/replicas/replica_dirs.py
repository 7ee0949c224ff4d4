"""Reports to the controller in which log dir each replica of this node is, where the metadata say otherwise (KIP-858).

The controller takes the replicas of an offline log dir out of their ISRs, so it must know them.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from moldau.broker.partitions.partition import Partition
from moldau.broker.runtime.log_dirs import LogDirs
from moldau.machines.metadata.image import PartitionImage
from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.ids import NO_DIRECTORY, UNASSIGNED_DIRECTORY, DirectoryId, TopicId
from moldau.wire.messages import AssignReplicasToDirsRequest, AssignReplicasToDirsResponse

logger = logging.getLogger(__name__)

PARTITIONS_PER_REQUEST_MAX: Final = 1000
RETRY_MS: Final = 500.0

Request = AssignReplicasToDirsRequest


class ReplicaDirs:
    """Repeats each report until the controller accepts it, or the replica is gone."""

    def __init__(
        self,
        node_id: int,
        send_to_controller: Callable[[AssignReplicasToDirsRequest], Awaitable[AssignReplicasToDirsResponse]],
        broker_epoch: Callable[[], int],
        failed: Callable[[str, BaseException], None],
        log_dirs: LogDirs,
    ) -> None:
        self._node_id = node_id
        self._send_to_controller = send_to_controller
        self._broker_epoch = broker_epoch
        self._failed = failed
        self._log_dirs = log_dirs
        self._misplaced: dict[tuple[TopicId, int], Partition] = {}
        self._moving: dict[Partition, DirectoryId] = {}  # the log dirs of logs that are about to move
        self._task: asyncio.Task[None] | None = None

    def check(self, partition: Partition, state: PartitionImage) -> None:
        """Report the log dir of this replica if the metadata have another one."""
        actual, known = self._directory_of(partition), state.directory_of(self._node_id)
        key = partition.topic_id, partition.name.partition
        if actual is None or actual == known or self._is_obvious(known):
            self._misplaced.pop(key, None)
            return
        self._misplaced[key] = partition
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def announce(self, partition: Partition, directory: DirectoryId | None) -> None:
        """The log is about to move to this log dir, or has moved or stays with None."""
        if directory is None:
            self._moving.pop(partition, None)
        else:
            self._moving[partition] = directory

    def _directory_of(self, partition: Partition) -> DirectoryId | None:
        return self._moving.get(partition) or self._log_dirs.id_of(partition.log.folder)

    def _is_obvious(self, known: bytes) -> bool:
        """Whether there is only one log dir, and no other was named."""
        return len(self._log_dirs.ids) == 1 and known in (NO_DIRECTORY, UNASSIGNED_DIRECTORY)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            await asyncio.sleep(0)  # partitions that are created together share a request
            while self._misplaced:
                if self._broker_epoch() < 0 or not await self._report(self._take()):
                    await asyncio.sleep(RETRY_MS / 1000)
        except Exception as error:
            self._failed("Cannot report the log dirs of replicas", error)
        finally:
            self._task = None

    def _take(self) -> list[Partition]:
        for key, partition in list(self._misplaced.items()):
            if not partition.role.is_open:
                del self._misplaced[key]
        return list(self._misplaced.values())[:PARTITIONS_PER_REQUEST_MAX]

    async def _report(self, partitions: list[Partition]) -> bool:
        """Return whether the controller accepted all of them."""
        try:
            response = await self._send_to_controller(self._request(partitions))
        except (KafkaError, OSError) as error:
            logger.debug("Reporting the log dirs of %d replicas failed: %s", len(partitions), error)
            return False
        accepted = 0
        for directory in response.directories:
            for topic in directory.topics:
                for result in topic.partitions:
                    if result.error_code == ErrorCode.NONE:
                        accepted += 1
                        self._misplaced.pop((TopicId(topic.topic_id), result.partition_index), None)
        return accepted == len(partitions)

    def _request(self, partitions: Iterable[Partition]) -> AssignReplicasToDirsRequest:
        by_directory: dict[DirectoryId, dict[TopicId, list[Request.PartitionData]]] = {}
        for each in partitions:
            actual = self._directory_of(each)
            if actual is not None:
                topics = by_directory.setdefault(actual, {})
                topics.setdefault(each.topic_id, []).append(Request.PartitionData(partition_index=each.name.partition))
        return Request(
            broker_id=self._node_id,
            broker_epoch=self._broker_epoch(),
            directories=[
                Request.DirectoryData(
                    id_=directory,
                    topics=[Request.TopicData(topic_id=topic_id, partitions=each) for topic_id, each in topics.items()],
                )
                for directory, topics in by_directory.items()
            ],
        )
