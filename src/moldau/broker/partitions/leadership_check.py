"""The leadership check: a partition leader confirms that no other broker leads (as Raft's ReadIndex does).

A leader that is cut off from the controller does not learn that it was deposed. Its appends are never committed then,
but reads from its memory may be stale. Before such a read it confirms its leadership with the possible successors:

    confirm() -> waiting fetches get their responses -> every possible successor has sent a newer fetch -> confirmed

A successor leaves its replica fetch sessions before it commits anything as the leader. So a fetch confirms the
leadership if it was sent after the check began, in this leader epoch, with the partition still in the session.
"""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from moldau.broker.partitions.remote_follower import RemoteFollower
from moldau.machines.replication import LeaderMachine

if TYPE_CHECKING:
    from moldau.broker.partitions.partition import Partition

IN_FLIGHT_MAX: Final = 2  # fetches per session: the second is sent only to end the wait of the first


class PendingConfirmation:
    """One check. Counting the fetches that may be in flight tells which ones were sent after it began."""

    __slots__ = ("_in_flight", "_missing", "confirmed")

    def __init__(self, missing: Iterable[int], waiting: Iterable[RemoteFollower]) -> None:
        """Sessions in `waiting` have a fetch waiting here: at most one more can have been sent before the check."""
        self.confirmed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._missing = frozenset(missing)
        self._in_flight = dict.fromkeys(waiting, IN_FLIGHT_MAX - 1)
        self._finish_if_complete()

    def is_missing(self, replica: int) -> bool:
        return replica in self._missing

    def fetched(self, follower: RemoteFollower) -> bool:
        """Count a fetch of the follower's session; return whether another one is needed."""
        replica = follower.session.replica
        if replica not in self._missing:
            return False
        in_flight = self._in_flight.get(follower, IN_FLIGHT_MAX)
        if in_flight:
            self._in_flight[follower] = in_flight - 1
            return True
        self.keep_only(self._missing - {replica})
        return False

    def keep_only(self, replicas: frozenset[int]) -> None:
        """Stop waiting for replicas that are no longer possible successors."""
        self._missing &= replicas
        self._finish_if_complete()

    def _finish_if_complete(self) -> None:
        if not self._missing:
            self.end(is_leader=True)

    def end(self, *, is_leader: bool) -> None:
        if not self.confirmed.done():
            self.confirmed.set_result(is_leader)


class LeadershipCheck:
    """The pending checks of one leader epoch of a partition."""

    __slots__ = ("_machine", "_partition", "_pending")

    def __init__(self, partition: "Partition", machine: LeaderMachine) -> None:
        self._partition = partition
        self._machine = machine
        self._pending: dict[PendingConfirmation, None] = {}

    def confirm(self, timeout_ms: float) -> asyncio.Future[bool]:
        """Resolve to True once no other broker can have led at the time of the call, to False on doubt or timeout."""
        missing = self._machine.potential_leaders
        followers = [each for each in self._partition.followers if each.session.replica in missing]
        check = PendingConfirmation(missing, [each for each in followers if each.session.is_waiting])
        if not check.confirmed.done():
            self._pending[check] = None
            for each in followers:
                each.request_fetch()
            self._limit(check, timeout_ms)
        return check.confirmed

    def _limit(self, check: PendingConfirmation, timeout_ms: float) -> None:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(timeout_ms / 1000, self._time_out, check)
        check.confirmed.add_done_callback(lambda _: timer.cancel())

    def _time_out(self, check: PendingConfirmation) -> None:
        check.end(is_leader=False)
        self._pending.pop(check, None)

    def follower_added(self, follower: RemoteFollower) -> None:
        """A follower has entered a session, or continues in another epoch: a check may be waiting for it."""
        if self._pending and any(each.is_missing(follower.session.replica) for each in self._pending):
            follower.request_fetch()

    def fetched(self, follower: RemoteFollower) -> bool:
        """Count a fetch of the follower's session; return whether another one is needed.

        A broker epoch unknown to this leader does not count: that broker may have led before it restarted.
        """
        session, machine = follower.session, self._machine
        if follower.leader_epoch != machine.leader_epoch or not machine.is_known(session.replica, session.broker_epoch):
            return False
        is_needed = [each.fetched(follower) for each in self._pending]
        self._clear()
        return any(is_needed)

    def successors_changed(self) -> None:
        for each in self._pending:
            each.keep_only(self._machine.potential_leaders)
        self._clear()

    def end(self) -> None:
        """Fail all pending checks: another broker leads, or the next epoch has begun."""
        for each in self._pending:
            each.end(is_leader=False)
        self._pending.clear()

    def _clear(self) -> None:
        for each in [each for each in self._pending if each.confirmed.done()]:
            del self._pending[each]
