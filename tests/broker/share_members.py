"""Members of share groups on a simulated broker, whose share state is kept in memory."""

import asyncio
from collections.abc import Sequence
from typing import Any

from broker_scene import Scene, Talker

from moldau.broker.shares.persister import SharePartitionKey
from moldau.broker.shares.shares import Shares
from moldau.machines.shares.state import UNINITIALIZED_START_OFFSET, ShareState, StateBatch, StateWrite
from moldau.model.errors import FencedLeaderEpoch, KafkaError
from moldau.wire.messages import (
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
MEMBER = "m" * 22
OTHER = "o" * 22
Ranges = Sequence[tuple[int, int, int]]  # first and last offset, type


class StateInMemory:
    """A persister whose writes can be held and made to fail."""

    def __init__(self) -> None:
        self.states: dict[SharePartitionKey, ShareState] = {}
        self.epochs: dict[SharePartitionKey, int] = {}
        self.writes: list[StateWrite] = []
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.read_error: KafkaError | None = None
        self.write_error: KafkaError | None = None

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        self.states[key] = ShareState(state_epoch, start_offset)

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        await asyncio.sleep(0.001)
        if self.read_error is not None:
            raise self.read_error
        self.epochs[key] = max(leader_epoch, self.epochs.get(key, 0))
        return self.states.get(key, ShareState(0, UNINITIALIZED_START_OFFSET))

    async def write(self, key: SharePartitionKey, state_epoch: int, leader_epoch: int, state: StateWrite) -> None:
        await asyncio.sleep(0.001)
        await self.may_write.wait()
        if self.write_error is not None:
            raise self.write_error
        if leader_epoch < self.epochs[key]:
            raise FencedLeaderEpoch
        self.writes.append(state)
        records = {
            offset: (batch.delivery_state, batch.delivery_count)
            for batch in (*self.states.get(key, ShareState(0, 0)).batches, *state.batches)
            for offset in range(batch.first_offset, batch.last_offset + 1)
            if offset >= state.start_offset
        }
        batches = tuple(StateBatch(offset, offset, *each) for offset, each in sorted(records.items()))
        self.states[key] = ShareState(state_epoch, state.start_offset, batches)

    async def delete(self, key: SharePartitionKey) -> None:
        self.states.pop(key, None)


async def serve_shares(scene: Scene) -> StateInMemory:
    """Keep the state of share groups in memory."""
    state = StateInMemory()
    broker = scene.node.broker
    await broker.shares.close()
    broker.shares = Shares(broker, state)
    return state


class Member:
    """A member of a group with one connection, and one topic whose partition it fetches."""

    def __init__(self, talker: Talker, topic_id: bytes, name: str = MEMBER, group: str = "g") -> None:
        self.talker = talker
        self.topic_id = topic_id
        self.name = name
        self.group = group
        self.epoch = 0
        self.version = 2

    def fetch_request(
        self,
        acknowledged: Ranges = (),
        *,
        epoch: int | None = None,
        max_wait_ms: int = 100,
        max_records: int = 500,
        partitions: Sequence[int] = (0,),
        **fields: Any,
    ) -> ShareFetchRequest:
        batches = [
            ShareFetchRequest.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=[kind])
            for first, last, kind in acknowledged
        ]
        wanted = [
            ShareFetchRequest.FetchPartition(
                partition_index=each, acknowledgement_batches=batches if each == partitions[0] else []
            )
            for each in partitions
        ]
        fields = {"min_bytes": 1, "max_bytes": 1 << 20, "batch_size": 500, "is_renew_ack": False, **fields}
        return ShareFetchRequest(
            group_id=self.group,
            member_id=self.name,
            share_session_epoch=self.epoch if epoch is None else epoch,
            max_wait_ms=max_wait_ms,
            max_records=max_records,
            share_acquire_mode=fields.pop("share_acquire_mode", 0),
            topics=[ShareFetchRequest.FetchTopic(topic_id=self.topic_id, partitions=wanted)],
            forgotten_topics_data=[],
            **fields,
        )

    async def fetch_response(self, acknowledged: Ranges = (), **options: Any) -> ShareFetchResponse:
        request = self.fetch_request(acknowledged, **options)
        if request.share_session_epoch == self.epoch:
            self.epoch += 1
        response: ShareFetchResponse = await self.talker.ask(self.version, request)
        return response

    async def fetch(self, acknowledged: Ranges = (), **options: Any) -> Any:
        """Fetch from one partition; return its response, None if it has none."""
        response = await self.fetch_response(acknowledged, **options)
        assert response.error_code == 0, response
        return response.responses[0].partitions[0] if response.responses else None

    async def acquire(self, acknowledged: Ranges = (), **options: Any) -> list[tuple[int, int, int]]:
        """Fetch; return first and last offset and delivery count of what was acquired."""
        found = await self.fetch(acknowledged, **options)
        if found is None:
            return []
        assert (found.error_code, found.acknowledge_error_code) == (0, 0), found
        return [(each.first_offset, each.last_offset, each.delivery_count) for each in found.acquired_records]

    async def acknowledge(self, *acknowledged: tuple[int, int, int], epoch: int | None = None, **fields: Any) -> int:
        """Return the error code of the request or of its partition."""
        batches = [
            ShareAcknowledgeRequest.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=[kind])
            for first, last, kind in acknowledged
        ]
        partition = ShareAcknowledgeRequest.AcknowledgePartition(partition_index=0, acknowledgement_batches=batches)
        request = ShareAcknowledgeRequest(
            group_id=self.group,
            member_id=self.name,
            share_session_epoch=self.epoch if epoch is None else epoch,
            is_renew_ack=fields.get("is_renew_ack", False),
            topics=[ShareAcknowledgeRequest.AcknowledgeTopic(topic_id=self.topic_id, partitions=[partition])],
        )
        if epoch is None:
            self.epoch += 1
        response: ShareAcknowledgeResponse = await self.talker.ask(self.version, request)
        return response.error_code or response.responses[0].partitions[0].error_code


async def member_of(scene: Scene, name: str = MEMBER, topic: str = "t", group: str = "g") -> Member:
    return Member(await scene.connect(), scene.node.broker.image.topics[topic].topic_id, name, group)
