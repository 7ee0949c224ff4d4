"""Corrupt replicas of this node: reported to the controller as lost, so that they leave the ISR and are refetched."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from moldau.machines.metadata.replica_dirs import LOST
from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.ids import TopicId
from moldau.wire.messages import AssignReplicasToDirsRequest, AssignReplicasToDirsResponse

logger = logging.getLogger(__name__)

PARTITIONS_PER_REQUEST_MAX: Final = 1000
RETRY_MS: Final = 1000.0

Copy = tuple[TopicId, int]
Request = AssignReplicasToDirsRequest


class LostReplicas:
    """Repeats the report until the controller accepts it. It rejects it while no other replica has all records."""

    def __init__(
        self,
        node_id: int,
        send_to_controller: Callable[[AssignReplicasToDirsRequest], Awaitable[AssignReplicasToDirsResponse]],
        broker_epoch: Callable[[], int],
        failed: Callable[[str, BaseException], None],
    ) -> None:
        self._node_id = node_id
        self._send_to_controller = send_to_controller
        self._broker_epoch = broker_epoch
        self._failed = failed
        self._lost: dict[Copy, None] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, topic_id: TopicId, index: int) -> None:
        self._lost[topic_id, index] = None
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def remove(self, topic_id: TopicId, index: int) -> None:
        """The replica was removed, or is being fetched again."""
        self._lost.pop((topic_id, index), None)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while self._lost:
                if self._broker_epoch() >= 0:
                    await self._report(list(self._lost)[:PARTITIONS_PER_REQUEST_MAX])
                await asyncio.sleep(RETRY_MS / 1000)
        except Exception as error:
            self._failed("Cannot report corrupt replicas", error)
        finally:
            self._task = None

    async def _report(self, copies: list[Copy]) -> None:
        try:
            response = await self._send_to_controller(self._request(copies))
        except (KafkaError, OSError) as error:
            logger.debug("Reporting %d corrupt replicas failed: %s", len(copies), error)
            return
        for directory in response.directories:
            for topic in directory.topics:
                for result in topic.partitions:
                    self._handle_result((TopicId(topic.topic_id), result.partition_index), result.error_code)

    def _handle_result(self, copy: Copy, code: int) -> None:
        if copy in self._lost:
            del self._lost[copy]
            if code != ErrorCode.NONE:  # to the end of the queue: there may be more than fit one request
                self._lost[copy] = None

    def _request(self, copies: list[Copy]) -> AssignReplicasToDirsRequest:
        topics: dict[TopicId, list[Request.PartitionData]] = {}
        for topic_id, index in copies:
            topics.setdefault(topic_id, []).append(Request.PartitionData(partition_index=index))
        lost = Request.DirectoryData(
            id_=LOST,
            topics=[Request.TopicData(topic_id=topic_id, partitions=each) for topic_id, each in topics.items()],
        )
        return Request(broker_id=self._node_id, broker_epoch=self._broker_epoch(), directories=[lost])
