"""Converts the raft machine's sends to requests, and responses to its events."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from moldau.broker.configs.quorum_settings import MemberSettings
from moldau.machines.raft import (
    Endpoints,
    Event,
    FetchResponseReceived,
    FetchSnapshotResponseReceived,
    Leadership,
    OffsetAndEpoch,
    QuorumEpochResponseReceived,
    Send,
    SendBeginQuorum,
    SendEndQuorum,
    SendFetch,
    SendFetchSnapshot,
    SendUpdateVoter,
    SendVote,
    UpdateVoterResponseReceived,
    Voter,
    VoteResponseReceived,
)
from moldau.model.errors import ErrorCode
from moldau.model.ids import NO_EPOCH, NO_NODE, NO_OFFSET, Address, NodeId
from moldau.model.protocol import METADATA_PARTITION, METADATA_TOPIC, METADATA_TOPIC_ID
from moldau.model.units import MiB
from moldau.wire import messages

FETCH_BYTES_MAX: Final = 8 * MiB  # upper limit, whatever the request allows
FETCH_WAIT_MS: Final = 500
UNKNOWN_LISTENER: Final = ""


class QuorumMessages:
    """Builds the requests of one node of one cluster."""

    def __init__(self, me: Voter, cluster_id: str, member: MemberSettings) -> None:
        self._me = me
        self._cluster_id = cluster_id
        self._member = member
        self._requests: dict[type, Callable[[Any], Any]] = {
            SendVote: self._vote,
            SendBeginQuorum: self._begin_quorum,
            SendEndQuorum: self._end_quorum,
            SendFetch: self._fetch,
            SendFetchSnapshot: self._fetch_snapshot,
            SendUpdateVoter: self._update_voter,
        }

    def request(self, send: Send) -> Any:
        return self._requests[type(send)](send)

    def _vote(self, send: SendVote) -> messages.VoteRequest:
        partition = messages.VoteRequest.PartitionData(
            partition_index=METADATA_PARTITION,
            replica_epoch=send.epoch,
            replica_id=send.candidate.node_id,
            replica_directory_id=send.candidate.directory_id,
            voter_directory_id=send.to.directory_id,
            last_offset_epoch=send.last_epoch,
            last_offset=send.last_offset,
            pre_vote=send.is_pre_vote,
        )
        topic = messages.VoteRequest.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])
        return messages.VoteRequest(cluster_id=self._cluster_id, voter_id=send.to.node_id, topics=[topic])

    def _begin_quorum(self, send: SendBeginQuorum) -> messages.BeginQuorumEpochRequest:
        wire = messages.BeginQuorumEpochRequest
        partition = wire.PartitionData(
            partition_index=METADATA_PARTITION,
            voter_directory_id=send.to.directory_id,
            leader_id=send.leader_id,
            leader_epoch=send.epoch,
        )
        return wire(
            cluster_id=self._cluster_id,
            voter_id=send.to.node_id,
            topics=[wire.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])],
            leader_endpoints=_listeners(wire.LeaderEndpoint, send.endpoints),
        )

    def _end_quorum(self, send: SendEndQuorum) -> messages.EndQuorumEpochRequest:
        wire = messages.EndQuorumEpochRequest
        partition = wire.PartitionData(
            partition_index=METADATA_PARTITION,
            leader_id=send.leader_id,
            leader_epoch=send.epoch,
            preferred_successors=[each.node_id for each in send.successors],
            preferred_candidates=[
                wire.ReplicaInfo(candidate_id=each.node_id, candidate_directory_id=each.directory_id)
                for each in send.successors
            ],
        )
        return wire(
            cluster_id=self._cluster_id,
            topics=[wire.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])],
            leader_endpoints=_listeners(wire.LeaderEndpoint, send.endpoints),
        )

    def _fetch(self, send: SendFetch) -> messages.FetchRequest:
        wire = messages.FetchRequest
        partition = wire.FetchPartition(
            partition=METADATA_PARTITION,
            current_leader_epoch=send.epoch,
            fetch_offset=send.offset,
            last_fetched_epoch=send.last_epoch,
            log_start_offset=NO_OFFSET,
            partition_max_bytes=self._member.quorum_fetch_max_bytes,
            replica_directory_id=self._me.directory_id,
            high_watermark=send.high_watermark,
        )
        return wire(
            cluster_id=self._cluster_id,
            replica_id=self._me.node_id,
            replica_state=wire.ReplicaState(replica_id=self._me.node_id, replica_epoch=NO_EPOCH),
            max_wait_ms=FETCH_WAIT_MS,
            min_bytes=1,
            max_bytes=self._member.quorum_fetch_max_bytes,
            session_epoch=-1,
            topics=[wire.FetchTopic(topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[partition])],
        )

    def _fetch_snapshot(self, send: SendFetchSnapshot) -> messages.FetchSnapshotRequest:
        wire = messages.FetchSnapshotRequest
        partition = wire.PartitionSnapshot(
            partition=METADATA_PARTITION,
            current_leader_epoch=send.epoch,
            snapshot_id=wire.SnapshotId(end_offset=send.snapshot.offset, epoch=send.snapshot.epoch),
            position=send.position,
            replica_directory_id=self._me.directory_id,
        )
        return wire(
            cluster_id=self._cluster_id,
            replica_id=self._me.node_id,
            max_bytes=self._member.quorum_fetch_snapshot_max_bytes,
            topics=[wire.TopicSnapshot(name=METADATA_TOPIC, partitions=[partition])],
        )

    def _update_voter(self, send: SendUpdateVoter) -> messages.UpdateRaftVoterRequest:
        wire = messages.UpdateRaftVoterRequest
        return wire(
            cluster_id=self._cluster_id,
            current_leader_epoch=send.epoch,
            voter_id=send.voter.node_id,
            voter_directory_id=send.voter.directory_id,
            listeners=_listeners(wire.Listener, send.voter.endpoints),
            k_raft_version_feature=wire.KRaftVersionFeature(
                min_supported_version=send.voter.kraft_version_min, max_supported_version=send.voter.kraft_version_max
            ),
        )


def _listeners(kind: Callable[..., Any], endpoints: Endpoints) -> list[Any]:
    return [kind(name=name, host=address.host, port=address.port) for name, address in endpoints]


# Responses ------------------------------------------------------------------------------------------------------------


def response_event(send: Send, response: Any) -> Event:
    """The machine's event for a response."""
    return _EVENTS[type(send)](send, response)


def _voted(send: SendVote, response: messages.VoteResponse) -> VoteResponseReceived:
    error, found = _only_partition(response.error_code, response.topics)
    if found is None:
        return VoteResponseReceived(send, error, _UNKNOWN, is_granted=False)
    leadership = _leadership(found.leader_id, found.leader_epoch, response.node_endpoints)
    return VoteResponseReceived(send, error, leadership, found.vote_granted)


def _quorum_epoch_response(
    send: SendBeginQuorum | SendEndQuorum,
    response: messages.BeginQuorumEpochResponse | messages.EndQuorumEpochResponse,
) -> QuorumEpochResponseReceived:
    error, found = _only_partition(response.error_code, response.topics)
    if found is None:
        return QuorumEpochResponseReceived(send, error, _UNKNOWN)
    return QuorumEpochResponseReceived(
        send, error, _leadership(found.leader_id, found.leader_epoch, response.node_endpoints)
    )


def _fetched(send: SendFetch, response: messages.FetchResponse) -> FetchResponseReceived:
    error, found = _only_partition(response.error_code, response.responses)
    if found is None:
        return FetchResponseReceived(request=send, error=error, leadership=_UNKNOWN, high_watermark=NO_OFFSET)
    diverging, snapshot = found.diverging_epoch, found.snapshot_id
    return FetchResponseReceived(
        request=send,
        error=error,
        leadership=_current_leader(found.current_leader, response.node_endpoints),
        high_watermark=found.high_watermark,
        diverging=OffsetAndEpoch(diverging.end_offset, diverging.epoch) if diverging and diverging.epoch >= 0 else None,
        snapshot=OffsetAndEpoch(snapshot.end_offset, snapshot.epoch) if snapshot and snapshot.epoch >= 0 else None,
        has_records=bool(found.records),
    )


def _snapshot_fetched(
    send: SendFetchSnapshot, response: messages.FetchSnapshotResponse
) -> FetchSnapshotResponseReceived:
    error, found = _only_partition(response.error_code, response.topics)
    if found is None:
        return FetchSnapshotResponseReceived(request=send, error=error, leadership=_UNKNOWN)
    return FetchSnapshotResponseReceived(
        request=send,
        error=error,
        leadership=_current_leader(found.current_leader, response.node_endpoints),
        next_position=found.position + len(found.unaligned_records or b""),
        size_bytes=found.size,
    )


def _voter_updated(send: SendUpdateVoter, response: messages.UpdateRaftVoterResponse) -> UpdateVoterResponseReceived:
    leader = response.current_leader
    leadership = _UNKNOWN
    if leader is not None:
        endpoints = ((UNKNOWN_LISTENER, Address(leader.host, leader.port)),) if leader.host else ()
        leadership = Leadership(NodeId(leader.leader_id), leader.leader_epoch, endpoints)
    return UpdateVoterResponseReceived(send, _error(response.error_code), leadership)


_EVENTS: Final[dict[type, Callable[[Any, Any], Event]]] = {
    SendVote: _voted,
    SendBeginQuorum: _quorum_epoch_response,
    SendEndQuorum: _quorum_epoch_response,
    SendFetch: _fetched,
    SendFetchSnapshot: _snapshot_fetched,
    SendUpdateVoter: _voter_updated,
}

_UNKNOWN: Final = Leadership(NO_NODE, NO_EPOCH)


def _only_partition(error_code: int, topics: Sequence[Any]) -> tuple[ErrorCode, Any]:
    """The error of the whole response or of its only partition, and that partition if present."""
    partitions = [each for topic in topics for each in topic.partitions]
    if error_code or len(partitions) != 1:
        return _error(error_code or ErrorCode.UNKNOWN_SERVER_ERROR), None
    return _error(partitions[0].error_code), partitions[0]


def _error(code: int) -> ErrorCode:
    try:
        return ErrorCode(code)
    except ValueError:  # an error code of a newer version
        return ErrorCode.UNKNOWN_SERVER_ERROR


def _current_leader(leader: Any, endpoints: Iterable[Any]) -> Leadership:
    return _leadership(leader.leader_id, leader.leader_epoch, endpoints) if leader is not None else _UNKNOWN


def _leadership(leader_id: int, epoch: int, endpoints: Iterable[Any]) -> Leadership:
    places = (Address(each.host, each.port) for each in endpoints if each.node_id == leader_id)
    return Leadership(NodeId(leader_id), epoch, tuple((UNKNOWN_LISTENER, place) for place in places))
