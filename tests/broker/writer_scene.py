"""Transactional writers and read-committed readers, on one broker."""

from collections.abc import Callable, Coroutine
from typing import Any

from broker_scene import Scene, Talker, batch, fetch, on_broker, produce_request
from transaction_scene import FEW_PARTITIONS, Producer, find

from moldau.model.errors import ErrorCode
from moldau.records.record import iterate_batches, iterate_records
from moldau.wire.messages import ListOffsetsRequest, OffsetFetchRequest, TxnOffsetCommitRequest

NONE = ErrorCode.NONE
OFFSETS_FEW = "offsets.topic.num.partitions=3"
READ_COMMITTED = 1
LATEST = -1
NOW_MS = 1_760_000_000_000  # the simulated clock's time: markers carry it, and a segment does not span years


class Writer(Producer):
    """A producer that also writes; with transaction version 1 it adds partitions first, with version 2 it does not."""

    def __init__(self, scene: Scene, talker: Talker, transactional_id: str = "t", version: int = 2) -> None:
        async def reach(transactional_id: str) -> Talker:  # noqa: ARG001 - there is one broker
            return await scene.connect()

        super().__init__(reach, transactional_id, version)
        self.talker = talker
        self.sequences: dict[int, int] = {}

    def batch(self, *values: bytes, partition: int = 0, **fields: Any) -> bytearray:
        first = self.sequences.get(partition, 0)
        known = {
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
            "base_sequence": first,
            "is_transactional": True,
            "timestamp": NOW_MS,
        }
        return batch(*values, **(known | fields))

    async def send(self, *values: bytes, partition: int = 0, version: int | None = None, **fields: Any) -> Any:
        request = produce_request("t", self.batch(*values, partition=partition, **fields), partition=partition)
        request.transactional_id = self.transactional_id
        response = await self.talker.ask(version or (12 if self.version == 2 else 9), request)
        result = response.responses[0].partition_responses[0]
        if not result.error_code:
            self.sequences[partition] = self.sequences.get(partition, 0) + len(values)
        return result

    async def write(self, *values: bytes, partition: int = 0) -> int:
        """Write as the transaction version requires; return the base offset."""
        if self.version == 1:
            assert await self.add(("t", partition)) is NONE
        response = await self.send(*values, partition=partition)
        assert response.error_code == 0, ErrorCode(response.error_code)
        return int(response.base_offset)

    async def finish(self, *, is_commit: bool = True) -> None:
        assert await self.end(is_commit=is_commit) is NONE
        await self.until("CompleteCommit" if is_commit else "CompleteAbort")
        if self.version == 2:
            self.sequences.clear()

    async def commit_offset(self, offset: int, group_id: str = "g", version: int | None = None, **fields: Any) -> Any:
        part = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata="m"
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name="t", partitions=[part])],
            **fields,
        )
        response = await self.talker.ask(version if version is not None else (5 if self.version == 2 else 3), request)
        return ErrorCode(response.topics[0].partitions[0].error_code)


def play(script: Callable[[Scene, Writer], Coroutine[Any, Any, None]], version: int = 2, *settings: str) -> None:
    async def whole(scene: Scene) -> None:
        await scene.create("t", partitions=2)
        talker = await scene.connect()
        assert (await find(talker, "t")).error_code == 0
        writer = Writer(scene, talker, version=version)
        assert await writer.init() is NONE
        await script(scene, writer)

    on_broker(whole, settings=[*FEW_PARTITIONS, OFFSETS_FEW, *settings])


async def values(
    talker: Talker, *, isolation: int = READ_COMMITTED, offset: int = 0, partition: int = 0
) -> list[bytes]:
    """Return what a consumer shows, without control records and aborted transactions."""
    response = await fetch(talker, "t", offset, isolation_level=isolation, partition=partition)
    assert response.error_code == 0
    upcoming = sorted((each.first_offset, each.producer_id) for each in response.aborted_transactions or ())
    dropped: set[int] = set()
    shown: list[bytes] = []
    for header, data in iterate_batches(response.records):
        while isolation == READ_COMMITTED and upcoming and upcoming[0][0] <= header.last_offset:
            dropped.add(upcoming.pop(0)[1])
        if header.is_control:
            dropped.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in dropped):
            shown += [record.value or b"" for record in iterate_records(data)]
    return shown


async def stable_end(talker: Talker) -> int:
    requested = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=LATEST)
    topics = [ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[requested])]
    response = await talker.ask(7, ListOffsetsRequest(replica_id=-1, isolation_level=READ_COMMITTED, topics=topics))
    return int(response.topics[0].partitions[0].offset)


async def committed(talker: Talker, *, require_stable: bool = False, group_id: str = "g") -> tuple[int, ErrorCode]:
    topic = OffsetFetchRequest.OffsetFetchRequestTopics(name="t", partition_indexes=[0])
    group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group_id, topics=[topic])
    response = await talker.ask(8, OffsetFetchRequest(groups=[group], require_stable=require_stable))
    (group,) = response.groups
    if not group.topics:  # an error of the whole group
        return -1, ErrorCode(group.error_code)
    (offset,) = group.topics[0].partitions
    return offset.committed_offset, ErrorCode(offset.error_code)
