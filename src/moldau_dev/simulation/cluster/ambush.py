"""Nodes that are struck at the worst moments, which hardly ever come by chance: again and again one is waited for."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from enum import Enum
from typing import Final

from moldau.node.node import Node
from moldau_dev.simulation.cluster.node_state import (
    has_ends_in_doubt,
    has_followers_apart,
    has_markers_to_send,
    has_offsets_to_tell,
    joining_of,
)
from moldau_dev.simulation.cluster.roster import Roster
from moldau_dev.simulation.simulation import Host, Simulation

DEATH_S_MAX: Final = 0.5
STILL_S: Final = (1.0, 8.0)
UNAWARE_S: Final = (5.0, 20.0)
ALTER_PARTITION: Final = 56
HELD_S: Final = (2.0, 8.0)


class Moment(Enum):
    """When a node is struck, and how."""

    IN_DOUBT = "coordinator dies before its decision is durable"
    UNTOLD = "coordinator dies before all partitions know"
    UNAWARE = "coordinator of groups is heard by clients alone"
    APART = "leader dies when one follower is ahead of another"
    JOINING = "leader does not hear who has joined, who stands still"
    BORN_AGAIN = "who is to join begins a new life before the controller hears of it"


OF_TRANSACTIONS: Final = (Moment.IN_DOUBT, Moment.UNTOLD, Moment.UNAWARE)
OF_REPLICAS: Final = (Moment.APART, Moment.JOINING)
OVERTAKEN: Final = (Moment.BORN_AGAIN, Moment.UNAWARE)


class Ambush:
    """Waits for one of its moments after the other, and strikes whichever node has it first."""

    def __init__(
        self,
        simulation: Simulation,
        roster: Roster,
        hosts: Mapping[str, Host],
        moments: Sequence[Moment],
        *,
        pause_s_mean: float,
        revive: Callable[[Host], None],
    ) -> None:
        self._simulation, self._roster, self._hosts = simulation, roster, hosts
        self._chance: random.Random = simulation.chance("ambush")
        self._moments, self._pause_s_mean, self._revive = moments, pause_s_mean, revive
        self._awaited: Moment | None = None
        self._under_way = 0
        self._is_over = asyncio.Event()  # all that was sprung
        self._is_over.set()

    async def lie_in_wait(self, goes_on: Callable[[], bool]) -> None:
        while goes_on():
            await asyncio.sleep(self._chance.expovariate(1.0) * self._pause_s_mean)
            self._awaited = self._chance.choice(self._moments)
        self._awaited = None
        await self._is_over.wait()

    def look(self, host: str, node: Node) -> None:
        match self._awaited:
            case Moment.IN_DOUBT if has_ends_in_doubt(node):
                self._spring(self._cut_off, host)
            case Moment.UNTOLD if has_markers_to_send(node):
                self._spring(self._kill, host)
            case Moment.UNAWARE if has_offsets_to_tell(node):
                self._spring(self._keep_from_nodes, host)
            case Moment.APART if has_followers_apart(node):
                self._spring(self._kill, host)
            case Moment.JOINING | Moment.BORN_AGAIN:
                joining = joining_of(node)
                if joining is not None:
                    strike = self._leave_in_the_dark if self._awaited is Moment.JOINING else self._overtake
                    self._spring(strike, host, self._roster.host_of(joining))

    def _spring(self, strike: Callable[..., None], *hosts: str) -> None:
        assert self._awaited is not None
        self._simulation.count(self._awaited.value, " ".join(hosts))
        self._awaited = None
        self._under_way += 1
        self._is_over.clear()
        self._simulation.loop.call_soon(strike, *hosts, context=Context())

    def _later(self, delay_s: float, strike: Callable[[str], None], host: str) -> None:
        self._simulation.loop.call_later(delay_s, strike, host, context=Context())

    def _ended(self) -> None:
        self._under_way -= 1
        if not self._under_way:
            self._is_over.set()

    def _cut_off(self, host: str) -> None:
        """From all nodes but one: what it sends gets to some of those that should have it. Then it dies."""
        others = [name for name in self._hosts if name != host]
        for other in self._chance.sample(others, len(others) - 1):
            self._simulation.network.cut_both(host, other)
        self._later(self._chance.uniform(0.0, DEATH_S_MAX), self._kill, host)

    def _kill(self, host: str) -> None:
        """At once, or when some partitions know: the network and the others' disks take their time."""
        self._hosts[host].crash()
        self._ended()

    def _keep_from_nodes(self, host: str) -> None:
        """Others take its place, and it does not hear of it; who has talked to it before may go on to do so."""
        for other in self._hosts:
            if other != host:
                self._simulation.network.cut_both(host, other)
        self._later(self._chance.uniform(*UNAWARE_S), self._join_all, host)

    def _join_all(self, _: str) -> None:
        self._simulation.network.heal()
        self._ended()

    def _leave_in_the_dark(self, leader: str, joining: str) -> None:
        """The leader asks the controllers and hears no answer, and whom it has asked for stands still meanwhile."""
        for seat in self._roster.seats:
            if seat.is_controller and seat.host not in (leader, joining):
                self._simulation.network.cut(seat.host, leader)
        self._hosts[joining].pause()
        self._later(self._chance.uniform(*STILL_S), self._wake, joining)

    def _overtake(self, leader: str, joining: str) -> None:
        """What the leader asks for is long on its way, and who is to join dies and is back before it arrives."""
        held_s = self._chance.uniform(*HELD_S)
        self._simulation.network.delay_requests(ALTER_PARTITION, held_s)
        self._hosts[joining].crash()
        self._revive(self._hosts[joining])
        self._later(held_s, self._join_all, leader)

    def _wake(self, host: str) -> None:
        self._hosts[host].resume()
        self._ended()
