"""Administration of the metadata quorum: voters, leader, lag, voter changes."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from moldau.client.async_client import AsyncClient
from moldau.client.errors import NO_ACTIVE_CONTROLLER, HasErrorMessage, check
from moldau.model.ids import NO_DIRECTORY, Address
from moldau.model.protocol import KRAFT_VERSION, METADATA_TOPIC
from moldau.model.units import SECOND_MS
from moldau.wire.messages import (
    AddRaftVoterRequest,
    DescribeQuorumRequest,
    RemoveRaftVoterRequest,
    Request,
    UpdateFeaturesRequest,
)

if TYPE_CHECKING:
    from moldau.wire.messages import DescribeQuorumResponse

KRAFT_VERSION_FEATURE: Final = "kraft.version"
UPGRADE: Final = 1
UNKNOWN_TIME_MS: Final = -1
ATTEMPTS_MAX: Final = 10
RETRY_S: Final = 0.5
FETCHING_WITHIN_MS: Final = 2 * SECOND_MS  # observers and voters fetch at least twice a second
CAUGHT_UP_WITHIN_MS: Final = 15 * SECOND_MS  # less than brokers wait for a controller, so that its error is reported


@dataclass(frozen=True, slots=True)
class QuorumReplica:
    """A replica of the metadata log; times are -1 if the leader has not received a fetch."""

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
        """The end offset of the leader's log."""
        return max((each.end_offset for each in self.voters if each.node_id == self.leader_id), default=-1)

    def lag(self, replica: QuorumReplica) -> int | None:
        """Return the lag in records; None if unknown."""
        return max(self.end_offset - replica.end_offset, 0) if replica.end_offset >= 0 else None

    def behind_ms(self, replica: QuorumReplica) -> int | None:
        """Return the time since the replica was last caught up; None if unknown."""
        now_ms = max((each.last_caught_up_ms for each in (*self.voters, *self.observers)), default=UNKNOWN_TIME_MS)
        is_known = replica.last_caught_up_ms > 0 and now_ms > 0
        return now_ms - replica.last_caught_up_ms if is_known else None

    def is_fetching(self, replica: QuorumReplica) -> bool:
        """Return whether it fetches now. A lost data directory is remembered for a while."""
        now_ms = max((each.last_fetch_ms for each in (*self.voters, *self.observers)), default=UNKNOWN_TIME_MS)
        return replica.last_fetch_ms > now_ms - FETCHING_WITHIN_MS


class Quorum:
    """Administers the quorum. Brokers forward these requests to the controllers."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client

    async def describe(self) -> QuorumView:
        """Describe the quorum as the active controller does."""

        async def attempt() -> QuorumView:
            response = await self.client.send(_describe_request())
            check(response.error_code, response.error_message)
            (topic,) = response.topics
            (partition,) = topic.partitions
            check(partition.error_code, partition.error_message)
            return _view(partition, response.nodes or ())

        return await self.client.retry(attempt, final=NO_ACTIVE_CONTROLLER)

    async def active_observers(self, node_id: int) -> list[QuorumReplica]:
        """Return the observers with this id that fetch now, one per data directory.

        Retry until there is exactly one: a starting node appears, and a lost data directory is forgotten.
        """
        for number in range(ATTEMPTS_MAX):
            if number:
                await asyncio.sleep(RETRY_S)
            view = await self.describe()
            found = [each for each in view.observers if each.node_id == node_id and view.is_fetching(each)]
            if len(found) == 1:
                break
        return found

    async def add_controller(
        self, node_id: int, directory_id: bytes, listeners: tuple[tuple[str, Address], ...], *, cluster_id: str | None
    ) -> None:
        """Add a running and caught-up controller as a voter."""
        timeout_ms = min(CAUGHT_UP_WITHIN_MS, self.client.settings.request_timeout_ms)
        await self._change(_add_request(node_id, directory_id, listeners, cluster_id, timeout_ms))

    async def remove_controller(self, node_id: int, directory_id: bytes, *, cluster_id: str | None) -> None:
        """Remove a voter."""
        await self._change(
            RemoveRaftVoterRequest(cluster_id=cluster_id, voter_id=node_id, voter_directory_id=directory_id)
        )

    async def enable_dynamic_voters(self) -> None:
        """Write the static voters of `controller.quorum.voters` to the log, where they can be changed."""
        update = UpdateFeaturesRequest.FeatureUpdateKey(
            feature=KRAFT_VERSION_FEATURE, max_version_level=KRAFT_VERSION, upgrade_type=UPGRADE
        )
        timeout_ms = self.client.settings.request_timeout_ms
        await self._change(UpdateFeaturesRequest(timeout_ms=timeout_ms, feature_updates=[update]))

    async def _change(self, request: Request[HasErrorMessage]) -> None:
        """Retry errors of a starting controller; do not retry if the change may have been made."""

        async def attempt() -> None:
            response = await self.client.send(request)
            check(response.error_code, response.error_message)

        await self.client.retry(attempt, is_idempotent=False)


def _describe_request() -> DescribeQuorumRequest:
    request = DescribeQuorumRequest
    partition = request.PartitionData(partition_index=0)
    return request(topics=[request.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])])


def _add_request(
    node_id: int,
    directory_id: bytes,
    listeners: tuple[tuple[str, Address], ...],
    cluster_id: str | None,
    timeout_ms: int,
) -> AddRaftVoterRequest:
    request = AddRaftVoterRequest
    return request(
        cluster_id=cluster_id,
        timeout_ms=timeout_ms,
        voter_id=node_id,
        voter_directory_id=directory_id,
        listeners=[request.Listener(name=name, host=where.host, port=where.port) for name, where in listeners],
    )


def _view(
    partition: "DescribeQuorumResponse.PartitionData", nodes: "Iterable[DescribeQuorumResponse.Node]"
) -> QuorumView:
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


def _ordered(states: "Iterable[DescribeQuorumResponse.ReplicaState]") -> "list[DescribeQuorumResponse.ReplicaState]":
    return sorted(states, key=lambda each: (each.replica_id, each.replica_directory_id))


def _replica(
    state: "DescribeQuorumResponse.ReplicaState", listeners: dict[int, tuple[tuple[str, Address], ...]]
) -> QuorumReplica:
    return QuorumReplica(
        state.replica_id,
        bytes(state.replica_directory_id or NO_DIRECTORY),
        state.log_end_offset,
        state.last_fetch_timestamp,
        state.last_caught_up_timestamp,
        listeners.get(state.replica_id, ()),
    )
