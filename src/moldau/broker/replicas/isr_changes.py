"""ISR changes proposed by leaders on this node: batched into AlterPartition requests, one at a time, with retries."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from moldau.broker.partitions.leader_role import LeaderRole
from moldau.client.errors import error_of
from moldau.machines.replication import ProposeIsr
from moldau.model.errors import ErrorCode, KafkaError
from moldau.model.ids import TopicId
from moldau.wire.messages import AlterPartitionRequest, AlterPartitionResponse

logger = logging.getLogger(__name__)

PARTITIONS_PER_REQUEST_MAX: Final = 1000
RETRY_FIRST_MS: Final = 20.0
RETRY_LONGEST_MS: Final = 1000.0

SendIsrChanges = Callable[[AlterPartitionRequest], Awaitable[AlterPartitionResponse]]
Change = tuple[LeaderRole, ProposeIsr]


class IsrChanges:
    """The proposing machine always gets a result: the controller's response, or the failure."""

    def __init__(
        self,
        node_id: int,
        send_to_controller: SendIsrChanges,
        broker_epoch: Callable[[], int],
        failed: Callable[[str, BaseException], None],
    ) -> None:
        self._node_id = node_id
        self._failed = failed
        self._send_to_controller = send_to_controller
        self._broker_epoch = broker_epoch
        self._waiting: dict[tuple[TopicId, int], Change] = {}  # at most one per partition, the newest
        self._task: asyncio.Task[None] | None = None
        self._failures = 0
        self.shrinks = 0
        self.expands = 0
        self.failed_updates = 0

    def propose(self, leading: LeaderRole, proposal: ProposeIsr) -> None:
        partition = leading.partition
        self._waiting[partition.topic_id, partition.name.partition] = leading, proposal
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        """Proposals of one turn of the loop, or made while a request is in flight, share one request."""
        try:
            while self._waiting:
                await self._pause()
                sent = self._take()
                if sent:
                    await self._send(sent)
        except Exception as error:
            self._failed("Cannot propose ISR changes", error)
        finally:
            self._task = None

    async def _pause(self) -> None:
        if self._failures:
            await asyncio.sleep(min(RETRY_FIRST_MS * 2 ** min(self._failures - 1, 10), RETRY_LONGEST_MS) / 1000)
        else:
            await asyncio.sleep(0)

    def _take(self) -> list[Change]:
        taken: list[Change] = []
        for key in list(self._waiting)[:PARTITIONS_PER_REQUEST_MAX]:
            leading, proposal = self._waiting.pop(key)
            if leading.partition.role.leading is leading and leading.machine.proposal is proposal:
                taken.append((leading, proposal))
        return taken

    async def _send(self, sent: list[Change]) -> None:
        # the new ISRs may be published here before the response arrives
        sizes = [len(leading.machine.isr) for leading, _ in sent]
        try:
            response = await self._send_to_controller(self._request(sent))
            code = error_of(response.error_code).code
        except (KafkaError, OSError) as error:
            logger.debug("AlterPartition for %d partitions failed: %s", len(sent), error)
            response, code = None, ErrorCode.REQUEST_TIMED_OUT
        if response is None or code is not ErrorCode.NONE:
            self._failures += 1
            self.failed_updates += len(sent)
            for leading, proposal in sent:
                leading.isr_rejected(proposal, code)
            return
        self._failures = 0
        self._apply_results(sent, sizes, response)

    def _request(self, sent: list[Change]) -> AlterPartitionRequest:
        topics: dict[TopicId, list[AlterPartitionRequest.PartitionData]] = {}
        for leading, proposal in sent:
            requested = AlterPartitionRequest.PartitionData(
                partition_index=leading.partition.name.partition,
                leader_epoch=proposal.leader_epoch,
                new_isr_with_epochs=[
                    AlterPartitionRequest.BrokerState(
                        broker_id=broker, broker_epoch=self._broker_epoch() if broker == self._node_id else epoch
                    )
                    for broker, epoch in zip(proposal.isr, proposal.broker_epochs, strict=True)
                ],
                partition_epoch=proposal.partition_epoch,
            )
            topics.setdefault(leading.partition.topic_id, []).append(requested)
        return AlterPartitionRequest(
            broker_id=self._node_id,
            broker_epoch=self._broker_epoch(),
            topics=[
                AlterPartitionRequest.TopicData(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in topics.items()
            ],
        )

    def _apply_results(self, sent: list[Change], sizes: list[int], response: AlterPartitionResponse) -> None:
        results = {
            (topic.topic_id, each.partition_index): each for topic in response.topics for each in topic.partitions
        }
        for (leading, proposal), size in zip(sent, sizes, strict=True):
            result = results.get((leading.partition.topic_id, leading.partition.name.partition))
            code = ErrorCode.UNKNOWN_SERVER_ERROR if result is None else error_of(result.error_code).code
            if result is None or code is not ErrorCode.NONE:
                self.failed_updates += 1
                logger.info("%s: ISR %s rejected: %s", leading.partition.name, proposal.isr, code.name)
                leading.isr_rejected(proposal, code)
            else:
                self.shrinks += len(result.isr) < size
                self.expands += len(result.isr) > size
                self._changed(leading, proposal, result)

    def _changed(self, leading: LeaderRole, proposal: ProposeIsr, result: AlterPartitionResponse.PartitionData) -> None:
        logger.info("%s: ISR changed to %s", leading.partition.name, list(result.isr))
        leading.isr_accepted(proposal, result.partition_epoch, tuple(result.isr))
