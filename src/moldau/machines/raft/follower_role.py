"""Follower role: fetch from the leader, truncate diverging records, load snapshots, advance the high watermark.

At most one fetch is in flight. Its offset acknowledges everything below it as synced to disk, because the leader counts
it towards the high watermark; hence no fetch is sent while the local log has unsynced records. `_number` identifies the
latest fetch, so late responses and failures of earlier ones are ignored.

Each response leads to exactly one of: append records (`AppendFetched`), truncate the log (`TruncateLog`), download a
snapshot (`SendFetchSnapshot` chunk by chunk, then `LoadSnapshot`), or fetch again. While the driver works on one of
these `_next_ms` is infinite; the resulting log event (`LogAppended`, `LogTruncated`, `SnapshotLoaded`) resets it.

A node without a leader fetches too: an observer asks the bootstrap servers in turn until a response names the leader,
and a voter does so after it lost an election, in case its voter set is outdated.
"""

from math import inf

from moldau.machines.raft.effects import (
    AppendFetched,
    Leadership,
    LoadSnapshot,
    SendFetch,
    SendFetchSnapshot,
    SendUpdateVoter,
    TruncateLog,
)
from moldau.machines.raft.events import FetchResponseReceived, FetchSnapshotResponseReceived, SnapshotLoaded
from moldau.machines.raft.log_view import OffsetAndEpoch, truncation_offset
from moldau.machines.raft.quorum import Quorum
from moldau.machines.raft.roles import Follower, Unattached
from moldau.machines.raft.settings import FIRST_ELECTION_MS
from moldau.model.errors import ErrorCode
from moldau.model.ids import NO_NODE, NO_OFFSET


class CommittedRecordsLost(Exception):
    """The leader lacks committed records: the quorum was modified by hand, or has a bug. The node must halt."""


class FollowerRole:
    """Replicates from the leader, or searches for the leader while it is unknown."""

    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum
        self._number = 0
        self._in_flight: SendFetch | SendFetchSnapshot | None = None
        self._expires_ms = inf  # for fetches without a known leader: no role deadline covers them
        self._next_ms = 0.0
        self._download: SendFetchSnapshot | None = None
        self._has_chunk_failed = False
        self._is_appending = False
        self._leader_watermark = NO_OFFSET
        self._next_update_ms = 0.0

    # Time

    @property
    def deadline_ms(self) -> float:
        if self._in_flight is not None:
            return self._expires_ms
        return self._next_ms if self._is_synced and self._is_due(inf) else inf

    def poll(self, now_ms: float, *, is_lost: bool = False) -> None:
        """Send a fetch if it is due. `is_lost`: the last election was lost, so ask the bootstrap servers for the
        leader."""
        self._drop_stale(now_ms)
        if self._in_flight is None and self._is_synced and (is_lost or self._is_due(now_ms)):
            if self._download is not None:
                self._send_snapshot_fetch(self._download.snapshot, self._download.position)
            else:
                self._send_fetch(now_ms)
        self._send_update_voter(now_ms)

    def _is_due(self, now_ms: float) -> bool:
        role = self._quorum.role
        is_wanted = isinstance(role, Follower) or (isinstance(role, Unattached) and not self._quorum.is_voter)
        return is_wanted and self._next_ms <= now_ms

    @property
    def _is_synced(self) -> bool:
        """Whether a fetch may be sent: its offset acknowledges the whole log as synced."""
        return self._quorum.synced_offset >= self._quorum.log.end_offset

    def _drop_stale(self, now_ms: float) -> None:
        """Forget a fetch or download of a previous epoch or leader; its response no longer matters."""
        in_flight, target = self._in_flight, self._target
        if in_flight is not None and (
            in_flight.epoch != self._quorum.epoch or in_flight.to != target.leader_id or self._expires_ms <= now_ms
        ):
            self._in_flight = None
        if self._download is not None and (
            self._download.epoch != self._quorum.epoch or self._download.to != target.leader_id
        ):
            self._download = None

    @property
    def _target(self) -> Leadership:
        quorum = self._quorum
        return quorum.leadership if isinstance(quorum.role, Follower) else Leadership(NO_NODE, quorum.epoch)

    # Requests

    def _send_fetch(self, now_ms: float) -> None:
        quorum, target = self._quorum, self._target
        self._number += 1
        self._expires_ms = inf if target.is_known else now_ms + quorum.settings.request_timeout_ms
        self._in_flight = SendFetch(
            to=target.leader_id,
            endpoints=target.endpoints,
            epoch=quorum.epoch,
            offset=quorum.log.end_offset,
            last_epoch=quorum.log.last_epoch,
            high_watermark=quorum.high_watermark,
            number=self._number,
        )
        quorum.effects.append(self._in_flight)

    def _send_snapshot_fetch(self, snapshot: OffsetAndEpoch, position: int) -> None:
        target = self._target
        self._number += 1
        self._expires_ms = inf
        self._in_flight = self._download = SendFetchSnapshot(
            to=target.leader_id,
            endpoints=target.endpoints,
            epoch=self._quorum.epoch,
            snapshot=snapshot,
            position=position,
            number=self._number,
        )
        self._quorum.effects.append(self._in_flight)

    def _send_update_voter(self, now_ms: float) -> None:
        """Send the leader this voter's endpoints if the voters record has outdated ones."""
        quorum = self._quorum
        role = quorum.role
        known = quorum.voters.get(quorum.me.node_id)
        if known is None or not isinstance(role, Follower) or not role.has_fetched or not quorum.history.is_dynamic:
            return
        if known.key != quorum.me.key or known == quorum.me or not quorum.me.endpoints or now_ms < self._next_update_ms:
            return
        self._next_update_ms = now_ms + quorum.settings.fetch_timeout_ms
        target = self._target
        quorum.effects.append(
            SendUpdateVoter(to=target.leader_id, endpoints=target.endpoints, epoch=quorum.epoch, voter=quorum.me)
        )

    # Responses

    def handle_fetch_response(self, event: FetchResponseReceived, now_ms: float) -> None:
        quorum = self._quorum
        is_expected = event.request == self._in_flight
        is_from_leader = is_expected and event.error is ErrorCode.NONE
        quorum.observe_leader(event.leadership, now_ms, is_from_leader=is_from_leader)
        if not is_expected:
            return
        self._in_flight = None
        self._next_ms = now_ms
        role = quorum.role
        if not isinstance(role, Follower) or event.request.epoch != quorum.epoch or event.error is not ErrorCode.NONE:
            self._handle_error(event, now_ms)
        elif event.request.to == quorum.leader_id:
            self._confirm(role, now_ms)
            self._handle_data(event, now_ms)

    def _handle_data(self, event: FetchResponseReceived, now_ms: float) -> None:
        quorum = self._quorum
        if event.diverging is not None:
            self._truncate(event.diverging, now_ms)
        elif event.snapshot is not None:
            if event.snapshot.offset < quorum.high_watermark:
                raise CommittedRecordsLost(
                    f"{event.snapshot} would replace what is committed up to {quorum.high_watermark}"
                )
            self._send_snapshot_fetch(event.snapshot, 0)
        else:
            self._leader_watermark = event.high_watermark
            self._is_appending = event.has_records
            if event.has_records:
                quorum.effects.append(AppendFetched(event.request))
                self._next_ms = inf  # until LogAppended
            else:
                quorum.advance(min(event.high_watermark, event.request.offset))

    def _truncate(self, end: OffsetAndEpoch, now_ms: float) -> None:
        quorum = self._quorum
        end_offset = truncation_offset(quorum.log, end)
        if end_offset < quorum.high_watermark:
            raise CommittedRecordsLost(f"the leader's log ends at {end}, but {quorum.high_watermark} is committed here")
        if end_offset < quorum.log.end_offset:
            quorum.effects.append(TruncateLog(end_offset))
            self._next_ms = inf  # until LogTruncated
        else:
            self._pause(now_ms)

    def _confirm(self, role: Follower, now_ms: float) -> None:
        role.has_fetched = True
        role.deadline_ms = now_ms + self._quorum.settings.fetch_timeout_ms

    def _handle_error(self, event: FetchResponseReceived, now_ms: float) -> None:
        quorum = self._quorum
        leader = Leadership(event.request.to, event.request.epoch)
        is_resigned = event.error is ErrorCode.NOT_LEADER_OR_FOLLOWER and not event.leadership.is_known
        if is_resigned and quorum.is_following(leader):
            # A leader that left its epoch never leads that epoch again.
            quorum.leaderless_epoch = quorum.epoch
            quorum.become_unattached(quorum.epoch, now_ms, quorum.short_election_timeout_ms())
        if event.request.to == self._target.leader_id:
            self._pause(now_ms)

    def handle_fetch_failure(self, request: SendFetch | SendFetchSnapshot, now_ms: float) -> None:
        """The request failed or its records could not be appended, possibly after an epoch change. Only the latest
        counts."""
        if request.number != self._number:
            return
        self._is_appending = False
        self._in_flight = None
        self._pause(now_ms)
        if isinstance(request, SendFetchSnapshot):
            self._handle_chunk_failure()

    def _pause(self, now_ms: float) -> None:
        is_known = self._target.is_known
        self._next_ms = now_ms + max(self._quorum.settings.retry_backoff_ms if is_known else FIRST_ELECTION_MS, 1)

    # Snapshots

    def handle_snapshot_response(self, event: FetchSnapshotResponseReceived, now_ms: float) -> None:
        quorum = self._quorum
        is_expected = event.request == self._in_flight
        quorum.observe_leader(event.leadership, now_ms, is_from_leader=is_expected and event.error is ErrorCode.NONE)
        if not is_expected:
            return
        self._in_flight = None
        self._drop_stale(now_ms)
        role = quorum.role
        if self._download is None or not isinstance(role, Follower):
            return
        if event.error is not ErrorCode.NONE or event.next_position <= event.request.position:
            self._download = None
            self._pause(now_ms)
            return
        self._confirm(role, now_ms)
        self._has_chunk_failed = False
        if event.next_position < event.size_bytes:
            self._send_snapshot_fetch(event.request.snapshot, event.next_position)
        else:
            self._download = None
            self._next_ms = inf  # until SnapshotLoaded
            self._in_flight = event.request
            quorum.effects.append(LoadSnapshot(event.request))

    def _handle_chunk_failure(self) -> None:
        """Retry a failed chunk once, in case only the connection broke. After a second failure restart the download: if
        the driver cannot write a chunk it drops all earlier ones, so a later position no longer fits."""
        if self._has_chunk_failed:
            self._download = None
        self._has_chunk_failed = not self._has_chunk_failed

    def handle_snapshot_loaded(self, event: SnapshotLoaded, now_ms: float) -> None:
        quorum = self._quorum
        self._in_flight = None
        self._next_ms = now_ms
        quorum.history.restart(event.snapshot.offset - 1, event.voters)
        quorum.synced_offset = event.snapshot.offset
        quorum.advance(event.snapshot.offset)

    # The log

    def handle_appended(self, now_ms: float) -> None:
        """Advance to the leader's high watermark, up to the local log end: both logs are equal up to there."""
        if self._is_appending:
            self._is_appending = False
            self._next_ms = now_ms
            self._quorum.advance(min(self._leader_watermark, self._quorum.log.end_offset))

    def handle_truncated(self, end_offset: int, now_ms: float) -> None:
        quorum = self._quorum
        quorum.synced_offset = min(quorum.synced_offset, end_offset)
        quorum.history.truncate(end_offset)
        self._next_ms = now_ms
