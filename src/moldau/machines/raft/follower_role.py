"""The follower's part: fetch, cut off what differs from the leader, load its snapshots, follow its high watermark."""

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
from moldau.machines.raft.events import FetchAnswered, FetchSnapshotAnswered, SnapshotLoaded
from moldau.machines.raft.log_view import OffsetAndEpoch, truncation_point
from moldau.machines.raft.quorum import Quorum
from moldau.machines.raft.roles import Follower, Unattached
from moldau.machines.raft.settings import FIRST_ROUND_MS
from moldau.model.errors import ErrorCode
from moldau.model.ids import NO_NODE, NO_OFFSET


class CommittedRecordsLost(Exception):
    """The leader has not got what was committed: the quorum was broken by hand, or by a bug. Nothing must go on."""


class Following:
    """What a node does that knows a leader, or looks for one."""

    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum
        self._number = 0
        self._under_way: SendFetch | SendFetchSnapshot | None = None
        self._expires_ms = inf  # of a fetch to nobody in particular: no role watches over it
        self._next_ms = 0.0
        self._download: SendFetchSnapshot | None = None
        self._has_lost_piece = False
        self._is_appending = False
        self._leader_watermark = NO_OFFSET
        self._next_update_ms = 0.0

    # Time

    @property
    def deadline_ms(self) -> float:
        if self._under_way is not None:
            return self._expires_ms
        return self._next_ms if self._is_synced and self._is_due(inf) else inf

    def poll(self, now_ms: float, *, is_lost: bool = False) -> None:
        """Fetch, if it is time to. `is_lost`: the voters that we know do not answer; others may know who leads."""
        self._drop_stale(now_ms)
        if self._under_way is None and self._is_synced and (is_lost or self._is_due(now_ms)):
            if self._download is not None:
                self._send_snapshot_fetch(self._download.snapshot, self._download.position)
            else:
                self._send_fetch(now_ms)
        self._update_myself(now_ms)

    def _is_due(self, now_ms: float) -> bool:
        role = self._quorum.role
        is_wanted = isinstance(role, Follower) or (isinstance(role, Unattached) and not self._quorum.is_voter)
        return is_wanted and self._next_ms <= now_ms

    @property
    def _is_synced(self) -> bool:
        """A fetch says that everything below its offset is on disk, so what is not synced yet holds it back."""
        return self._quorum.synced_offset >= self._quorum.log.end_offset

    def _drop_stale(self, now_ms: float) -> None:
        """A fetch of an epoch or a leader that is history: its answer is not waited for."""
        under_way, target = self._under_way, self._target
        if under_way is not None and (
            under_way.epoch != self._quorum.epoch or under_way.to != target.leader_id or self._expires_ms <= now_ms
        ):
            self._under_way = None
        if self._download is not None and (
            self._download.epoch != self._quorum.epoch or self._download.to != target.leader_id
        ):
            self._download = None

    @property
    def _target(self) -> Leadership:
        quorum = self._quorum
        return quorum.leadership if isinstance(quorum.role, Follower) else Leadership(NO_NODE, quorum.epoch)

    # Asking

    def _send_fetch(self, now_ms: float) -> None:
        quorum, target = self._quorum, self._target
        self._number += 1
        self._expires_ms = inf if target.is_known else now_ms + quorum.settings.request_timeout_ms
        self._under_way = SendFetch(
            to=target.leader_id,
            endpoints=target.endpoints,
            epoch=quorum.epoch,
            offset=quorum.log.end_offset,
            last_epoch=quorum.log.last_epoch,
            high_watermark=quorum.high_watermark,
            number=self._number,
        )
        quorum.effects.append(self._under_way)

    def _send_snapshot_fetch(self, snapshot: OffsetAndEpoch, position: int) -> None:
        target = self._target
        self._number += 1
        self._expires_ms = inf
        self._under_way = self._download = SendFetchSnapshot(
            to=target.leader_id,
            endpoints=target.endpoints,
            epoch=self._quorum.epoch,
            snapshot=snapshot,
            position=position,
            number=self._number,
        )
        self._quorum.effects.append(self._under_way)

    def _update_myself(self, now_ms: float) -> None:
        """The voters record may name an address that this node has left."""
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

    # Answers

    def answered(self, event: FetchAnswered, now_ms: float) -> None:
        quorum = self._quorum
        is_expected = event.request == self._under_way
        is_own_word = is_expected and event.error is ErrorCode.NONE
        quorum.learn(event.leadership, now_ms, is_own_word=is_own_word)
        if not is_expected:
            return
        self._under_way = None
        self._next_ms = now_ms
        role = quorum.role
        if not isinstance(role, Follower) or event.request.epoch != quorum.epoch or event.error is not ErrorCode.NONE:
            self._refused(event, now_ms)
        elif event.request.to == quorum.leader_id:
            self._confirm(role, now_ms)
            self._take(event, now_ms)

    def _take(self, event: FetchAnswered, now_ms: float) -> None:
        quorum = self._quorum
        if event.diverging is not None:
            self._cut(event.diverging, now_ms)
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
                self._next_ms = inf  # until it is appended
            else:
                quorum.advance(min(event.high_watermark, event.request.offset))

    def _cut(self, end: OffsetAndEpoch, now_ms: float) -> None:
        quorum = self._quorum
        end_offset = truncation_point(quorum.log, end)
        if end_offset < quorum.high_watermark:
            raise CommittedRecordsLost(f"the leader's log ends at {end}, but {quorum.high_watermark} is committed here")
        if end_offset < quorum.log.end_offset:
            quorum.effects.append(TruncateLog(end_offset))
            self._next_ms = inf  # until it is truncated
        else:
            self._pause(now_ms)

    def _confirm(self, role: Follower, now_ms: float) -> None:
        role.has_fetched = True
        role.deadline_ms = now_ms + self._quorum.settings.fetch_timeout_ms

    def _refused(self, event: FetchAnswered, now_ms: float) -> None:
        quorum = self._quorum
        asked = Leadership(event.request.to, event.request.epoch)
        is_disowned = event.error is ErrorCode.NOT_LEADER_OR_FOLLOWER and not event.leadership.is_known
        if is_disowned and quorum.is_following(asked):
            # Who has led an epoch and does not any more never will again.
            quorum.dismissed_epoch = quorum.epoch
            quorum.become_unattached(quorum.epoch, now_ms, quorum.brief_wait_ms())
        if event.request.to == self._target.leader_id:
            self._pause(now_ms)

    def failed(self, request: SendFetch | SendFetchSnapshot, now_ms: float) -> None:
        """No answer came, or it could not be kept, even if the epoch has changed since. Only the latest is awaited."""
        if request.number != self._number:
            return
        self._is_appending = False
        self._under_way = None
        self._pause(now_ms)
        if isinstance(request, SendFetchSnapshot):
            self._lose_piece()

    def _pause(self, now_ms: float) -> None:
        is_known = self._target.is_known
        self._next_ms = now_ms + max(self._quorum.settings.retry_backoff_ms if is_known else FIRST_ROUND_MS, 1)

    # Snapshots

    def snapshot_answered(self, event: FetchSnapshotAnswered, now_ms: float) -> None:
        quorum = self._quorum
        is_expected = event.request == self._under_way
        quorum.learn(event.leadership, now_ms, is_own_word=is_expected and event.error is ErrorCode.NONE)
        if not is_expected:
            return
        self._under_way = None
        self._drop_stale(now_ms)
        role = quorum.role
        if self._download is None or not isinstance(role, Follower):
            return
        if event.error is not ErrorCode.NONE or event.next_position <= event.request.position:
            self._download = None
            self._pause(now_ms)
            return
        self._confirm(role, now_ms)
        self._has_lost_piece = False
        if event.next_position < event.size_bytes:
            self._send_snapshot_fetch(event.request.snapshot, event.next_position)
        else:
            self._download = None
            self._next_ms = inf  # until it is loaded
            self._under_way = event.request
            quorum.effects.append(LoadSnapshot(event.request))

    def _lose_piece(self) -> None:
        """It is asked for once more, in case only the way was broken. The second time begin anew: the driver drops all
        that it has of a snapshot when it cannot write a piece, and nothing fits any more."""
        if self._has_lost_piece:
            self._download = None
        self._has_lost_piece = not self._has_lost_piece

    def loaded(self, event: SnapshotLoaded, now_ms: float) -> None:
        quorum = self._quorum
        self._under_way = None
        self._next_ms = now_ms
        quorum.history.restart(event.snapshot.offset - 1, event.voters)
        quorum.synced_offset = event.snapshot.offset
        quorum.advance(event.snapshot.offset)

    # The log

    def appended(self, now_ms: float) -> None:
        """What the leader says is committed, and is here now, is committed: both logs are the same up to here."""
        if self._is_appending:
            self._is_appending = False
            self._next_ms = now_ms
            self._quorum.advance(min(self._leader_watermark, self._quorum.log.end_offset))

    def truncated(self, end_offset: int, now_ms: float) -> None:
        quorum = self._quorum
        quorum.synced_offset = min(quorum.synced_offset, end_offset)
        quorum.history.truncate(end_offset)
        self._next_ms = now_ms
