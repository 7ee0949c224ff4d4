"""Control records of the metadata log: the quorum's own records."""

from collections.abc import Sequence
from typing import Final

from moldau.machines.raft import Voter, VotersAt, VoterSet
from moldau.model.ids import Address
from moldau.model.protocol import KRAFT_VERSION
from moldau.records.control import ControlType, iterate_control_records
from moldau.records.header import Buffer
from moldau.records.record import Record, iterate_batches
from moldau.wire import messages
from moldau.wire.data_records import decode_data, encode_data

_CONTROL_VERSION: Final = 0  # version of all control record bodies

Control = tuple[ControlType, bytes]


def leader_change(leader_id: int, voters: VoterSet, granting: Sequence[int]) -> Control:
    """The leader of a new epoch, and the voters that elected it."""
    body = messages.LeaderChangeMessage(
        leader_id=leader_id,
        voters=[messages.LeaderChangeMessage.Voter(voter_id=each.node_id) for each in voters],
        granting_voters=[messages.LeaderChangeMessage.Voter(voter_id=each) for each in granting],
    )
    return ControlType.LEADER_CHANGE, encode_data(body, _CONTROL_VERSION)


def kraft_version() -> Control:
    body = messages.KRaftVersionRecord(k_raft_version=KRAFT_VERSION)
    return ControlType.KRAFT_VERSION, encode_data(body, _CONTROL_VERSION)


def voter_set(voters: VoterSet) -> Control:
    body = messages.VotersRecord(
        voters=[
            messages.VotersRecord.Voter(
                voter_id=each.node_id,
                voter_directory_id=each.directory_id,
                endpoints=[
                    messages.VotersRecord.Endpoint(name=name, host=address.host, port=address.port)
                    for name, address in each.endpoints
                ],
                k_raft_version_feature=messages.VotersRecord.KRaftVersionFeature(
                    min_supported_version=each.kraft_version_min, max_supported_version=each.kraft_version_max
                ),
            )
            for each in voters
        ]
    )
    return ControlType.KRAFT_VOTERS, encode_data(body, _CONTROL_VERSION)


def snapshot_header(last_timestamp_ms: int) -> Control:
    body = messages.SnapshotHeaderRecord(last_contained_log_timestamp=last_timestamp_ms)
    return ControlType.SNAPSHOT_HEADER, encode_data(body, _CONTROL_VERSION)


def snapshot_footer() -> Control:
    return ControlType.SNAPSHOT_FOOTER, encode_data(messages.SnapshotFooterRecord(), _CONTROL_VERSION)


def voter_sets_in(batches: Buffer) -> list[VotersAt]:
    """The VotersRecords in whole batches. Only control batches are decoded, and checksums are not verified."""
    return [
        VotersAt(record.offset, _voters_in(record))
        for header, batch in iterate_batches(batches)
        if header.is_control
        for kind, record in iterate_control_records(batch)
        if kind is ControlType.KRAFT_VOTERS
    ]


def _voters_in(record: Record) -> VoterSet:
    body = decode_data("VotersRecord", _CONTROL_VERSION, record.value or b"")
    return VoterSet.of(
        Voter(
            each.voter_id,
            each.voter_directory_id,
            tuple((endpoint.name, Address(endpoint.host, endpoint.port)) for endpoint in each.endpoints),
            each.k_raft_version_feature.min_supported_version,
            each.k_raft_version_feature.max_supported_version,
        )
        for each in body.voters
    )
