"""Faults at the worst triggers, which random timing rarely hits: wait for a trigger, then inject the fault."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from enum import Enum
from typing import Final

from moldau.node.node import Node
from moldau_dev.simulation.cluster.node_state import (
    has_committed_offsets,
    has_diverging_followers,
    has_pending_markers,
    has_uncommitted_decision,
    pending_joiner_of,
)
from moldau_dev.simulation.cluster.topology import Topology
from moldau_dev.simulation.simulation import Host, Simulation

CRASH_DELAY_S_MAX: Final = 0.5
PAUSE_S: Final = (1.0, 8.0)
ISOLATION_S: Final = (5.0, 20.0)
ALTER_PARTITION: Final = 56
REQUEST_DELAY_S: Final = (2.0, 8.0)


class Trigger(Enum):
    """When a fault is injected, and which."""

    UNCOMMITTED_DECISION = "coordinator dies before its decision is committed"
    UNSENT_MARKERS = "coordinator dies before all markers are sent"
    ISOLATED_COORDINATOR = "group coordinator can reach only clients"
    DIVERGING_FOLLOWERS = "leader dies when one follower is ahead of another"
    PENDING_JOIN = "leader is cut off from controllers while the joining replica is paused"
    RESTARTED_JOINER = "joining replica restarts before the controller gets the request"


TRANSACTION_TRIGGERS: Final = (Trigger.UNCOMMITTED_DECISION, Trigger.UNSENT_MARKERS, Trigger.ISOLATED_COORDINATOR)
REPLICA_TRIGGERS: Final = (Trigger.DIVERGING_FOLLOWERS, Trigger.PENDING_JOIN)
LATE_REQUEST_TRIGGERS: Final = (Trigger.RESTARTED_JOINER, Trigger.ISOLATED_COORDINATOR)


class TargetedFaults:
    """Waits for one of its triggers at a time, and injects its fault into the first node that meets it."""

    def __init__(
        self,
        simulation: Simulation,
        topology: Topology,
        hosts: Mapping[str, Host],
        triggers: Sequence[Trigger],
        *,
        pause_s_mean: float,
        start_if_down: Callable[[Host], None],
    ) -> None:
        self._simulation, self._topology, self._hosts = simulation, topology, hosts
        self._rng: random.Random = simulation.rng("ambush")
        self._triggers, self._pause_s_mean, self._start_if_down = triggers, pause_s_mean, start_if_down
        self._trigger: Trigger | None = None
        self._active = 0
        self._all_done = asyncio.Event()  # all injected faults
        self._all_done.set()

    async def run(self, is_active: Callable[[], bool]) -> None:
        while is_active():
            await asyncio.sleep(self._rng.expovariate(1.0) * self._pause_s_mean)
            self._trigger = self._rng.choice(self._triggers)
        self._trigger = None
        await self._all_done.wait()

    def check(self, host: str, node: Node) -> None:
        match self._trigger:
            case Trigger.UNCOMMITTED_DECISION if has_uncommitted_decision(node):
                self._fire(self._cut_off, host)
            case Trigger.UNSENT_MARKERS if has_pending_markers(node):
                self._fire(self._kill, host)
            case Trigger.ISOLATED_COORDINATOR if has_committed_offsets(node):
                self._fire(self._isolate_from_nodes, host)
            case Trigger.DIVERGING_FOLLOWERS if has_diverging_followers(node):
                self._fire(self._kill, host)
            case Trigger.PENDING_JOIN | Trigger.RESTARTED_JOINER:
                joining = pending_joiner_of(node)
                if joining is not None:
                    inject = (
                        self._cut_off_controllers if self._trigger is Trigger.PENDING_JOIN else self._restart_joiner
                    )
                    self._fire(inject, host, self._topology.host_of(joining))

    def _fire(self, inject: Callable[..., None], *hosts: str) -> None:
        assert self._trigger is not None
        self._simulation.count(self._trigger.value, " ".join(hosts))
        self._trigger = None
        self._active += 1
        self._all_done.clear()
        self._simulation.loop.call_soon(inject, *hosts, context=Context())

    def _later(self, delay_s: float, inject: Callable[[str], None], host: str) -> None:
        self._simulation.loop.call_later(delay_s, inject, host, context=Context())

    def _finish(self) -> None:
        self._active -= 1
        if not self._active:
            self._all_done.set()

    def _cut_off(self, host: str) -> None:
        """Cut a node off from all others but one, so that only some get what it sends; then kill it."""
        others = [name for name in self._hosts if name != host]
        for other in self._rng.sample(others, len(others) - 1):
            self._simulation.network.cut_both(host, other)
        self._later(self._rng.uniform(0.0, CRASH_DELAY_S_MAX), self._kill, host)

    def _kill(self, host: str) -> None:
        """Kill a node; by then some of its messages may have arrived."""
        self._hosts[host].crash()
        self._finish()

    def _isolate_from_nodes(self, host: str) -> None:
        """Cut a node off from all other nodes, but not from clients: it is replaced and does not know it."""
        for other in self._hosts:
            if other != host:
                self._simulation.network.cut_both(host, other)
        self._later(self._rng.uniform(*ISOLATION_S), self._heal, host)

    def _heal(self, _: str) -> None:
        self._simulation.network.heal()
        self._finish()

    def _cut_off_controllers(self, leader: str, joining: str) -> None:
        """Drop the responses of the controllers to the leader, and pause the joining replica."""
        for spec in self._topology.specs:
            if spec.is_controller and spec.host not in (leader, joining):
                self._simulation.network.cut(spec.host, leader)
        self._hosts[joining].pause()
        self._later(self._rng.uniform(*PAUSE_S), self._resume, joining)

    def _restart_joiner(self, leader: str, joining: str) -> None:
        """Delay the AlterPartition request of the leader, and restart the joining replica before it arrives."""
        delay_s = self._rng.uniform(*REQUEST_DELAY_S)
        self._simulation.network.delay_requests(ALTER_PARTITION, delay_s)
        self._hosts[joining].crash()
        self._start_if_down(self._hosts[joining])
        self._later(delay_s, self._heal, leader)

    def _resume(self, host: str) -> None:
        self._hosts[host].resume()
        self._finish()
