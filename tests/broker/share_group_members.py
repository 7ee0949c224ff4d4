"""Members of share groups over the wire."""

import asyncio
from typing import Any

from broker_scene import Scene, Talker
from group_members import find_coordinator

from moldau.model.errors import ErrorCode
from moldau.wire import messages

HEARTBEAT = messages.ShareGroupHeartbeatRequest
TOPIC = "t"
JOINING, LEAVING = 0, -1
COORDINATOR_MOVED = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
)


class ShareMember:
    """A member of a share group, with its own connection."""

    def __init__(self, talker: Talker, member_id: str, group_id: str = "g", topics: tuple[str, ...] = (TOPIC,)) -> None:
        self.talker = talker
        self.member_id = member_id
        self.group_id = group_id
        self.topics = list(topics)
        self.epoch = JOINING
        self.assigned: dict[bytes, list[int]] = {}
        self.last: Any = None

    async def beat(self, epoch: int | None = None) -> ErrorCode:
        """Send one heartbeat; a joining one has the subscription."""
        sent = self.epoch if epoch is None else epoch
        request = HEARTBEAT(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=sent,
            subscribed_topic_names=self.topics if sent == JOINING else None,
        )
        response = self.last = await self.talker.ask(1, request)
        if response.error_code == 0 and sent != LEAVING:
            self.epoch = response.member_epoch
            if response.assignment is not None:
                self.assigned = {each.topic_id: list(each.partitions) for each in response.assignment.topic_partitions}
        return ErrorCode(response.error_code)

    def partitions(self) -> list[int]:
        return sorted(index for indexes in self.assigned.values() for index in indexes)

    async def wait_for(self, partitions: list[int], seconds: float = 60) -> None:
        """Send heartbeats at the requested interval until these are assigned."""
        async with asyncio.timeout(seconds):
            while self.partitions() != partitions:
                code = await self.beat()
                assert code is ErrorCode.NONE or code in COORDINATOR_MOVED, self.last
                await asyncio.sleep((self.last.heartbeat_interval_ms or 500) / 1000)


async def ready(scene: Scene, partitions: int = 3) -> Talker:
    """A topic, and a group coordinator."""
    await scene.create(TOPIC, partitions=partitions)
    talker = await scene.connect()
    await find_coordinator(talker)
    return talker
