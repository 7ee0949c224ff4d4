"""Does this node still lead? Whoever could have been made leader instead would know, and says so by fetching.

A leader that is cut off from the controller is not told that it was deposed. What it appends then is never committed;
but what it tells from memory may be old.

    a question --> fetches that wait are answered --> all who may lead instead have sent another fetch: nobody else led

Whoever leads in its place has left its sessions before it said of anything that it is committed. So the question is
answered by fetches that were sent after it, in this leader epoch, with the partition still in the session.
"""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from moldau.machines.replication import LeaderMachine

if TYPE_CHECKING:
    from moldau.broker.fetch.replica_sessions import SessionPartition
    from moldau.broker.partitions.partition import Partition

UNDER_WAY_MAX: Final = 2  # fetches of one session: the second is sent only to end the wait of the first


class PendingConfirmation:
    """Asked at one moment. Which fetches were sent later is known by counting those that may be under way."""

    __slots__ = ("_missing", "_under_way", "answered")

    def __init__(self, missing: Iterable[int], waiting: Iterable["SessionPartition"]) -> None:
        """A fetch of those in `waiting` is here: its answer leaves later, and one more at most is under way."""
        self.answered: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._missing = frozenset(missing)
        self._under_way = dict.fromkeys(waiting, UNDER_WAY_MAX - 1)
        self._look()

    def is_missing(self, replica: int) -> bool:
        return replica in self._missing

    def fetched(self, follower: "SessionPartition") -> bool:
        """Another fetch of its session has come; whether one more is needed."""
        replica = follower.session.replica
        if replica not in self._missing:
            return False
        under_way = self._under_way.get(follower, UNDER_WAY_MAX)
        if under_way:
            self._under_way[follower] = under_way - 1
            return True
        self.only(self._missing - {replica})
        return False

    def only(self, replicas: frozenset[int]) -> None:
        """Nobody else has to be heard."""
        self._missing &= replicas
        self._look()

    def _look(self) -> None:
        if not self._missing:
            self.end(is_leader=True)

    def end(self, *, is_leader: bool) -> None:
        if not self.answered.done():
            self.answered.set_result(is_leader)


class LeadershipCheck:
    """Those that are open about one leader epoch of one partition."""

    __slots__ = ("_machine", "_open", "_partition")

    def __init__(self, partition: "Partition", machine: LeaderMachine) -> None:
        self._partition = partition
        self._machine = machine
        self._open: dict[PendingConfirmation, None] = {}

    def ask(self, patience_ms: float) -> asyncio.Future[bool]:
        """True once it is sure that at this moment nobody else has led; False if that is not so, or time is up."""
        missing = self._machine.successors
        followers = [each for each in self._partition.followers if each.session.replica in missing]
        question = PendingConfirmation(missing, [each for each in followers if each.session.is_waiting])
        if not question.answered.done():
            self._open[question] = None
            for each in followers:
                each.session.question(each)
            self._limit(question, patience_ms)
        return question.answered

    def _limit(self, question: PendingConfirmation, patience_ms: float) -> None:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(patience_ms / 1000, self._give_up, question)
        question.answered.add_done_callback(lambda _: timer.cancel())

    def _give_up(self, question: PendingConfirmation) -> None:
        question.end(is_leader=False)
        self._open.pop(question, None)

    def named(self, follower: "SessionPartition") -> None:
        """It has come into a session, or is in one in another epoch: it may be one that is waited for."""
        if self._open and any(each.is_missing(follower.session.replica) for each in self._open):
            follower.session.question(follower)

    def fetched(self, follower: "SessionPartition") -> bool:
        """Another fetch of its session has come; whether one more is needed.

        A life of the broker that is unknown here counts for nothing: it may have led before it forgot.
        """
        session, machine = follower.session, self._machine
        if follower.leader_epoch != machine.leader_epoch or not machine.is_known(session.replica, session.broker_epoch):
            return False
        is_needed = [each.fetched(follower) for each in self._open]
        self._clear()
        return any(is_needed)

    def successors_changed(self) -> None:
        for each in self._open:
            each.only(self._machine.successors)
        self._clear()

    def end(self) -> None:
        """Another leads, or the next epoch has begun."""
        for each in self._open:
            each.end(is_leader=False)
        self._open.clear()

    def _clear(self) -> None:
        for each in [each for each in self._open if each.answered.done()]:
            del self._open[each]
