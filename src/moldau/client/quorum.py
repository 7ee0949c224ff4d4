"""The metadata quorum from outside: who votes, who leads, who is how far behind, and changing who votes."""

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from moldau.client.async_client import AsyncClient
from moldau.client.errors import NOBODY_CONTROLS, check
from moldau.model.ids import NO_DIRECTORY, Address
from moldau.model.protocol import KRAFT_VERSION, METADATA_TOPIC
from moldau.model.units import SECOND_MS
from moldau.wire.messages import (
    AddRaftVoterRequest,
    DescribeQuorumRequest,
    RemoveRaftVoterRequest,
    UpdateFeaturesRequest,
)

KRAFT_VERSION_FEATURE: Final = "kraft.version"
UPGRADE: Final = 1
UNKNOWN_TIME_MS: Final = -1
LOOKS_MAX: Final = 10
LOOK_AGAIN_S: Final = 0.5
HEARD_WITHIN_MS: Final = 2 * SECOND_MS  # whoever follows the quorum asks at least twice a second
CAUGHT_UP_WITHIN_MS: Final = 15 * SECOND_MS  # less than brokers wait for a controller, so that we hear what is wrong


@dataclass(frozen=True, slots=True)
class QuorumReplica:
    """Somebody with a copy of the metadata log; times are -1 where the leader has not heard from it."""

    node_id: int
    directory_id: bytes
    end_offset: int
    last_fetch_ms: int = UNKNOWN_TIME_MS
    last_caught_up_ms: int = UNKNOWN_TIME_MS
    listeners: tuple[tuple[str, Address], ...] = ()


@dataclass(frozen=True, slots=True)
class QuorumView:
    """The quorum as its leader sees it."""

    leader_id: int
    epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]

    @property
    def end_offset(self) -> int:
        """Of the leader's log."""
        return max((each.end_offset for each in self.voters if each.node_id == self.leader_id), default=-1)

    def lag(self, replica: QuorumReplica) -> int | None:
        """How many records it lacks; None where the leader does not know."""
        return max(self.end_offset - replica.end_offset, 0) if replica.end_offset >= 0 else None

    def behind_ms(self, replica: QuorumReplica) -> int | None:
        """For how long it has not had all that the leader has; None where the leader does not know."""
        now_ms = max((each.last_caught_up_ms for each in (*self.voters, *self.observers)), default=UNKNOWN_TIME_MS)
        is_known = replica.last_caught_up_ms > 0 and now_ms > 0
        return now_ms - replica.last_caught_up_ms if is_known else None

    def is_heard(self, replica: QuorumReplica) -> bool:
        """Whether it asks just now. A data folder that was lost is remembered for a while."""
        now_ms = max((each.last_fetch_ms for each in (*self.voters, *self.observers)), default=UNKNOWN_TIME_MS)
        return replica.last_fetch_ms > now_ms - HEARD_WITHIN_MS


class Quorum:
    """What a client may ask of the controllers. Brokers pass it on to them."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client

    async def describe(self) -> QuorumView:
        """As the active controller tells it."""

        async def ask() -> QuorumView:
            answer = await self.client.send(_question())
            check(answer.error_code, answer.error_message)
            (topic,) = answer.topics
            (partition,) = topic.partitions
            check(partition.error_code, partition.error_message)
            return _view(partition, answer.nodes or ())

        return await self.client.persist(ask, final=NOBODY_CONTROLS)

    async def newcomers(self, node_id: int) -> list[QuorumReplica]:
        """The observers of this id that ask just now, one for each data folder.

        One that just starts is waited for, and so is the end of one that was lost: a node has one folder in the end.
        """
        for look in range(LOOKS_MAX):
            if look:
                await asyncio.sleep(LOOK_AGAIN_S)
            view = await self.describe()
            heard = [each for each in view.observers if each.node_id == node_id and view.is_heard(each)]
            if len(heard) == 1:
                break
        return heard

    async def add_controller(
        self, node_id: int, directory_id: bytes, listeners: tuple[tuple[str, Address], ...], *, cluster_id: str | None
    ) -> None:
        """Make a controller that runs, and has caught up, a voter."""
        timeout_ms = min(CAUGHT_UP_WITHIN_MS, self.client.settings.request_timeout_ms)
        await self._change(_add_request(node_id, directory_id, listeners, cluster_id, timeout_ms))

    async def remove_controller(self, node_id: int, directory_id: bytes, *, cluster_id: str | None) -> None:
        """A voter votes no more."""
        await self._change(
            RemoveRaftVoterRequest(cluster_id=cluster_id, voter_id=node_id, voter_directory_id=directory_id)
        )

    async def write_voters_down(self) -> None:
        """The voters that `controller.quorum.voters` fixes are put into the log, where they may change."""
        update = UpdateFeaturesRequest.FeatureUpdateKey(
            feature=KRAFT_VERSION_FEATURE, max_version_level=KRAFT_VERSION, upgrade_type=UPGRADE
        )
        timeout_ms = self.client.settings.request_timeout_ms
        await self._change(UpdateFeaturesRequest(timeout_ms=timeout_ms, feature_updates=[update]))

    async def _change(self, request: Any) -> None:
        """A refusal that passes (a controller that just starts) is tried again; what may have been done is not."""

        async def ask() -> None:
            answer = await self.client.send(request)
            check(answer.error_code, answer.error_message)

        await self.client.persist(ask, is_repeatable=False)


def _question() -> Any:
    request = DescribeQuorumRequest
    partition = request.PartitionData(partition_index=0)
    return request(topics=[request.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])])


def _add_request(
    node_id: int,
    directory_id: bytes,
    listeners: tuple[tuple[str, Address], ...],
    cluster_id: str | None,
    timeout_ms: int,
) -> Any:
    request = AddRaftVoterRequest
    return request(
        cluster_id=cluster_id,
        timeout_ms=timeout_ms,
        voter_id=node_id,
        voter_directory_id=directory_id,
        listeners=[request.Listener(name=name, host=where.host, port=where.port) for name, where in listeners],
    )


def _view(partition: Any, nodes: Any) -> QuorumView:
    listeners = {
        node.node_id: tuple((each.name, Address(each.host, each.port)) for each in node.listeners) for node in nodes
    }
    return QuorumView(
        partition.leader_id,
        partition.leader_epoch,
        partition.high_watermark,
        tuple(_replica(each, listeners) for each in _ordered(partition.current_voters)),
        tuple(_replica(each, listeners) for each in _ordered(partition.observers)),
    )


def _ordered(states: Any) -> Any:
    return sorted(states, key=lambda each: (each.replica_id, each.replica_directory_id))


def _replica(state: Any, listeners: dict[int, tuple[tuple[str, Address], ...]]) -> QuorumReplica:
    return QuorumReplica(
        state.replica_id,
        bytes(state.replica_directory_id or NO_DIRECTORY),
        state.log_end_offset,
        state.last_fetch_timestamp,
        state.last_caught_up_timestamp,
        listeners.get(state.replica_id, ()),
    )
